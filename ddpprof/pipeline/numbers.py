"""Numbers of ranks or steps, requested by a user or existing: ``0-7,64``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Numbers:
    """A set of numbers stored as spans, so that a long range costs nothing."""

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
        """Return the numbers except those in `there`."""
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
