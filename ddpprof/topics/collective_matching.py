"""Match rows of different ranks that belong to the same collective.

Rows of the same process group with the same sequence number form a *line*, which is a candidate for a match. Without
sequence numbers, rows form a line if they have the same step number and the same position in the launch order of their
step. A line is a match if kind and size agree. Point-to-point sends and receives are excluded, as are rows that have
neither a step number nor a sequence number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ddpprof.model import NO_STEP, UNKNOWN, CollectiveKind, Collectives, Int64Column, ProcessGroup, Rank, Step
from ddpprof.words import ranks_in_words

_PLACES = 1 << 32
"""number above the count of collectives in any step; used to combine the step and the position in it into one key"""


@dataclass(frozen=True, slots=True)
class RankCollectives:
    """Data from one rank's trace that is needed to compare ranks."""

    rank: int
    host: str | None
    epoch_ns: int | None
    """offset to add to the table's times to get ns since 1970, on this rank's clock"""
    steps: tuple[Step, ...]
    groups: tuple[ProcessGroup, ...]
    collectives: Collectives
    own_group: ProcessGroup = field(default_factory=ProcessGroup)
    """group assumed for rows for which the trace names no group, as with gloo: the group in which the rank averages
    gradients, if known
    """


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates of one process group: n lines, with one column per rank. Either all or none have sequence numbers."""

    group: ProcessGroup
    """process group of the collectives; it has no name, size or ranks if the rows name no group"""
    by_sequence: bool
    ranks: tuple[int, ...]
    """ranks of the group whose traces were read"""
    rows: NDArray[np.int32]
    """[n, num_ranks]: row in the rank's table, or `UNKNOWN` if the rank has no such row"""
    kinds: NDArray[np.int8]
    """[n, num_ranks]: `CollectiveKind`, or `UNKNOWN` if the rank has no such row"""
    sizes: Int64Column
    """[n, num_ranks]: size in bytes, or `UNKNOWN`"""
    key: Int64Column
    """[n], ascending: sequence number or, without sequence numbers, position in the step"""
    step: Int64Column
    """[n]: index into the steps returned by `line_up`, on the lowest rank that has the collective, or `NO_STEP`"""
    repeated: tuple[tuple[int, int], ...]
    """(rank, sequence number) pairs that occur in several rows; these rows are not part of any line"""


def rank_collectives(rank: Rank) -> RankCollectives | None:
    """Return the rank's collectives; ``None`` if the rank has no trace."""
    trace = rank.trace
    if trace is None:
        return None
    host = trace.host if trace.host is not None else rank.record.host if rank.record else None
    members = rank.record.group_ranks if rank.record else None
    own_group = ProcessGroup() if not members else ProcessGroup(ranks_in_words(members), len(members), members)
    return RankCollectives(rank.rank, host, trace.epoch_ns, trace.steps, trace.groups, trace.collectives, own_group)


def line_up(ranks: Sequence[RankCollectives]) -> tuple[list[Candidates], tuple[int, ...]]:
    """Return the candidates of every process group with at least two ranks, and the numbers of all steps."""
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
"""keys of the collectives on one rank in ascending order, and the row of each key in the rank's table"""


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
        steps[line] = step[row]  # the lowest rank is processed last, so its step is kept
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
    """Return the process groups of all ranks, and for each rank the index of each row's group.

    Kineto truncates long lists of ranks. The ranks of such a group are taken from another group of the same name with
    known ranks, if there is exactly one.
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
        # `UNKNOWN` (-1) selects the last element, the rank's own group.
        common = [number_of(group) for group in rank.groups] + [number_of(rank.own_group)]
        of_rows.append(np.array(common, np.int32)[rank.collectives.group])
    return groups, of_rows


def contradictions(ranks: Sequence[RankCollectives]) -> list[tuple[int, ProcessGroup]]:
    """Return (rank, group) pairs where the rank calls the group's collectives but is not in its list of ranks."""
    return [
        (rank.rank, group)
        for rank in ranks
        for group in rank.groups
        if group.ranks is not None and rank.rank not in group.ranks
    ]


