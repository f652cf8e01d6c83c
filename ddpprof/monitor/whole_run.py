"""Summarize a whole training run: step times and memory over the run, and how each rank ended.

A pulse contains the most recent steps one by one, and summaries of hundreds of steps from the first step on. `history`
joins summaries and steps into one table that contains each step once: first the summaries, then one row per recent
step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np

from ddpprof.model.hang import Verdict
from ddpprof.model.pulse import (
    Ended,
    Pulse,
    PulseSamples,
    PulseState,
    PulseSteps,
    PulseSummaries,
    StepFlag,
    activity_word,
)
from ddpprof.model.tables import UNKNOWN, Int64Column, rows_of
from ddpprof.model.whole_run import (
    CurvePoint,
    LongStep,
    MemoryGrowth,
    NonfiniteSteps,
    RankWholeRun,
    Slowdowns,
    Stretch,
    WholeRun,
    share_of_rises,
)

_LATEST_NS = 1 << 62
_MOST_STEPS = 10**9


def history(pulse: Pulse) -> PulseSummaries:
    """Return the summaries and the individual steps of a pulse as one table, in order."""
    steps, summaries = pulse.steps, _sound(pulse.summaries)
    first_kept = int(steps.number[0]) if len(steps) else np.iinfo(np.int64).max
    before = rows_of(summaries, summaries.first_step < first_kept)
    until = int(before.first_step[-1] + before.num_steps[-1]) if len(before) else 0
    after = _sound(rows_of_single_steps(rows_of(steps.with_all_waiting(), steps.number >= until)))
    columns = [[getattr(one, field.name) for one in (before, after)] for field in fields(PulseSummaries)]
    return PulseSummaries(*map(np.concatenate, columns))


def _sound(rows: PulseSummaries) -> PulseSummaries:
    """Drop rows with impossible values. A damaged file may contain such rows."""
    times_are = (rows.start_ns >= 0) & (rows.start_ns <= rows.end_ns) & (rows.end_ns < _LATEST_NS)
    lengths_are = (rows.median_ns >= 0) & (rows.median_ns <= rows.longest_ns) & (rows.longest_ns < _LATEST_NS)
    counts_are = (rows.num_steps > 0) & (rows.num_steps < _MOST_STEPS) & (np.abs(rows.first_step) < _LATEST_NS)
    flags_are = (rows.num_flagged >= 0) & (rows.num_flagged <= rows.num_steps)
    return rows_of(rows, times_are & lengths_are & counts_are & flags_are)


def rows_of_single_steps(steps: PulseSteps) -> PulseSummaries:
    """Convert steps to summaries of one step each."""
    return PulseSummaries(
        first_step=steps.number,
        num_steps=np.ones(len(steps), np.int64),
        start_ns=steps.start_ns,
        end_ns=steps.start_ns + steps.length_ns,
        median_ns=steps.length_ns,
        longest_ns=steps.length_ns,
        data_ns=steps.data_ns,
        forward_ns=steps.forward_ns,
        backward_ns=steps.backward_ns,
        optimizer_ns=steps.optimizer_ns,
        wait_ns=steps.wait_ns,
        memory_bytes=np.full(len(steps), UNKNOWN),
        num_flagged=(steps.flags != 0).astype(np.int64),
    )


def stretches(rows: PulseSummaries, most: int) -> tuple[Stretch, ...]:
    """Divide a run into up to `most` ranges of steps, with about the same number of steps each."""
    if not len(rows):
        return ()
    part = _parts(rows, most)
    return tuple(stretch_of(rows_of(rows, part == number)) for number in np.unique(part))


def own_times(rows: PulseSummaries, most: int) -> tuple[int, ...]:
    """Return the rank's median own time per step, in ns, in each of `most` ranges of steps.

    The result is empty if there are fewer ranges, or if the rank's waiting time is unknown in any range.
    """
    if not len(rows):
        return ()
    part, waits = _parts(rows, most), rows.wait_ns != UNKNOWN
    if len(np.unique(part[waits])) < most:
        return ()
    own_ns = (rows.end_ns - rows.start_ns) // rows.num_steps - rows.wait_ns
    of_each = (waits & (part == number) for number in range(most))
    return tuple(weighted_median(own_ns[mine], rows.num_steps[mine]) for mine in of_each)


def _parts(rows: PulseSummaries, most: int) -> Int64Column:
    """Return, for each row, the index of its range of steps.

    There are at most `most` ranges, each with about the same number of steps.
    """
    until = np.cumsum(rows.num_steps)
    middle = until - rows.num_steps / 2
    part: Int64Column = np.minimum(middle * most // until[-1], most - 1).astype(np.int64)
    return part


def stretch_of(rows: PulseSummaries) -> Stretch:
    """Merge one or more rows into a `Stretch`."""
    weights = rows.num_steps
    waits = rows.wait_ns != UNKNOWN
    return Stretch(
        first_step=int(rows.first_step[0]),
        num_steps=int(weights.sum()),
        start_ns=int(rows.start_ns[0]),
        end_ns=int(rows.end_ns[-1]),
        median_ns=usual_length_ns(rows),
        longest_ns=int(rows.longest_ns.max()),
        data_ns=_mean(rows.data_ns, weights),
        forward_ns=_mean(rows.forward_ns, weights),
        backward_ns=_mean(rows.backward_ns, weights),
        optimizer_ns=_mean(rows.optimizer_ns, weights),
        wait_ns=_mean(rows.wait_ns[waits], weights[waits]) if waits.any() else None,
        memory_bytes=int(known[-1]) if len(known := rows.memory_bytes[rows.memory_bytes != UNKNOWN]) else None,
        num_flagged=int(rows.num_flagged.sum()),
    )


def usual_length_ns(rows: PulseSummaries) -> int:
    """Return the median length of the steps without a `StepFlag`, or of all steps if every step has a flag, in ns."""
    usual = np.maximum(rows.num_steps - rows.num_flagged, 0)
    return weighted_median(rows.median_ns, usual if usual.any() else rows.num_steps)


def weighted_median(values: Int64Column, weights: Int64Column) -> int:
    order = np.argsort(values, kind="stable")
    until = np.cumsum(weights[order])
    return int(values[order][np.searchsorted(until, until[-1] / 2)])


def _mean(values: Int64Column, weights: Int64Column) -> int:
    return round(float(np.average(values.astype(np.float64), weights=weights)))


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
    StepFlag.COMPILED: "compiled",
}


def whole_run_of_rank(rank: int, pulse: Pulse, *, with_course: bool = True) -> RankWholeRun:
    """Return a summary of the rank's training. `with_course`: include its stretches, curve and longest steps."""
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
        steady_growth=steady_growth(pulse.samples),
        own_ns_of_stretches=own_times(rows, _NUM_STRETCHES),
        num_unpaired=max(state.num_unpaired, 0),
        unpaired_step=state.unpaired_step if state.num_unpaired > 0 else None,
        num_passes=max(state.num_passes, 0),
        nonfinite=nonfinite_steps(state),
        queued_ns=int(queued.queued_ns[-1]) - int(queued.queued_ns[0]) if len(queued) > 1 else None,
        sampled_ns=int(queued.at_ns[-1]) - int(queued.at_ns[0]) if len(queued) > 1 else 0,
        cpu_ns=_cpu_ns(queued),
    )


