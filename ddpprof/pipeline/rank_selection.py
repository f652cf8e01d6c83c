"""Selection of the ranks to read; the report says which are not read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddpprof.errors import DdpprofError
from ddpprof.load.rank import RankFiles, record_or_none
from ddpprof.model import StepMode
from ddpprof.pipeline.numbers import Numbers
from ddpprof.topics.ranks.own_time import StepProgress, measure_recorded_progress
from ddpprof.topics.ranks.stragglers import find_stragglers
from ddpprof.words import ranks_in_words


@dataclass(frozen=True, slots=True)
class Selection:
    ranks: tuple[RankFiles, ...]
    left_out: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    """what is not read, in words for the report"""


def select_ranks(files: Sequence[RankFiles], ranks: Numbers | None, sample: int | None) -> Selection:
    """Select the ranks with these numbers (``None``: all), at most `sample`. Raises `DdpprofError` if none is left."""
    if ranks is not None and any(one.rank is None for one in files):
        raise DdpprofError("--only-ranks chooses among the ranks of a run or a folder, but this is one trace.")
    wanted = [one for one in files if ranks is None or one.rank in ranks]
    there = Numbers.of(one.rank for one in files if one.rank is not None)
    if files and not wanted:
        raise DdpprofError(f"no such rank: the run has {there}.")
    lacking = ranks.without(one.rank for one in files if one.rank is not None) if ranks and there else Numbers(())
    notes = (f"{_ranks(lacking)} requested, but the run has {there}",) if lacking else ()
    late: list[int] = []
    if sample is not None and sample < len(wanted):
        late = _suspects(wanted)[: max(1, sample // 2)]
        wanted = _sampled(wanted, late, sample)
    if len(wanted) == len(files):
        return Selection(tuple(files), notes=notes)
    how = "" if sample is None else f", of which {_named(late)} in the light record" if late else ", evenly chosen"
    left_out = frozenset(one.rank for one in files if one not in wanted and one.rank is not None)
    note = f"only {len(wanted)} of {len(files)} ranks {'was' if len(wanted) == 1 else 'were'} read, as requested{how}"
    return Selection(tuple(wanted), left_out, (note, *notes))


def _ranks(numbers: Numbers) -> str:
    return f"ranks {numbers} were" if numbers.are_several else f"rank {numbers} was"


def _named(late: Sequence[int]) -> str:
    return f"{ranks_in_words(late)} {'are' if len(late) > 1 else 'is'} late"


def _sampled(files: Sequence[RankFiles], late: Sequence[int], sample: int) -> list[RankFiles]:
    """Return the late ranks, and others at even distances, including the first and the last."""
    others = [one for one in files if one.rank not in late]
    number = sample - len(late)
    last = len(others) - 1
    even = {round(place * last / max(1, number - 1)) for place in range(number)}
    chosen = {*late, *(others[place].rank for place in even)}
    return [one for one in files if one.rank in chosen]


def _suspects(files: Iterable[RankFiles]) -> list[int]:
    """Return the ranks that the others wait for according to the light recorder, the latest first."""
    progress = {one.rank: _progress(one) for one in files if one.rank is not None}
    found = find_stragglers({rank: rows for rank, rows in progress.items() if rows})
    return [one.rank for one in found.stragglers] if found is not None else []


def _progress(files: RankFiles) -> list[StepProgress]:
    """Return the rank's light steps; on an accelerator the host's times are only a hint."""
    record = record_or_none(files)
    steps = [step for step in record.steps if step.mode is StepMode.LIGHT] if record is not None else []
    return [row for step in steps if (row := measure_recorded_progress(step)) is not None]
