"""Sums up a whole training in few numbers, from the pulses of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ddpprof.model.hang import Verdict
from ddpprof.model.pulse import Ended, Pulse, PulseState, PulseSteps, PulseSummaries, StepFlag, activity_word
from ddpprof.model.slowdown import Slowdowns
from ddpprof.model.tables import UNKNOWN, rows_of
from ddpprof.model.whole_run import CurvePoint, LongStep, NonfiniteSteps, RankWholeRun, WholeRun
from ddpprof.monitor.history import history, own_times, stretch_of, stretches

_NUM_STRETCHES = 10
_MOST_POINTS = 200
_MOST_LONG_STEPS = 5
_ENDS: Mapping[int, str] = {
    Ended.FINISHED: "finished",
    Ended.FAILED: "failed",
    Ended.INTERRUPTED: "interrupted",
    Ended.UNWATCHED: "unwatched",
}
_FLAGS = {
    StepFlag.RECORDED: "recorded",
    StepFlag.SAVED: "saved",
    StepFlag.EVALUATED: "evaluated",
    StepFlag.BEGAN_EPOCH: "began an epoch",
}


def whole_run_of_rank(rank: int, pulse: Pulse, *, with_course: bool = True) -> RankWholeRun:
    """Return the rank's training in few numbers. Without its course over time, only what is needed to compare ranks."""
    state, rows = pulse.state, history(pulse)
    sampled = pulse.samples.memory_bytes
    first_sample = sampled[:1] if state.num_samples == len(sampled) else sampled[:0]  # unless it has been overwritten
    memory = np.concatenate((first_sample, rows.memory_bytes, sampled))
    queued = rows_of(pulse.samples, pulse.samples.queued_ns != UNKNOWN)
    return RankWholeRun(
        rank=rank,
        host=pulse.identity.host,
        created_ns=pulse.identity.created_ns,
        first_step=pulse.identity.first_step,
        num_steps=max(state.step, 0),
        last_ns=state.last_ns,
        ended=_ENDS.get(state.ended),
        activity=activity_word(state.activity) or "unknown",
        activity_since_ns=state.since_ns,
        whole=stretch_of(rows) if len(rows) else None,
        stretches=stretches(rows, _NUM_STRETCHES) if with_course else (),
        curve=_curve(rows) if with_course else (),
        longest=_longest(pulse.steps) if with_course else (),
        first_memory_bytes=next((int(one) for one in memory if one != UNKNOWN), None),
        last_memory_bytes=next((int(one) for one in sampled[::-1] if one != UNKNOWN), None),
        memory_growth_bytes=_memory_growth(pulse, rows),
        own_ns_of_stretches=own_times(rows, _NUM_STRETCHES),
        num_unpaired=max(state.num_unpaired, 0),
        unpaired_step=state.unpaired_step if state.num_unpaired > 0 else None,
        num_passes=max(state.num_passes, 0),
        nonfinite=nonfinite_steps(state),
        queued_ns=int(queued.queued_ns[-1]) - int(queued.queued_ns[0]) if len(queued) > 1 else None,
        sampled_ns=int(queued.at_ns[-1]) - int(queued.at_ns[0]) if len(queued) > 1 else 0,
    )


def _memory_growth(pulse: Pulse, rows: PulseSummaries) -> int | None:
    """Add what each sample has more than the one before, except what ddpprof took while it recorded a step.

    Summaries stand for samples that have been overwritten. They do not tell which of their steps were recorded: the
    first one may have those with which most runs begin.
    """
    samples = rows_of(pulse.samples, pulse.samples.memory_bytes != UNKNOWN)
    until_ns = samples.at_ns[0] if len(samples) else np.iinfo(np.int64).max
    before = rows_of(rows, (rows.memory_bytes != UNKNOWN) & (rows.end_ns < until_ns))
    at_ns = np.concatenate((before.end_ns, samples.at_ns))
    memory_bytes = np.concatenate((before.memory_bytes, samples.memory_bytes))
    if len(at_ns) < 2:
        return None
    steps = rows_of(pulse.steps, pulse.steps.flags & StepFlag.RECORDED != 0)
    first = rows_of(rows, slice(0, 1))
    first = rows_of(first, (first.num_steps > 1) & (first.num_flagged > 0))
    begins_ns = np.concatenate((first.start_ns, steps.start_ns))
    ends_ns = np.concatenate((first.end_ns, steps.start_ns + steps.length_ns))
    is_between = np.searchsorted(begins_ns, at_ns[1:]) == np.searchsorted(ends_ns, at_ns[:-1])
    growth = held = 0
    for more, counts in zip(np.diff(memory_bytes).tolist(), is_between.tolist(), strict=True):
        if not counts:
            held += more
        else:  # what recording took may be given back later
            released = max(0, min(held, -more))
            held -= released
            growth += more + released
    return growth


def whole_run(
    ranks: Sequence[RankWholeRun], found: Slowdowns, hang: Verdict | None, captures: tuple[int, ...]
) -> WholeRun:
    """Return the whole training of all ranks that left a pulse, of which there is at least one."""
    begin_ns, end_ns = min(one.created_ns for one in ranks), max(one.last_ns for one in ranks)
    return WholeRun(
        num_steps=max(one.num_steps for one in ranks),
        first_step=min(one.first_step for one in ranks),
        duration_ns=max(end_ns - begin_ns, 0),
        ranks=tuple(ranks),
        slowdowns=tuple(found.slowdowns),
        pauses=tuple(found.pauses),
        hang=hang,
        captures=captures,
    )


def nonfinite_steps(state: PulseState) -> NonfiniteSteps | None:
    """Return the steps whose loss was NaN or infinite; ``None`` if there are none."""
    if state.num_nonfinite <= 0:
        return None
    return NonfiniteSteps(
        first_step=state.nonfinite_step,
        num_steps=state.num_nonfinite,
        follows_finite=UNKNOWN != state.finite_step >= state.nonfinite_step - 1,
    )


def _curve(rows: PulseSummaries) -> tuple[CurvePoint, ...]:
    return tuple(
        CurvePoint(one.start_ns, one.first_step, one.num_steps, one.median_ns, one.longest_ns)
        for one in stretches(rows, _MOST_POINTS)
    )


def _longest(steps: PulseSteps) -> tuple[LongStep, ...]:
    chosen = rows_of(steps, np.argsort(-steps.length_ns, kind="stable")[:_MOST_LONG_STEPS])
    columns = (chosen.number, chosen.start_ns, chosen.length_ns, chosen.flags)
    return tuple(
        LongStep(number, start_ns, length_ns, tuple(word for flag, word in _FLAGS.items() if flags & flag))
        for number, start_ns, length_ns, flags in zip(*(column.tolist() for column in columns), strict=True)
    )
