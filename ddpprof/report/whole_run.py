"""How did the whole training go, and not only its recorded steps? From the pulses of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpprof.model.hang import Verdict
from ddpprof.model.slowdown import Pause, Slowdowns, StepSlowdown
from ddpprof.model.whole_run import RankWholeRun, Stretch


@dataclass(frozen=True, slots=True)
class WholeRun:
    """The whole training, from the first step that ranks noted in their pulses."""

    num_steps: int
    """number of steps that the rank furthest ahead has finished, with those before the first noted one"""
    first_step: int
    """number of the first noted step"""
    duration_ns: int
    """from the begin of the notes to their end"""
    ranks: tuple[RankWholeRun, ...]
    """ranks with a pulse; only the first one with steps has its course over time, as DDP keeps the ranks in step"""
    slowdowns: tuple[StepSlowdown, ...] = ()
    """times in which steps took longer, without a known pause, in order"""
    pauses: tuple[Pause, ...] = ()
    """what checkpoints, evaluation, recording and new epochs took"""
    hang: Verdict | None = None
    """last verdict on a hang of the job"""
    captures: tuple[int, ...] = ()
    """numbers of the runs, such as ``capture-1``, that ``ddpprof capture`` asked for"""

    @property
    def shown(self) -> RankWholeRun | None:
        """Return the rank whose steps stand for those of the job; ``None`` if no step was noted."""
        return next((one for one in self.ranks if one.whole is not None), None)

    @property
    def steps(self) -> Stretch | None:
        """Return all noted steps of that rank as one stretch."""
        return self.shown.whole if self.shown is not None else None


def summarise_whole_run(
    ranks: Sequence[RankWholeRun],
    found: Slowdowns | None = None,
    hang: Verdict | None = None,
    captures: tuple[int, ...] = (),
) -> WholeRun | None:
    """Return the whole training; ``None`` if no rank left a pulse."""
    if not ranks:
        return None
    begin_ns, end_ns = min(one.created_ns for one in ranks), max(one.last_ns for one in ranks)
    return WholeRun(
        num_steps=max(one.num_steps for one in ranks),
        first_step=min(one.first_step for one in ranks),
        duration_ns=max(end_ns - begin_ns, 0),
        ranks=tuple(ranks),
        slowdowns=() if found is None else tuple(found.slowdowns),
        pauses=() if found is None else tuple(found.pauses),
        hang=hang,
        captures=captures,
    )
