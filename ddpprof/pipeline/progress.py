"""Progress of the map step, for display while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddpprof.files import Location
from ddpprof.load.rank import RankFiles, some_file


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """Progress at one moment."""

    path: Location
    """one of the files being read"""
    num_done: int
    num_ranks: int
    done_bytes: int
    all_bytes: int
    """total size of the files in bytes; 0 if unknown"""


Watch = Callable[[ReadProgress], None]


class Progress:
    """Progress of all ranks, which are identified by their index."""

    def __init__(self, watch: Watch, ranks: Sequence[RankFiles], sizes: Sequence[int]) -> None:
        self._watch, self._ranks, self._sizes = watch, ranks, sizes
        self._read: dict[int, int] = {}
        """bytes read so far of each rank that was started"""
        self._num_done = 0
        self._path: Location = some_file(ranks[0]) if ranks else Path()

    def begin(self, index: int) -> None:
        self._path = some_file(self._ranks[index])
        self.read(index, 0)

    def read(self, index: int, num_bytes: int) -> None:
        """Record how many bytes of the rank's files have been read so far."""
        self._read[index] = min(num_bytes, self._sizes[index])
        self._tell()

    def end(self, index: int) -> None:
        self._num_done += 1
        self.read(index, self._sizes[index])

    def _tell(self) -> None:
        self._watch(
            ReadProgress(self._path, self._num_done, len(self._ranks), sum(self._read.values()), sum(self._sizes))
        )


class FileBytes:
    """Sum of the bytes of successive files, each counted from 0."""

    def __init__(self, told: Callable[[int], None]) -> None:
        self._told = told
        self._before = self._last = 0

    def __call__(self, num_bytes: int) -> None:
        if num_bytes < self._last:
            self._before += self._last
        self._last = num_bytes
        self._told(self._before + num_bytes)


def num_bytes(files: RankFiles) -> int:
    """Return the total size of the rank's traces in bytes; 0 if unknown."""
    total = 0
    for path in files.traces:
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total
