"""Where web servers send us on to is followed, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from ddpprof.errors import RemoteError
from ddpprof.files import explain, location


@contextmanager
def server(address: str, redirects_to: str = "") -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302 if redirects_to else 200)
            self.send_header("Location", redirects_to)
            self.send_header("Content-Length", "6")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(b"inside")

        do_HEAD = do_GET  # noqa: N815 (the name that http.server looks for)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((address, 0), Handler) as one:
        thread = Thread(target=one.serve_forever, daemon=True)
        thread.start()
        yield f"http://{address}:{one.server_port}"
        one.shutdown()
        thread.join()


@pytest.fixture
def two_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """127.0.0.2 and 127.0.0.3 stand for other machines."""
    own = explain._place
    monkeypatch.setattr(explain, "_place", lambda address: 1 if address in ("127.0.0.2", "127.0.0.3") else own(address))


@pytest.mark.usefixtures("two_of_the_network")
def test_a_redirect_to_this_machine_is_refused() -> None:
    with server("127.0.0.1") as inside, server("127.0.0.2", f"{inside}/secret") as outside:
        for look in (lambda: location(f"{outside}/file").stat(), lambda: location(f"{outside}/file").read_bytes()):
            with pytest.raises(
                RemoteError,
                match=r"redirects to 127\.0\.0\.1, which is on a more private network than the server "
                "itself",
            ):
                look()


@pytest.mark.usefixtures("two_of_the_network")
def test_a_redirect_to_a_neighbour_is_followed() -> None:
    with server("127.0.0.3") as there, server("127.0.0.2", f"{there}/file") as here:
        assert location(f"{here}/file").read_bytes() == b"inside"
        assert location(f"{here}/file").stat().st_size == 6
