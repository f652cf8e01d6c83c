"""Which rows of different ranks could be the same collective? Rows of each process group are lined up, not compared.

Two rows are in one line if they are of one process group and have the same sequence number; if the trace has none, they
need the same position in the order of launch within a step of the same number. Sends and receives are between two ranks
and are left out, as are rows with neither step nor sequence number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ddpprof.model import NO_STEP, UNKNOWN, CollectiveKind, Collectives, Int64Column, ProcessGroup, Rank, Step
from ddpprof.words import ranks_in_words

_PLACES = 1 << 32
"""more than the number of collectives in a step"""


@dataclass(frozen=True, slots=True)
class RankCollectives:
    """The kilobytes of one rank's trace that measures across ranks need."""

    rank: int
    host: str | None
    epoch_ns: int | None
    """offset to add to the table's times to get nanoseconds since 1970 by this rank's clock"""
    steps: tuple[Step, ...]
    groups: tuple[ProcessGroup, ...]
    collectives: Collectives
    own_group: ProcessGroup = field(default_factory=ProcessGroup)
    """group of rows that do not tell theirs, as gloo's: that in which the rank averages gradients, if it is known"""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows of one process group, all with or all without sequence numbers: n lines, a column for each rank."""

    group: ProcessGroup
    """group; one without name, size and ranks stands for rows that do not tell their group"""
    by_sequence: bool
    ranks: tuple[int, ...]
    """ranks that were read and should have such rows"""
    rows: NDArray[np.int32]
    """[n, num_ranks], or `UNKNOWN`"""
    kinds: NDArray[np.int8]
    """[n, num_ranks], or `UNKNOWN` if there is no row"""
    sizes: Int64Column
    """[n, num_ranks], or `UNKNOWN`"""
    key: Int64Column
    """[n], ascending: sequence number, or position in the step"""
    step: Int64Column
    """[n]: index into the steps of `line_up`, on the lowest rank that has the row, or `NO_STEP`"""
    repeated: tuple[tuple[int, int], ...]
    """ranks and sequence numbers that several of their rows share; none of these rows is in a line"""


def rank_collectives(rank: Rank) -> RankCollectives | None:
    """Return the rank's collectives; ``None`` without a trace."""
    trace = rank.trace
    if trace is None:
        return None
    host = trace.host if trace.host is not None else rank.record.host if rank.record else None
    members = rank.record.group_ranks if rank.record else None
    own_group = ProcessGroup() if not members else ProcessGroup(ranks_in_words(members), len(members), members)
    return RankCollectives(rank.rank, host, trace.epoch_ns, trace.steps, trace.groups, trace.collectives, own_group)


def line_up(ranks: Sequence[RankCollectives]) -> tuple[list[Candidates], tuple[int, ...]]:
    """Return the candidates of every process group with at least two expected ranks, and the numbers of all steps."""
    groups, group_of_rows = common_groups(ranks)
    step_numbers, step_of_rows = _common_steps(ranks)
    found = []
    for index, group in enumerate(groups):
        for by_sequence in (True, False):
            chosen = [
                _keys(rank.collectives, of == index, step, by_sequence)
                for rank, of, step in zip(ranks, group_of_rows, step_of_rows, strict=True)
            ]
            if any(len(key) for key, _ in chosen):
                found.append(_beside_each_other(ranks, group, by_sequence, chosen, step_of_rows))
    return [candidates for candidates in found if len(candidates.ranks) > 1], step_numbers


_Keys = tuple[Int64Column, NDArray[np.int64]]
"""keys of a rank's rows, ascending, and the rows"""


def _keys(comm: Collectives, in_group: NDArray[np.bool_], step: Int64Column, by_sequence: bool) -> _Keys:
    usable = in_group & (comm.kind != CollectiveKind.SEND_RECV) & ((comm.sequence != UNKNOWN) == by_sequence)
    if by_sequence:
        rows = np.flatnonzero(usable)
        rows = rows[np.argsort(comm.sequence[rows], kind="stable")]
        return comm.sequence[rows], rows
    rows = np.flatnonzero(usable & (step != NO_STEP))
    rows = rows[np.lexsort((comm.asked_ns[rows], step[rows]))]
    of_step = step[rows]
    first = np.searchsorted(of_step, of_step)
    return of_step * _PLACES + np.arange(len(rows)) - first, rows


