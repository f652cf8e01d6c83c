"""TensorBoard as a process of its own, on loopback alone, that ends with this one."""

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
from ddpprof.errors import DdpprofError

_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/")
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_WORDS = 3
_OFTEN_S = 0.2
_GRACE_S = 5.0
"""How long TensorBoard's last words may take."""
_PATIENCE_S = 60.0
"""How long the plugin may take to begin reading: it looks for new directories every 10 s."""


class Server:
    """A context manager. What it started has ended when the block ends."""

    def __init__(self, logdir: Path, port: int | None, temporary: Path) -> None:
        """`temporary`: a folder for what it would leave behind in ``/tmp``."""
        command = python_command(["-m", "tensorboard.main", f"--logdir={logdir}", "--host", "127.0.0.1"])
        self._process = start(
            guarded(command if port is None else [*command, "--port", str(port)]),
            {**helper_environment(), "TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for this process alone
        )
        self._said: deque[str] = deque(maxlen=200)
        self._address: str | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        # Not through a proxy: it is this machine that is asked.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def __enter__(self) -> Server:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDS}  # a second one must not leave it
        try:
            self._process.terminate()  # the guard, which ends all others
            self._process.wait()
            self._reader.join(_GRACE_S)
            assert self._process.stderr is not None
            self._process.stderr.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line.strip())
            if self._address is None and (match := _ADDRESS.search(line)):
                self._address = match[0]

    def address(self) -> str:
        """Once it answers. Raises `DdpprofError` where it ends instead."""
        while self._address is None or self._get("data/environment") is None:
            self._pause()
        return self._address

    def wait_for_plugin(self, runs: Iterable[str]) -> bool:
        """Until the profiler plugin has read those of its runs. False where it does not read one."""
        wanted, deadline = set(runs), time.monotonic() + _PATIENCE_S
        while True:
            answer = self._get("data/plugin/pytorch_profiler/runs")
            if answer is None or (not answer["loading"] and time.monotonic() > deadline):
                return False
            if wanted <= set(answer["runs"]) and not answer["loading"]:
                return True
            self._pause()

    def wait(self) -> None:
        """For ever. Raises `DdpprofError` where it ends by itself."""
        while True:
            self._pause()

    def _pause(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_OFTEN_S)
            self._reader.join(_OFTEN_S)
            said = " / ".join([line for line in self._said if line][-_LAST_WORDS:])
            raise DdpprofError(f"TensorBoard ended by itself, with exit code {code}: {said or 'it said nothing'}")

    def _get(self, route: str) -> Any:
        """What it answers, or ``None``."""
        try:
            with self._opener.open(f"{self._address}{route}", timeout=60) as response:
                return json.load(response)
        except (OSError, HTTPException, ValueError):  # URLError is an OSError
            return None
