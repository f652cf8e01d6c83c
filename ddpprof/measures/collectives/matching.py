"""Which rows of different ranks are the same collective?

    with sequence numbers   same process group and number, of the same kind and size on all ranks that have it
    without                 same process group, step and position in the order of launch, and all ranks of the group
                            launched the same kinds and sizes in that step

Rows that do not fit are described in words and never paired. A size that one side lacks is not a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddpprof.measures.collectives.match_candidates import Candidates, RankCollectives, contradictions, line_up
from ddpprof.measures.collectives.mismatches import describe_contradictions, describe_mismatches, differs
from ddpprof.model import UNKNOWN, Int64Column


@dataclass(frozen=True, slots=True)
class MatchedCollectives:
    """One line per collective that was seen on at least two ranks."""

    ranks: tuple[int, ...]
    rows: NDArray[np.int32]
    """[n, num_ranks]: row in that rank's table, or `UNKNOWN` if not in the group or not in its trace"""
    kind: NDArray[np.int8]
    """[n]: `CollectiveKind`"""
    step: Int64Column
    """[n]: number of the step, on the lowest rank that has the row, or `UNKNOWN`"""
    mismatches: tuple[str, ...]
    """differences between ranks, in words for the report"""

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, ranks: Sequence[RankCollectives], column: Callable[[RankCollectives], Int64Column]) -> Int64Column:
        """Return [n, num_ranks]: a column's value on each rank, and 0 where ``rows`` is `UNKNOWN`."""
        by_number = {rank.rank: rank for rank in ranks}
        values = np.zeros(self.rows.shape, np.int64)
        for index, number in enumerate(self.ranks):
            known = self.rows[:, index] != UNKNOWN
            values[known, index] = column(by_number[number])[self.rows[known, index]]
        return values


def match_collectives(ranks: Sequence[RankCollectives]) -> MatchedCollectives:
    """Match the collectives of `ranks`, which are distinct and in any order. Ranks of the result ascend."""
    ranks = sorted(ranks, key=lambda rank: rank.rank)
    numbers = tuple(rank.rank for rank in ranks)
    candidates, step_numbers = line_up(ranks)
    named_steps = np.array([*step_numbers, UNKNOWN], np.int64)  # NO_STEP finds the last one
    rows, kinds = [np.empty((0, len(ranks)), np.int32)], [np.empty(0, np.int8)]
    of_step = [np.empty(0, np.int64)]
    mismatches = describe_contradictions(contradictions(ranks))
    for lines in candidates:
        same = _is_same(lines)
        of_all_ranks = np.full((int(same.sum()), len(ranks)), UNKNOWN, np.int32)
        of_all_ranks[:, np.searchsorted(numbers, lines.ranks)] = lines.rows[same]
        rows.append(of_all_ranks)
        kinds.append(lines.kinds[same].max(axis=1))
        of_step.append(named_steps[lines.step[same]])
        mismatches += describe_mismatches(lines, step_numbers)
    return MatchedCollectives(
        ranks=numbers,
        rows=np.concatenate(rows),
        kind=np.concatenate(kinds),
        step=np.concatenate(of_step),
        mismatches=tuple(mismatches),
    )


def _is_same(lines: Candidates) -> NDArray[np.bool_]:
    """Return [n]: whether the line's rows are one collective."""
    known = lines.rows != UNKNOWN
    same: NDArray[np.bool_]
    if lines.by_sequence:
        repeated = np.isin(lines.key, [number for _, number in lines.repeated])
        same = ~differs(lines) & ~repeated & (known.sum(axis=1) > 1)
    else:
        bad = differs(lines) | ~known.all(axis=1)
        same = ~np.isin(lines.step, lines.step[bad])
    return same
