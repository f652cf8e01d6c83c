"""How did the length of steps develop over a whole training?

A pulse has every one of the last steps, and summaries of hundreds of steps from the first on. `history` joins both into
one table, in which each step counts once: summaries until the first kept step, then rows of one step each.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from ddpprof.model.pulse import Pulse, PulseSteps, PulseSummaries
from ddpprof.model.tables import UNKNOWN, Int64Column, rows_of
from ddpprof.model.whole_run import Stretch

_LATEST_NS = 1 << 62
_MOST_STEPS = 10**9


def history(pulse: Pulse) -> PulseSummaries:
    """Return rows for all noted steps, in their order."""
    steps, summaries = pulse.steps, _sound(pulse.summaries)
    first_kept = int(steps.number[0]) if len(steps) else np.iinfo(np.int64).max
    before = rows_of(summaries, summaries.first_step < first_kept)
    until = int(before.first_step[-1] + before.num_steps[-1]) if len(before) else 0
    after = _sound(rows_of_single_steps(rows_of(steps.with_all_waiting(), steps.number >= until)))
    columns = [[getattr(one, field.name) for one in (before, after)] for field in fields(PulseSummaries)]
    return PulseSummaries(*map(np.concatenate, columns))


def _sound(rows: PulseSummaries) -> PulseSummaries:
    """Leave out rows with numbers that no training has, which a damaged file may hold."""
    times_are = (rows.start_ns >= 0) & (rows.start_ns <= rows.end_ns) & (rows.end_ns < _LATEST_NS)
    lengths_are = (rows.median_ns >= 0) & (rows.median_ns <= rows.longest_ns) & (rows.longest_ns < _LATEST_NS)
    counts_are = (rows.num_steps > 0) & (rows.num_steps < _MOST_STEPS) & (np.abs(rows.first_step) < _LATEST_NS)
    flags_are = (rows.num_flagged >= 0) & (rows.num_flagged <= rows.num_steps)
    return rows_of(rows, times_are & lengths_are & counts_are & flags_are)


def rows_of_single_steps(steps: PulseSteps) -> PulseSummaries:
    """Return a row for each step."""
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
    """Return up to `most` stretches of about equally many steps, in their order."""
    if not len(rows):
        return ()
    part = _parts(rows, most)
    return tuple(stretch_of(rows_of(rows, part == number)) for number in np.unique(part))


def own_times(rows: PulseSummaries, most: int) -> tuple[int, ...]:
    """Return the median time per step, ns, that the rank needed by itself in each of `most` stretches.

    Return none if there are fewer, or if nothing is known of its waiting in one of them.
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
    """Return which of up to `most` stretches of about equally many steps each row belongs to."""
    until = np.cumsum(rows.num_steps)
    middle = until - rows.num_steps / 2
    part: Int64Column = np.minimum(middle * most // until[-1], most - 1).astype(np.int64)
    return part


def stretch_of(rows: PulseSummaries) -> Stretch:
    """Return one or more rows as one stretch."""
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
    """Return the median length of the steps without a `StepFlag`, or of all if every step has one."""
    usual = np.maximum(rows.num_steps - rows.num_flagged, 0)
    return weighted_median(rows.median_ns, usual if usual.any() else rows.num_steps)


def weighted_median(values: Int64Column, weights: Int64Column) -> int:
    order = np.argsort(values, kind="stable")
    until = np.cumsum(weights[order])
    return int(values[order][np.searchsorted(until, until[-1] / 2)])


def _mean(values: Int64Column, weights: Int64Column) -> int:
    return round(float(np.average(values.astype(np.float64), weights=weights)))