def _beside_each_other(
    ranks: Sequence[RankCollectives],
    group: ProcessGroup,
    by_sequence: bool,
    chosen: Sequence[_Keys],
    step_of_rows: Sequence[Int64Column],
) -> Candidates:
    members = [
        (rank, *keys, step)
        for rank, keys, step in zip(ranks, chosen, step_of_rows, strict=True)
        if (len(keys[0]) if group.ranks is None else rank.rank in group.ranks)
    ]
    lines = np.unique(np.concatenate([np.empty(0, np.int64), *(key for _, key, _, _ in members)]))
    shape = (len(lines), len(members))
    rows, kinds = np.full(shape, UNKNOWN, np.int32), np.full(shape, UNKNOWN, np.int8)
    sizes, steps = np.full(shape, UNKNOWN, np.int64), np.full(len(lines), NO_STEP, np.int64)
    repeated = []
    for column, (rank, key, row, step) in reversed(list(enumerate(members))):
        distinct, count = np.unique(key, return_counts=True)
        repeated += [(rank.rank, number) for number in distinct[count > 1].tolist()]
        alone = ~np.isin(key, distinct[count > 1])
        line, row = np.searchsorted(lines, key[alone]), row[alone]
        rows[line, column] = row
        kinds[line, column] = rank.collectives.kind[row]
        sizes[line, column] = rank.collectives.num_bytes[row]
        steps[line] = step[row]  # the lowest rank comes last, and wins
    return Candidates(
        group=group,
        by_sequence=by_sequence,
        ranks=tuple(rank.rank for rank, *_ in members),
        rows=rows,
        kinds=kinds,
        sizes=sizes,
        key=lines if by_sequence else lines % _PLACES,
        step=steps,
        repeated=tuple(sorted(repeated)),
    )


def common_groups(ranks: Sequence[RankCollectives]) -> tuple[list[ProcessGroup], list[NDArray[np.int32]]]:
    """Return the groups of all ranks under one numbering, and per rank the group of each row.

    Kineto truncates long lists of ranks. Such a group is the only one of its name whose ranks are known, if any.
    """
    ranks_of_name: dict[str | None, set[tuple[int, ...]]] = {}
    contradicted = {group for _, group in contradictions(ranks)}
    for rank in ranks:
        for group in rank.groups:
            if group.name is not None and group.ranks is not None and group not in contradicted:
                ranks_of_name.setdefault(group.name, set()).add(group.ranks)
    numbers: dict[tuple[object, ...], int] = {}
    groups: list[ProcessGroup] = []

    def number_of(group: ProcessGroup) -> int:
        group = ProcessGroup(group.name) if group in contradicted else group
        known = ranks_of_name.get(group.name, set())
        members = next(iter(known)) if group.ranks is None and len(known) == 1 else group.ranks
        size = group.size if members is None else len(members)
        key = (group.name, members) if group.name is not None else (None, members, size)
        if key not in numbers:
            numbers[key] = len(groups)
            groups.append(ProcessGroup(group.name, size, members))
        return numbers[key]

    of_rows = []
    for rank in ranks:
        # `UNKNOWN` finds the last one, which is empty.
        common = [number_of(group) for group in rank.groups] + [number_of(rank.own_group)]
        of_rows.append(np.array(common, np.int32)[rank.collectives.group])
    return groups, of_rows


def contradictions(ranks: Sequence[RankCollectives]) -> list[tuple[int, ProcessGroup]]:
    """Return ranks with collectives of a group that does not list them, so that its list cannot be trusted."""
    return [
        (rank.rank, group)
        for rank in ranks
        for group in rank.groups
        if group.ranks is not None and rank.rank not in group.ranks
    ]


def _common_steps(ranks: Sequence[RankCollectives]) -> tuple[tuple[int, ...], list[Int64Column]]:
    """Return the numbers of all ranks' steps, and per rank which of them each row belongs to, or `NO_STEP`.

    If steps were counted anew in each of the profiler's windows, the window distinguishes them.
    """
    counted_anew = any(len({step.number for step in rank.steps}) < len(rank.steps) for rank in ranks)

    def name(step: Step) -> tuple[int, int]:
        return (step.cycle if counted_anew else 0, step.number)

    names = sorted({name(step) for rank in ranks for step in rank.steps})
    index = {step: position for position, step in enumerate(names)}
    of_rows = []
    for rank in ranks:
        common = np.array([*(index[name(step)] for step in rank.steps), NO_STEP], np.int64)
        of_rows.append(common[rank.collectives.step])
    return tuple(number for _, number in names), of_rows
