"""Run TensorBoard as a child process that serves only this machine and ends with this process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any

from ddpprof.child_processes import guarded, helper_environment, python_command, start
from ddpprof.cli.this_machine import for_this_machine
from ddpprof.errors import DdpprofError
from ddpprof.signals import handled_signals

_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/")
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_WORDS = 3
_OFTEN_S = 0.2
_GRACE_S = 5.0
"""seconds to wait for TensorBoard's last output"""
_PATIENCE_S = 60.0
"""seconds without progress after which ddpprof stops waiting for the plugin, which looks for new directories every 10 s
"""


class Server:
    """Context manager for a TensorBoard server. All its processes are ended on exit."""

    def __init__(self, logdir: Path, port: int | None, temporary: Path) -> None:
        """Start TensorBoard. `temporary`: folder for the temporary files that it does not delete."""
        command = python_command(["-m", __name__, f"--logdir={logdir}", "--host", "127.0.0.1"])
        self._process = start(
            guarded(command if port is None else [*command, "--port", str(port)]),
            {**helper_environment(), "TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C goes to this process only
        )
        self._said: deque[str] = deque(maxlen=200)
        self._address: str | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        # Requests to this machine must not go through a proxy.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def __enter__(self) -> Server:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with handled_signals(_ENDS, signal.SIG_IGN):  # a second signal must not interrupt this
            self._process.terminate()  # ends the guard, which then ends all other processes
            self._process.wait()
            self._reader.join(_GRACE_S)
            assert self._process.stderr is not None
            self._process.stderr.close()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line.strip())
            if self._address is None and (match := _ADDRESS.search(line)):
                self._address = match[0]

    def address(self) -> str:
        """Wait until TensorBoard responds, and return its address. Raises `DdpprofError` if it ends instead."""
        while self._address is None or self._get("data/environment") is None:
            self._pause()
        return self._address

    def wait_for_plugin(self, runs: Iterable[str]) -> bool:
        """Wait until the profiler plugin has read these runs. Return False if it does not read all of them."""
        wanted, idle_since = set(runs), time.monotonic()
        while True:
            answer = self._get("data/plugin/pytorch_profiler/runs")
            is_loading = answer is not None and answer["loading"]
            if answer is not None and not is_loading and wanted <= set(answer["runs"]):
                return True
            if is_loading:
                idle_since = time.monotonic()
            elif time.monotonic() > idle_since + _PATIENCE_S:
                return False
            self._pause()

    def failures(self) -> list[str]:
        """Return the lines in which TensorBoard or the plugin has reported a failure."""
        return [line for line in self._said if "Failed to " in line]

    def wait(self) -> None:
        """Wait until TensorBoard ends. Raises `DdpprofError` if it ends unexpectedly."""
        while True:
            self._pause()

    def _pause(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_OFTEN_S)
            self._reader.join(_OFTEN_S)
            said = " / ".join([line for line in self._said if line][-_LAST_WORDS:])
            raise DdpprofError(f"TensorBoard ended unexpectedly with exit code {code}: {said or 'it printed nothing'}")

    def _get(self, route: str) -> Any:
        """Return the JSON response, or ``None`` if there is none."""
        try:
            with self._opener.open(f"{self._address}{route}", timeout=60) as response:
                return json.load(response)
        except (OSError, HTTPException, ValueError):  # URLError is an OSError
            return None


def _serve() -> None:
    """Run TensorBoard in this process, as the main program of this module."""
    from absl import app
    from tensorboard import default, main_lib, program

    def served(wsgi_app: Any, flags: Any) -> Any:
        return program.WerkzeugServer(for_this_machine(wsgi_app), flags)

    main_lib.global_init()
    board = program.TensorBoard(default.get_plugins(), server_class=program.with_port_scanning(served))
    app.run(board.main, flags_parser=board.configure)


if __name__ == "__main__":
    _serve()
