"""The files of one rank."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from ddpprof import own_files, rundir
from ddpprof.model import Record, RecordedStep
from ddpprof.record.trace_file import TraceFile


class LastStep:
    """How many steps this rank has finished, in a file that is rewritten after every step, or by `PulseKeeper`.

    The operating system has the number at once, so it outlives a process that is killed. The file is not mapped into
    memory: truncating it would end the training with SIGBUS. Every method raises ``OSError``.
    """

    def __init__(self, path: Path) -> None:
        self._file = own_files.overwrite(path)

    def is_over(self, num_steps: int, ended_ns: int) -> None:
        """Note that there are now `num_steps`, of which the last ended at `ended_ns`."""
        rundir.write_last_step(self._file, num_steps, ended_ns)

    def close(self) -> None:
        os.close(self._file)


class CrashFile:
    """A file into which Python writes where all threads stand, if a signal such as SIGABRT ends the process.

    Gloo aborts a process whose collective meets another one, which then can say nothing itself. A script that has
    `faulthandler` write elsewhere keeps it.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._number = -1
        self._held: Callable[[], object | None] = _nothing
        """returns the file as long as `faulthandler` holds it: it lets go if the script has it write elsewhere"""

    def open(self, path: Path) -> None:
        """Begin. Raises ``OSError``."""
        if not faulthandler.is_enabled():
            self._number = own_files.overwrite(path)  # it stays open: the signal may come at any time
            self._path = path
            file = os.fdopen(self._number, "wb", buffering=0, closefd=False)
            if sys.version_info >= (3, 14):
                faulthandler.enable(file, c_stack=False)
            else:
                faulthandler.enable(file)
            self._held = weakref.ref(file)

    def close(self) -> None:
        """Have Python write stacks nowhere, as before, and remove the file if there was no such signal."""
        path, self._path = self._path, None
        if path is None:
            return
        if self._held() is not None:
            faulthandler.disable()
        with suppress(OSError):  # somebody may have removed the run
            os.close(self._number)
            if not path.stat().st_size:
                own_files.remove_file(path)


def _nothing() -> None:
    return None


class RankOutput:
    """``facts.json``, ``steps.jsonl``, ``last_step`` and losses of one rank. Every method raises ``OSError``."""

    def __init__(self, directory: Path, rank: int) -> None:
        self.directory = directory
        self._rank = rank
        self.trace = TraceFile(directory, rank)
        self._steps = os.fdopen(own_files.overwrite(directory / rundir.steps_file(rank)), "wb")
        self._encode = msgspec.json.Encoder().encode
        self.last_step = LastStep(directory / rundir.last_step_file(rank))

    def write_facts(self, record: Record) -> None:
        """Write all that is known of the rank except its steps, which have a file of their own."""
        facts = {"format": rundir.FORMAT, **msgspec.structs.asdict(record)}
        rundir.write_json(self.directory / rundir.facts_file(self._rank), msgspec.to_builtins(facts))

    def write_losses(self, losses: list[list[str]]) -> None:
        rundir.write_json(self.directory / rundir.losses_file(self._rank), losses)

    def append_step(self, step: RecordedStep) -> None:
        """Append one flushed line, which survives the death of this process.

        The step ends when all but its end, the last field, is encoded, so that this cost is part of the step.
        """
        line = self._encode(step).removesuffix(b"0}")
        self._steps.write(b"%b%d}\n" % (line, time.time_ns()))
        self._steps.flush()

    def close(self) -> None:
        self._steps.close()
        self.last_step.close()