def _cpu_ns(samples: PulseSamples) -> int | None:
    if len(samples) < 2 or UNKNOWN in (samples.cpu_ns[0], samples.cpu_ns[-1]):
        return None
    return int(samples.cpu_ns[-1]) - int(samples.cpu_ns[0])


def _memory_growth(pulse: Pulse, rows: PulseSummaries) -> int | None:
    """Return the growth of memory in bytes, without memory that was allocated while ddpprof recorded steps.

    Summaries replace samples that have been overwritten, but do not show which of their steps were recorded. If steps
    in the first summary have a flag, the summary counts as recorded, because most runs record some of their first
    steps.
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
        else:  # memory used by recording may be freed later
            released = max(0, min(held, -more))
            held -= released
            growth += more + released
    return growth


def steady_growth(samples: PulseSamples) -> MemoryGrowth | None:
    """Return the growth of a process's memory; ``None`` if it does not grow steadily, or by little.

    The first tenth of the samples is left out, because memory usually grows in the first steps.
    """
    samples = rows_of(samples, samples.memory_bytes != UNKNOWN)
    if len(samples) < _LEAST_SAMPLES:
        return None
    medians = [float(np.median(part)) for part in np.array_split(samples.memory_bytes, 10)[1:]]
    first, last = medians[0], medians[-1]
    if share_of_rises(medians) < _NEARLY_ALL or last - first < max(_MUCH_MEMORY, _MUCH_GROWTH * first):
        return None
    return MemoryGrowth(round(first), round(last), int(samples.at_ns[-1] - samples.at_ns[0]))


_LEAST_SAMPLES = 20
_NEARLY_ALL = 0.95
"""memory grows steadily if the later one of two parts has more of it in at least this share of all pairs of parts"""
_MUCH_MEMORY = 200 * 10**6
_MUCH_GROWTH = 0.3
"""growing memory is reported if it grows by at least this many bytes, and by this fraction"""


def whole_run(
    ranks: Sequence[RankWholeRun], found: Slowdowns, hang: Verdict | None, captures: tuple[int, ...]
) -> WholeRun:
    """Return a summary of the whole run from the summaries of its ranks. `ranks` must not be empty."""
    begin_ns, end_ns = min(one.created_ns for one in ranks), max(one.last_ns for one in ranks)
    return WholeRun(
        num_steps=max(one.num_steps for one in ranks),
        first_step=min(one.first_step for one in ranks),
        duration_ns=max(end_ns - begin_ns, 0),
        ranks=tuple(ranks),
        slowdowns=tuple(found.slowdowns),
        pauses=tuple(found.pauses),
        uneven=found.uneven,
        hang=hang,
        captures=captures,
    )


def nonfinite_steps(state: PulseState) -> NonfiniteSteps | None:
    """Return the steps with a NaN or infinite loss; ``None`` if there are none."""
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
