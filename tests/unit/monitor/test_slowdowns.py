from __future__ import annotations

import pytest
from pulses import BEGIN_NS, MS, pulse_of, steps_of, with_noise

from ddpprof.model.pulse import Pulse, PulseSteps, StepFlag
from ddpprof.model.slowdown import SlowdownCause, StepPart
from ddpprof.model.tables import rows_of
from ddpprof.monitor import slowdowns
from ddpprof.monitor.causes import Reason
from ddpprof.monitor.job_steps import common_steps
from ddpprof.monitor.level_shifts import LevelShift
from ddpprof.monitor.slowdowns import SlowdownWatch, slowdown_of

WAITS = {"backward": 42.0, "wait": 22.0}
SLOW = {"forward": 32.0}


def job(num_normal: int, num_slow: int, num_after: int = 0) -> tuple[PulseSteps, PulseSteps]:
    """Return the steps of two ranks, of which rank 1 is slower for a time."""
    return tuple(
        steps_of(with_noise([{}] * num_normal + [slow] * num_slow + [{}] * num_after)) for slow in (WAITS, SLOW)
    )  # type: ignore[return-value]


def pulses(steps: tuple[PulseSteps, PulseSteps], until: int) -> dict[int, Pulse]:
    return {rank: pulse_of(rows_of(one, slice(max(0, until - 2048), until)), rank) for rank, one in enumerate(steps)}


def test_a_slow_rank_is_found_while_it_is_slow() -> None:
    steps = job(300, 30)
    watch = SlowdownWatch()
    for until in range(10, 331, 10):
        watch.update(pulses(steps, until))
    (slow,) = watch.slowdowns
    assert abs(slow.first_step - 300) <= 1
    assert (slow.last_step, slow.cause, slow.ranks, slow.part) == (None, SlowdownCause.OWN_TIME, (1,), StepPart.FORWARD)
    assert abs(slow.growth - 0.2) < 0.01
    assert slow.began_ns is not None
    assert abs(slow.began_ns - BEGIN_NS - 300 * 60.5 * MS) < 200 * MS


def test_a_slow_down_that_is_over_stays_as_it_is() -> None:
    steps = job(300, 100, 2500)
    watch = SlowdownWatch()
    watch.update(pulses(steps, 500))
    (known,) = watch.slowdowns
    assert known.last_step is not None
    assert known.ended_ns is not None
    for until in range(510, 2900, 100):
        watch.update(pulses(steps, until))
    assert watch.slowdowns == (known,)


def test_a_slow_down_that_was_hardly_one_is_withdrawn() -> None:
    rows = [{}] * 300 + [{"forward": 26.0}] * 35 + [{"forward": 22.2}] * 200 + [{}] * 200
    watch, found = SlowdownWatch(), []
    for until in range(10, 740, 10):
        watch.update({0: pulse_of(rows_of(steps_of(with_noise(rows)), slice(0, until)), 0)})
        found.append(len(watch.slowdowns))
    assert max(found) == 1
    assert watch.slowdowns == ()


def test_the_normal_steps_may_have_left_the_ring() -> None:
    steps = job(300, 2600)
    watch = SlowdownWatch()
    for until in range(100, 2900, 100):
        watch.update(pulses(steps, until))
    (slow,) = watch.slowdowns
    assert (slow.cause, slow.ranks) == (SlowdownCause.OWN_TIME, (1,))
    assert slow.began_ns is not None


def test_ranks_that_are_behind_are_waited_for() -> None:
    fast, slow = job(300, 40)
    watch = SlowdownWatch()
    watch.update({0: pulse_of(fast, 0), 1: pulse_of(rows_of(slow, slice(0, 310)), 1)})
    assert watch.slowdowns == ()
    watch.update({0: pulse_of(fast, 0), 1: pulse_of(slow, 1)})
    assert len(watch.slowdowns) == 1


def test_checkpoints_of_one_rank_are_no_slow_down() -> None:
    saves = [{"other": 400.0, "flags": StepFlag.SAVED} if step % 3 == 0 else {} for step in range(600)]
    waits = [{"backward": 429.0, "wait": 409.0} if step % 3 == 0 else {} for step in range(600)]
    watch = SlowdownWatch()
    watch.update({0: pulse_of(steps_of(saves), 0), 1: pulse_of(steps_of(waits), 1)})
    assert watch.slowdowns == ()


def test_no_ranks_no_slow_downs() -> None:
    watch = SlowdownWatch()
    watch.update({})
    watch.update({0: pulse_of(steps_of([]))})
    assert watch.slowdowns == ()


def test_of_very_many_those_stay_that_cost_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowdowns, "_MOST_KEPT", 4)
    growths = (6.0, 30.0, 12.0, 18.0, 24.0)
    rows = [{}] * 300 + [row for growth in growths for row in [{"forward": 20.0 + growth}] * 100 + [{}] * 200]
    watch = SlowdownWatch()
    for until in range(10, len(rows) + 1, 10):
        watch.update({0: pulse_of(rows_of(steps_of(with_noise(rows)), slice(0, until)), 0)})
    assert [round(slow.growth * 60) for slow in watch.slowdowns] == [30, 18, 24]
    assert all(slow.last_step is not None and slow.ended_ns is not None for slow in watch.slowdowns)


@pytest.mark.parametrize(
    ("num_known", "cause"),
    [
        pytest.param(2, SlowdownCause.LINK, id="all-ranks"),
        pytest.param(1, SlowdownCause.UNKNOWN, id="the-other-rank-may-be-slow"),
    ],
)
def test_the_link_is_the_cause_only_if_no_rank_is_unknown(num_known: int, cause: SlowdownCause) -> None:
    waiting = steps_of(with_noise([{}] * 300 + [WAITS] * 100))
    watch = SlowdownWatch()
    watch.update({rank: pulse_of(waiting, rank) for rank in range(num_known)})
    assert [slow.cause for slow in watch.slowdowns] == [cause]


def test_a_slow_down_whose_first_step_has_left_the_ring_has_no_begin() -> None:
    steps = common_steps({0: steps_of([{}] * 10, first=50)})
    assert steps is not None
    reason = Reason(SlowdownCause.UNKNOWN, (0,))
    for first, began_ns in ((40, None), (52, BEGIN_NS + 2 * 60 * MS)):
        shift = LevelShift(first, 54, 50 * MS, 60 * MS, 3)
        slow = slowdown_of(shift, reason, steps, None)
        assert (slow.began_ns, slow.ended_ns) == (began_ns, BEGIN_NS + 5 * 60 * MS)
    assert slowdown_of(shift, reason, steps, 7).began_ns == 7, "it stays what it was"
