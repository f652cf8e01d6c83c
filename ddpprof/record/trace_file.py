"""One rank's trace on its way into the run directory, written during training.

A trace may have hundreds of megabytes, and the run may be in a network folder into which all ranks write at once. So a
thread writes it: if the run is elsewhere, first to a disk of this node, and from there, compressed, into the run. On
the same disk the file only gets its final name then, and is compressed when training is over.
"""

from __future__ import annotations

import gzip
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from torch.profiler import profile

from ddpprof import own_files, rundir
from ddpprof.record.standby import STANDBY
from ddpprof.scratch import choose_temporary_directory, scratch_folder

_gzip_open: Any
try:
    from isal.igzip import open as _gzip_open
except ImportError:
    _gzip_open = gzip.open

_LOOKS_EVERY_S = 0.1
_LOCAL_DISK_BYTES = 4 << 30
"""least free bytes on this node's disk; with less, the trace goes directly to the run"""


class TraceFile:
    """``rank-N.trace.json.gz`` and its intermediate files."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._plain = directory / rundir.plain_trace_file(rank)
        self._compressed = directory / rundir.trace_file(rank)
        self._writing: Future[None] | None = None

    def write(self, recorded: profile) -> None:
        """Begin to write; `finish` reports whether it succeeded."""
        self._begin(lambda: self._export(recorded))

    def finish(self, patience_s: float, asked_to_end: Sequence[int]) -> None:
        """Wait at the end of training until all is written, but only `patience_s` once there is a reason to hurry.

        `asked_to_end`: list that grows when a signal arrives. Raises ``OSError``.
        """
        self.wait(patience_s, asked_to_end)
        if self._writing is None and self._plain.exists():
            self._begin(lambda: self._compress(self._plain))
            self.wait(patience_s, asked_to_end)

    def _begin(self, work: Callable[[], None]) -> None:
        try:
            self._writing = STANDBY.run(work)
        except RuntimeError:  # the process ends: nobody trains meanwhile
            work()

    def wait(self, patience_s: float, asked_to_end: Sequence[int]) -> None:
        """Wait for what is being written, as `finish` does."""
        deadline = None
        while self._writing is not None:
            if wait([self._writing], _LOOKS_EVERY_S).done:
                written, self._writing = self._writing, None
                written.result()
            elif deadline is None and asked_to_end:
                deadline = time.monotonic() + patience_s
            elif deadline is not None and time.monotonic() > deadline:
                return

    def _export(self, recorded: profile) -> None:
        with ExitStack() as used:
            folder = self._plain.parent
            if _lies_elsewhere(folder):
                with suppress(OSError):
                    folder = used.enter_context(scratch_folder())
            self._export_into(folder, recorded)

    def _export_into(self, folder: Path, recorded: profile) -> None:
        part = folder / own_files.part_name(self._plain.name)
        try:
            recorded.export_chrome_trace(_relative(part))
            if not part.exists() or part.stat().st_size == 0:
                raise OSError(f"the profiler could not write {part}")
            own_files.narrow(part)  # Kineto creates it
            if folder == self._plain.parent:
                part.replace(self._plain)
            else:
                self._compress(part)
        finally:
            for left in (part, part.with_name(f"{part.name}.tmp")):  # Kineto's own, if it did not finish
                own_files.remove_file(left)

    def _compress(self, plain: Path) -> None:
        with (
            own_files.whole_file(self._compressed) as part,
            plain.open("rb") as source,
            _gzip_open(part, "wb", compresslevel=1) as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
        own_files.remove_file(plain)


def _lies_elsewhere(directory: Path) -> bool:
    """Return whether `directory` is not on this node's disk for temporary files, and that disk has room for a trace."""
    try:
        local = choose_temporary_directory()
        return local.stat().st_dev != directory.stat().st_dev and shutil.disk_usage(local).free >= _LOCAL_DISK_BYTES
    except OSError:
        return False


def _relative(path: Path) -> str:
    """Return a relative path: Kineto writes the given path into the trace, which may be shown to others."""
    try:
        return os.path.relpath(path)
    except OSError:  # the working folder no longer exists
        return str(path)
