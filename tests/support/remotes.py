"""File servers on this machine's loopback (S3 by moto, sshd, a web server) and the run that they serve."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import Request, urlopen

import pytest
from ports import unused_port

CONVNET = Path(__file__).parents[2] / "sample_traces" / "convnet-gloo-2ranks"
TRACE = "rank-1.trace.json.gz"

_PATIENCE_S = 60


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < deadline
            time.sleep(0.05)


@contextmanager
def _running(command: list[str], port: int, log: Path, **env: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **env})
        try:
            _wait_for(port, process)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(_PATIENCE_S)


@dataclass(frozen=True)
class ObjectStore:
    address: str
    log: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def put(self, key: str, content: bytes = b"") -> None:
        """For all to read. ``bucket`` makes a bucket."""
        headers = {"Content-Type": "application/octet-stream", "x-amz-acl": "public-read"}
        with urlopen(Request(f"{self.address}/{key}", content, headers, method="PUT")) as answer:
            assert answer.status == HTTPStatus.OK

    def put_folder(self, key: str, folder: Path) -> None:
        for file in folder.iterdir():
            if file.is_file():
                self.put(f"{key}/{file.name}", file.read_bytes())

    def get(self, key: str) -> bytes:
        with urlopen(f"{self.address}/{key}") as answer:
            return bytes(answer.read())

    @contextmanager
    def requests(self) -> Iterator[list[str]]:
        """Those that come meanwhile, as ``GET /bucket/key``; filled at the end."""
        before = self.log.stat().st_size
        seen: list[str] = []
        yield seen
        text = self.log.read_bytes()[before:].decode(errors="replace")
        seen += [line.partition('"')[2].partition(" HTTP")[0].lstrip("\x1b[0123456789m") for line in text.splitlines()]


@contextmanager
def object_store(folder: Path, **env: str) -> Iterator[ObjectStore]:
    port = unused_port()
    log = folder / f"moto-{port}.log"
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, port, log, **env):
        yield ObjectStore(f"http://127.0.0.1:{port}", log)


@dataclass(frozen=True)
class SshServer:
    address: str
    """up to the root folder"""
    key: Path


@contextmanager
def ssh_server(folder: Path) -> Iterator[SshServer]:
    """Start a real sshd; skip the test if there is none."""
    import getpass

    program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("no sshd here: apt-get install openssh-server")
    for key in ("host", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    port = unused_port()
    options = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "host",
        "PidFile": "none",
        "AuthorizedKeysFile": folder / "key.pub",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "yes",
        "Subsystem": "sftp internal-sftp",
    }
    configuration = folder / "sshd_config"
    configuration.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd asks for it, and a service would have made it
    with _running([program, "-D", "-e", "-f", str(configuration)], port, folder / "sshd.log"):
        yield SshServer(f"sftp://{getpass.getuser()}@127.0.0.1:{port}", folder / "key")


Answer = Callable[["WebHandler"], bool]
"""function that may answer in place of the file; it returns whether it did"""


class WebHandler(SimpleHTTPRequestHandler):
    """A server of files and listing pages. Like Python's, it knows no ranges."""

    answer: Answer = staticmethod(lambda _handler: False)

    def do_GET(self) -> None:
        if not self.answer(self):
            super().do_GET()

    def log_message(self, *_arguments: object) -> None:
        pass


@contextmanager
def web_server(folder: Path, answer: Answer | None = None) -> Iterator[str]:
    """Start the server and yield its address."""

    class Handler(WebHandler):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, directory=str(folder), **options)  # type: ignore[arg-type,misc]

    if answer is not None:
        Handler.answer = staticmethod(answer)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign] # who has read enough hangs up
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def ranges(handler: WebHandler) -> bool:
    """Answer a request for a part of a file with that part."""
    asked = handler.headers.get("Range")
    path = Path(handler.translate_path(handler.path))
    if asked is None or not path.is_file():
        return False
    first, last = (int(number) for number in asked.removeprefix("bytes=").split("-"))
    whole = path.read_bytes()
    part = whole[first : last + 1]
    handler.send_response(HTTPStatus.PARTIAL_CONTENT)
    handler.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(whole)}")
    handler.send_header("Content-Length", str(len(part)))
    handler.end_headers()
    handler.wfile.write(part)
    return True


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error of a command that ended with one."""
    assert done.returncode == 2, done
    (line,) = done.stderr.splitlines()
    assert line.startswith("ddpprof: ")
    return line
