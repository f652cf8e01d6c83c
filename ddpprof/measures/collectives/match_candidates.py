"""Which rows of different ranks could be the same collective? Each process group's, side by side, not yet compared.

Two rows stand in one line if they are of one process group and have the same sequence number; where the trace has
none, if they have the same place in the order of launch within a step of the same number. Sends and receives are
between two ranks and are left out, as are rows that have neither step nor sequence number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddpprof.model import (
    NO_STEP,
    UNKNOWN,
    CollectiveKind,
    Collectives,
    Int64Column,
    ProcessGroup,
    Rank,
    Step,
)

_PLACES = 1 << 32
"""More than a step has collectives."""


@dataclass(frozen=True, slots=True)
class RankCollectives:
    """What the measures across ranks need of one rank: kilobytes, not its trace."""

    rank: int
    host: str | None
    epoch_ns: int | None
    """what to add to times of the table to get nanoseconds since 1970 by this rank's clock"""
    steps: tuple[Step, ...]
    groups: tuple[ProcessGroup, ...]
    collectives: Collectives


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows of one process group, all with sequence numbers or all without: n lines, a column for each rank."""

    group: ProcessGroup
    """one without name, size and ranks stands for rows that do not say their group"""
    by_sequence: bool
    ranks: tuple[int, ...]
    """those that should have such rows and were read"""
    rows: NDArray[np.int32]
    """[n, num_ranks], or `UNKNOWN`"""
    kinds: NDArray[np.int8]
    """[n, num_ranks], or `UNKNOWN` where there is no row"""
    sizes: Int64Column
    """[n, num_ranks], or `UNKNOWN`"""
    key: Int64Column
    """[n], ascending: sequence number, or place in the step"""
    step: Int64Column
    """[n]: index into the steps of `line_up`, on the lowest rank that has the row, or `NO_STEP`"""
    repeated: tuple[tuple[int, int], ...]
    """rank and sequence number that more than one of its rows has: none of them is in a line"""


def rank_collectives(rank: Rank) -> RankCollectives | None:
    """``None`` without a trace."""
    trace = rank.trace
    if trace is None:
        return None
    host = trace.host if trace.host is not None else rank.record.host if rank.record else None
    return RankCollectives(rank.rank, host, trace.epoch_ns, trace.steps, trace.groups, trace.collectives)


def line_up(ranks: Sequence[RankCollectives]) -> tuple[list[Candidates], tuple[int, ...]]:
    """The candidates of every process group that two ranks or more should have, and the numbers of all steps."""
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
"""Keys of a rank's rows, ascending, and the rows."""


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
        steps[line] = step[row]  # the lowest rank comes last, and stays
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
    """The groups of all ranks under one numbering, and per rank the group of each row.

    Kineto cuts long lists of ranks off. Then the group is the only one of its name whose ranks are known, if any.
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
        # `UNKNOWN` finds the last one, which says nothing.
        common = [number_of(group) for group in rank.groups] + [number_of(ProcessGroup())]
        of_rows.append(np.array(common, np.int32)[rank.collectives.group])
    return groups, of_rows


def contradictions(ranks: Sequence[RankCollectives]) -> list[tuple[int, ProcessGroup]]:
    """Ranks with collectives of a group that does not list them: its list is not to be trusted."""
    return [
        (rank.rank, group)
        for rank in ranks
        for group in rank.groups
        if group.ranks is not None and rank.rank not in group.ranks
    ]


def _common_steps(ranks: Sequence[RankCollectives]) -> tuple[tuple[int, ...], list[Int64Column]]:
    """The numbers of all ranks' steps, and per rank which of them each row belongs to, or `NO_STEP`.

    Where steps were counted anew in each of the profiler's windows, the window tells them apart.
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
