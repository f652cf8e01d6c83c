from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from pulses import BEGIN_NS, MS, pulse_of, steps_of, summaries_of

from ddpprof.model.pulse import Pulse
from ddpprof.model.slowdown import SlowdownCause, StepPart
from ddpprof.model.tables import rows_of
from ddpprof.monitor.past_slowdowns import slowdowns_of_run

WAITS = {"backward": 42.0, "wait": 22.0}
SLOW = {"forward": 32.0}


def run(num_steps: int, *slow: range) -> dict[int, Pulse]:
    """Return pulses as they are after a run in which rank 1 was slower in some steps."""
    pulses = {}
    for rank, row in enumerate((WAITS, SLOW)):
        rows: list[dict[str, float]] = [{}] * num_steps
        for span in slow:
            rows[span.start : span.stop] = [row] * len(span)
        steps = steps_of(rows)
        pulses[rank] = pulse_of(rows_of(steps, slice(-2048, None)), rank, summaries=summaries_of(steps))
    return pulses


def test_an_early_slow_down_is_known_from_summaries() -> None:
    (slow,) = slowdowns_of_run(run(6000, range(2000, 2600))).slowdowns
    assert (slow.first_step, slow.last_step, slow.is_coarse) == (2000, 2599, True)
    assert (slow.num_steps, slow.before_ns, slow.after_ns) == (600, 60 * MS, 72 * MS)
    assert (slow.began_ns, slow.ended_ns) == (BEGIN_NS + 2000 * 60 * MS, BEGIN_NS + (2000 * 60 + 600 * 72) * MS)
    assert (slow.cause, slow.ranks, slow.part) == (SlowdownCause.OWN_TIME, (1,), StepPart.FORWARD)
    assert round(slow.growth, 3) == 0.2


def test_a_late_slow_down_is_known_to_the_step() -> None:
    (slow,) = slowdowns_of_run(run(6000, range(5000, 5100))).slowdowns
    assert abs(slow.first_step - 5000) <= 1
    assert not slow.is_coarse


def test_one_that_lasts_to_the_end_began_before_the_last_rows() -> None:
    (slow,) = slowdowns_of_run(run(6000, range(3000, 6000))).slowdowns
    assert (slow.first_step, slow.last_step, slow.is_coarse) == (3000, None, True)


def test_one_that_begins_among_the_first_rows_is_known_from_summaries() -> None:
    (slow,) = slowdowns_of_run(run(6000, range(3970, 6000))).slowdowns
    assert (slow.first_step, slow.last_step, slow.is_coarse) == (4000, None, True)
    (slow,) = slowdowns_of_run(run(6000, range(3990, 5500))).slowdowns
    assert (slow.first_step, slow.last_step, slow.is_coarse) == (4000, 5499, True)


def test_both_are_there_in_order() -> None:
    slowdowns = slowdowns_of_run(run(6000, range(2000, 2600), range(5000, 5100))).slowdowns
    assert [slow.is_coarse for slow in slowdowns] == [True, False]


def test_a_run_without_pulses_has_none() -> None:
    assert slowdowns_of_run({}).slowdowns == ()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_summaries_in_any_order_are_put_in_order(num_ranks: int) -> None:
    """A file may be damaged, or be read while its rank halves the number of its summaries."""
    pulses = dict(islice(run(6000, range(2000, 2600)).items(), num_ranks))
    first = pulses[0].summaries
    damaged = {**pulses, 0: replace(pulses[0], summaries=rows_of(first, slice(None, None, -1)))}
    assert slowdowns_of_run(damaged) == slowdowns_of_run(pulses)
    assert slowdowns_of_run(pulses).slowdowns


def test_ranks_of_which_one_has_lost_its_first_summaries_are_compared_where_both_have_them() -> None:
    pulses = run(6000, range(2000, 2600))
    later = replace(pulses[1], summaries=rows_of(pulses[1].summaries, slice(5, None)))
    (slow,) = slowdowns_of_run({**pulses, 1: later}).slowdowns
    assert (slow.first_step, slow.last_step, slow.cause, slow.ranks) == (2000, 2599, SlowdownCause.OWN_TIME, (1,))
