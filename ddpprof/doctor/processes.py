"""Execution of each check in a process of its own, with a time limit, and without leftover processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from ddpprof.child_processes import (
    adopt_orphans,
    descendants,
    helper_environment,
    kill_descendants,
    python_command,
    start,
)
from ddpprof.doctor.check import Check, CheckResult, CheckStatus, Setup
from ddpprof.scratch import scratch_folder

RESULT_FILE = "result.json"
_LOOKS_EVERY_S = 0.02


def run_checks(
    checks: Sequence[Check], setup: Setup, out: Path, gpus: int | None, at_once: int = 1
) -> Iterator[list[CheckResult]]:
    """Yield the outcomes of each check, in order; a check that ends without an answer fails for all its names."""
    adopt_orphans()
    waiting, begun = list(checks), list[_Running]()
    with ExitStack() as ending:
        ending.callback(kill_descendants)
        while waiting or begun:
            while waiting and sum(one.outcomes is None for one in begun) < at_once:
                begun.append(ending.enter_context(_Running(waiting.pop(0), setup, out, gpus)))
            time.sleep(_LOOKS_EVERY_S)
            for one in begun:
                one.look()
            while begun and begun[0].outcomes is not None:
                yield begun.pop(0).outcomes or []


class _Running:
    """A check in its process, within a ``with`` block that always ends it."""

    def __init__(self, check: Check, setup: Setup, out: Path, gpus: int | None) -> None:
        self.outcomes: list[CheckResult] | None = None
        """outcomes, once it is over"""
        self._check = check
        self._where = str(setup) if check.trains else None
        self._about = {"out": str(out), "gpus": gpus, "setup": asdict(setup)}
        self._used = ExitStack()

    def __enter__(self) -> _Running:
        scratch = self._used.enter_context(scratch_folder())
        self._folder = scratch / "check"
        self._folder.mkdir()
        about = json.dumps({**self._about, "folder": str(self._folder)})
        self._said = self._used.enter_context((scratch / "said").open("w+b"))
        self._process = start(
            python_command(["-m", "ddpprof.doctor.one", self._check.module, self._check.function, about]),
            helper_environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C goes to the doctor, which ends the check
        )
        self._deadline = time.monotonic() + self._check.limit_s
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._used.close()

    def look(self) -> None:
        """End the check if its time is over; read its answer if it has ended."""
        code = self._process.poll()
        if self.outcomes is not None or (code is None and time.monotonic() < self._deadline):
            return
        if code == 0:
            found = json.loads((self._folder / RESULT_FILE).read_text(encoding="utf-8"))
            self.outcomes = [replace(one, setup=self._where) for one in msgspec.convert(found, list[CheckResult])]
            return
        self._kill()
        problem = f"It ended with exit code {code}."
        if code is None:
            problem = f"It took longer than {self._check.limit_s:g} s, and was ended."
        self._said.seek(0)
        last = self._said.read().decode(errors="replace").strip().rpartition("\n")[2]
        reason = f"{problem} {last}".strip()
        self.outcomes = [
            CheckResult(name, CheckStatus.FAIL, reason=reason, setup=self._where) for name in self._check.names
        ]

    def _kill(self) -> None:
        if self._process.poll() is None:
            for process in (*descendants(self._process.pid), self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            self._process.wait()
