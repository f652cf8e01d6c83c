"""How far the map is, for those who wait for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddpprof.load.run import RankFiles, some_file
from ddpprof.location import Location


@dataclass(frozen=True, slots=True)
class Step:
    """One rank was begun or is done."""

    path: Location
    """one of the files that are being read"""
    num_done: int
    num_ranks: int
    done_bytes: int
    all_bytes: int
    """of the files; 0 where nobody says"""


Watch = Callable[[Step], None]


class Progress:
    def __init__(self, watch: Watch, ranks: Sequence[RankFiles], sizes: Sequence[int]) -> None:
        self._watch, self._ranks, self._sizes = watch, ranks, sizes
        self._done: set[int] = set()
        self._path: Location = some_file(ranks[0]) if ranks else Path()

    def begin(self, index: int) -> None:
        self._path = some_file(self._ranks[index])
        self._tell()

    def end(self, index: int) -> None:
        self._done.add(index)
        self._tell()

    def _tell(self) -> None:
        done_bytes = sum(self._sizes[index] for index in self._done)
        self._watch(Step(self._path, len(self._done), len(self._ranks), done_bytes, sum(self._sizes)))


def num_bytes(files: RankFiles) -> int:
    """Of its traces; 0 where nobody says."""
    total = 0
    for path in files.traces:
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total
