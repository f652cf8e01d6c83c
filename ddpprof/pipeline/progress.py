"""Progress of the map, for those who wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    """bytes of the files; 0 if unknown"""


Watch = Callable[[ReadProgress], None]


class Progress:
    """Progress of all ranks, which are identified by their index."""

    def __init__(self, watch: Watch, ranks: Sequence[RankFiles], sizes: Sequence[int]) -> None:
        self._watch, self._ranks, self._sizes = watch, ranks, sizes
        self._read: dict[int, int] = {}
        """bytes read of each rank that was begun"""
        self._num_done = 0
        self._path: Location = some_file(ranks[0]) if ranks else Path()

    def begin(self, index: int) -> None:
        self._path = some_file(self._ranks[index])
        self.read(index, 0)

    def read(self, index: int, num_bytes: int) -> None:
        """Note the bytes of the rank's files read so far."""
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
    """Return the bytes of its traces; 0 if unknown."""
    total = 0
    for path in files.traces:
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


@dataclass(frozen=True, slots=True)
class Numbers:
    """A container of spans, so that a long one costs nothing."""

    spans: tuple[tuple[int, int], ...]
    """first and last of each span"""

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Numbers:
        spans: list[tuple[int, int]] = []
        for number in sorted(set(numbers)):
            if spans and spans[-1][1] == number - 1:
                spans[-1] = (spans[-1][0], number)
            else:
                spans.append((number, number))
        return cls(tuple(spans))

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(first <= number <= last for first, last in self.spans)

    def __bool__(self) -> bool:
        return bool(self.spans)

    @property
    def are_several(self) -> bool:
        return len(self.spans) > 1 or any(first < last for first, last in self.spans)

    def __str__(self) -> str:
        return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in self.spans)

    def without(self, there: Iterable[int]) -> Numbers:
        """Return the numbers without those in `there`."""
        left: list[tuple[int, int]] = []
        known = sorted(set(there))
        for first, last in self.spans:
            begin = first
            for number in known:
                if begin <= number <= last:
                    if begin < number:
                        left.append((begin, number - 1))
                    begin = number + 1
            if begin <= last:
                left.append((begin, last))
        return Numbers(tuple(left))