def _common_steps(ranks: Sequence[RankCollectives]) -> tuple[tuple[int, ...], list[Int64Column]]:
    """Return the numbers of all ranks' steps, and for each rank the index of each row's step, or `NO_STEP`.

    If step numbers restart in each profiler cycle, steps are distinguished by their cycle.
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


@dataclass(frozen=True, slots=True)
class MatchedCollectives:
    """One line per collective that was recorded on at least two ranks."""

    ranks: tuple[int, ...]
    rows: NDArray[np.int32]
    """[n, num_ranks]: row in the rank's table; `UNKNOWN` if the rank is not in the group, or if its trace lacks the
    collective
    """
    kind: NDArray[np.int8]
    """[n]: value of `CollectiveKind`"""
    step: Int64Column
    """[n]: number of the step on the lowest rank that has the collective, or `UNKNOWN`"""
    mismatches: tuple[str, ...]
    """sentences for the report about collectives that differ between ranks"""

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, ranks: Sequence[RankCollectives], column: Callable[[RankCollectives], Int64Column]) -> Int64Column:
        """Return an array of shape (n, num_ranks) with the column's values; 0 where ``rows`` is `UNKNOWN`."""
        by_number = {rank.rank: rank for rank in ranks}
        values = np.zeros(self.rows.shape, np.int64)
        for index, number in enumerate(self.ranks):
            known = self.rows[:, index] != UNKNOWN
            values[known, index] = column(by_number[number])[self.rows[known, index]]
        return values


def match_collectives(ranks: Sequence[RankCollectives]) -> MatchedCollectives:
    """Match the collectives of `ranks`. The ranks of the result are in ascending order."""
    ranks = sorted(ranks, key=lambda rank: rank.rank)
    numbers = tuple(rank.rank for rank in ranks)
    candidates, step_numbers = line_up(ranks)
    named_steps = np.array([*step_numbers, UNKNOWN], np.int64)  # NO_STEP (-1) selects the last element
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
    """Return a boolean array of shape (n,): True for each line whose rows belong to the same collective."""
    known = lines.rows != UNKNOWN
    same: NDArray[np.bool_]
    if lines.by_sequence:
        repeated = np.isin(lines.key, [number for _, number in lines.repeated])
        same = ~differs(lines) & ~repeated & (known.sum(axis=1) > 1)
    else:
        bad = differs(lines) | ~known.all(axis=1)
        same = ~np.isin(lines.step, lines.step[bad])
    return same


_SIZED_BY_RANK = (CollectiveKind.ALL_TO_ALL, CollectiveKind.GATHER, CollectiveKind.SCATTER)
"""kinds of collectives whose size may differ between ranks"""

_MOST_RANKS_NAMED = 4


def differs(lines: Candidates) -> NDArray[np.bool_]:
    """Return a boolean array of shape (n,): True for each line whose rows differ in kind or in known size."""
    return _varies(lines.kinds) | (_varies(lines.sizes) & ~np.isin(lines.kinds.max(axis=1), _SIZED_BY_RANK))


def describe_mismatches(lines: Candidates, step_numbers: Sequence[int]) -> list[str]:
    """Return a sentence for each line whose rows differ.

    `step_numbers`: numbers of the steps that the lines refer to.
    """
    told = _by_sequence(lines) if lines.by_sequence else _by_step(lines)
    return [f"{_where(lines, first, step_numbers)}: {text}" for first, text in told]


def describe_contradictions(found: Sequence[tuple[int, ProcessGroup]]) -> list[str]:
    """Return a sentence for each group whose list of ranks lacks a rank that calls its collectives."""
    ranks: dict[ProcessGroup, list[int]] = {}
    for rank, group in found:
        ranks.setdefault(group, []).append(rank)
    return [
        f"{'a process group' if group.name is None else f'process group {group.name}'} lists "
        f"{_ranks(group.ranks or ())}, but {_ranks(members)} also called its collectives, so the list is not used"
        for group, members in ranks.items()
    ]


def _varies(values: NDArray[np.int64] | NDArray[np.int8]) -> NDArray[np.bool_]:
    """Return a boolean array of shape (n,): True for each line with different known values."""
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
        text = f"rank {rank} uses this number more than once{_and_more(len(lines.repeated), 'number')}"
        told.append((int(np.searchsorted(lines.key, number)), text))
    odd = np.flatnonzero(differs(lines))
    if len(odd):
        told.append((int(odd[0]), _what_differs(lines, int(odd[0])) + _and_more(len(odd), "collective")))
    again = np.isin(lines.key, [number for _, number in lines.repeated])
    lacking = np.flatnonzero((lines.rows == UNKNOWN).any(axis=1) & ~again)
    if len(lacking):
        row = lines.rows[lacking[0]]
        absent = [rank for rank, index in zip(lines.ranks, row.tolist(), strict=True) if index == UNKNOWN]
        text = f"missing from the trace of {_ranks(absent)}{_and_more(len(lacking), 'collective')}"
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
    """Return a clause that names an unusual value and its ranks, and the most common value and its ranks."""
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
