"""How do the ranks' collectives differ where they should be the same? There is one sentence per kind of difference.

Of several differences of one kind, it describes the first and gives their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ddpprof.measures.collectives.match_candidates import Candidates
from ddpprof.model import NO_STEP, UNKNOWN, CollectiveKind, ProcessGroup
from ddpprof.words import ranks_in_words

_SIZED_BY_RANK = (CollectiveKind.ALL_TO_ALL, CollectiveKind.GATHER, CollectiveKind.SCATTER)
"""kinds whose size may differ between ranks"""

_MOST_RANKS_NAMED = 4


def differs(lines: Candidates) -> NDArray[np.bool_]:
    """Return [n]: whether two ranks have rows of different kinds, or of different known sizes."""
    return _varies(lines.kinds) | (_varies(lines.sizes) & ~np.isin(lines.kinds.max(axis=1), _SIZED_BY_RANK))


def describe_mismatches(lines: Candidates, step_numbers: Sequence[int]) -> list[str]:
    """Describe the differences. `step_numbers`: names of the steps in the lines."""
    told = _by_sequence(lines) if lines.by_sequence else _by_step(lines)
    return [f"{_where(lines, first, step_numbers)}: {text}" for first, text in told]


def describe_contradictions(found: Sequence[tuple[int, ProcessGroup]]) -> list[str]:
    """Describe ranks with collectives of a group that does not list them, in one sentence per group."""
    ranks: dict[ProcessGroup, list[int]] = {}
    for rank, group in found:
        ranks.setdefault(group, []).append(rank)
    return [
        f"{'a process group' if group.name is None else f'process group {group.name}'} lists "
        f"{_ranks(group.ranks or ())} but not {_ranks(members)}, which take part in its collectives, so the list is "
        "not used"
        for group, members in ranks.items()
    ]


def _varies(values: NDArray[np.int64] | NDArray[np.int8]) -> NDArray[np.bool_]:
    """Return [n]: whether the known values of a line differ."""
    largest = values.max(axis=1, keepdims=True)
    varies: NDArray[np.bool_] = ((values != largest) & (values != UNKNOWN)).any(axis=1)
    return varies


def _by_step(lines: Candidates) -> list[tuple[int, str]]:
    bad = differs(lines) | (lines.rows == UNKNOWN).any(axis=1)
    steps = np.unique(lines.step[bad])
    if not len(steps):
        return []
    first = np.flatnonzero(lines.step == steps[0])
    launched = (lines.rows[first] != UNKNOWN).sum(axis=0)
    line = int(first[bad[first]][0])
    if len(set(launched.tolist())) > 1:
        text = _odd_ones(lines.ranks, [_count(count) for count in launched.tolist()])
    else:
        text = f"collective {lines.key[line] + 1} differs: {_what_differs(lines, line)}"
    return [(line, f"{text}; none of the step's collectives are matched{_and_more(len(steps), 'step')}")]


def _by_sequence(lines: Candidates) -> list[tuple[int, str]]:
    told = []
    if lines.repeated:
        rank, number = lines.repeated[0]
        text = f"rank {rank} has this number more than once{_and_more(len(lines.repeated), 'number')}"
        told.append((int(np.searchsorted(lines.key, number)), text))
    odd = np.flatnonzero(differs(lines))
    if len(odd):
        told.append((int(odd[0]), _what_differs(lines, int(odd[0])) + _and_more(len(odd), "collective")))
    again = np.isin(lines.key, [number for _, number in lines.repeated])
    lacking = np.flatnonzero((lines.rows == UNKNOWN).any(axis=1) & ~again)
    if len(lacking):
        row = lines.rows[lacking[0]]
        absent = [rank for rank, index in zip(lines.ranks, row.tolist(), strict=True) if index == UNKNOWN]
        text = f"missing in the trace of {_ranks(absent)}{_and_more(len(lacking), 'collective')}"
        told.append((int(lacking[0]), text))
    return told


def _what_differs(lines: Candidates, line: int) -> str:
    by_size = not _varies(lines.kinds[line : line + 1])[0]
    ranks, said = [], []
    for rank, kind, size in zip(lines.ranks, lines.kinds[line].tolist(), lines.sizes[line].tolist(), strict=True):
        if kind != UNKNOWN and not (by_size and size == UNKNOWN):
            name = CollectiveKind(kind).name.lower().replace("_", "-")
            ranks.append(rank)
            said.append(f"{name} of {size} bytes" if by_size else name)
    return _odd_ones(ranks, said)


def _odd_ones(ranks: Sequence[int], said: Sequence[str]) -> str:
    """Return what the first unusual ranks have, and what most have."""
    usual = Counter(said).most_common(1)[0][0]
    other = next(text for text in said if text != usual)

    def who(wanted: str) -> str:
        return _ranks([rank for rank, text in zip(ranks, said, strict=True) if text == wanted])

    return f"{other} on {who(other)}, {usual} on {who(usual)}"


def _count(number: int) -> str:
    return "no collective" if number == 0 else f"{number} collective{'s' if number > 1 else ''}"


def _ranks(ranks: Sequence[int]) -> str:
    return ranks_in_words(ranks, _MOST_RANKS_NAMED)


def _and_more(count: int, what: str) -> str:
    return "" if count == 1 else f" (the first of {count} such {what}s)"


def _where(lines: Candidates, line: int, step_numbers: Sequence[int]) -> str:
    parts = []
    if lines.step[line] != NO_STEP:
        parts.append(f"step {step_numbers[lines.step[line]]}")
    if lines.group.name is not None:
        parts.append(f"process group {lines.group.name}")
    if lines.by_sequence:
        parts.append(f"sequence number {lines.key[line]}")
    return ", ".join(parts)
