from __future__ import annotations

import pytest
from pulses import MS, no_samples, samples_of, steps_of

from ddpprof.model.slowdown import SlowdownCause, StepPart
from ddpprof.model.tables import rows_of
from ddpprof.monitor.causes import RankChange, Reason, portrait, reason_for


def change(before: dict[str, float], after: dict[str, float], **per_step: tuple[float, float]) -> RankChange:
    steps = steps_of([before] * 100 + [after] * 100)
    samples = samples_of(steps, **{name: [a] * 100 + [b] * 100 for name, (a, b) in per_step.items()})
    parts = [portrait(rows_of(steps, slice(*span)), samples) for span in ((0, 100), (100, 200))]
    assert parts[0] is not None
    assert parts[1] is not None
    return RankChange(parts[0], parts[1])


WAITS = {"backward": 42.0, "wait": 22.0}
"""a rank that waits 12 ms longer"""


@pytest.mark.parametrize(
    ("slower", "part"),
    [
        pytest.param({"forward": 32.0}, StepPart.FORWARD, id="forward"),
        pytest.param({"backward": 42.0}, StepPart.BACKWARD, id="backward"),
        pytest.param({"optimizer": 16.0}, StepPart.OPTIMIZER, id="optimizer"),
        pytest.param({"other": 13.0}, StepPart.OTHER, id="other"),
    ],
)
def test_one_rank_is_slower_and_the_other_waits(slower: dict[str, float], part: StepPart) -> None:
    reason = reason_for({0: change({}, WAITS), 1: change({}, slower)})
    assert reason == Reason(SlowdownCause.OWN_TIME, (1,), part)


def test_the_first_gradient_comes_later() -> None:
    reason = reason_for({0: change({}, {"backward": 42.0, "first_gradient": 20.0}), 1: change({}, WAITS)})
    assert reason == Reason(SlowdownCause.OWN_TIME, (0,), StepPart.BACKWARD, 12 * MS)


@pytest.mark.parametrize(
    ("ranks", "slow"),
    [
        pytest.param({0: {"data": 17.0}, 1: WAITS}, (0,), id="one-rank"),
        pytest.param({0: {"data": 17.0}, 1: {"data": 17.0}}, (0, 1), id="all-ranks"),
    ],
)
def test_batches_come_later(ranks: dict[int, dict[str, float]], slow: tuple[int, ...]) -> None:
    reason = reason_for({rank: change({}, after) for rank, after in ranks.items()})
    assert reason == Reason(SlowdownCause.DATA, slow, StepPart.DATA)


def test_it_is_the_link_if_all_wait_longer() -> None:
    assert reason_for({0: change({}, WAITS), 1: change({}, WAITS)}) == Reason(SlowdownCause.LINK, (0, 1))


def every_third_known(one: dict[str, float]) -> list[dict[str, float]]:
    return [one if number % 3 == 0 else {**one, "wait": -1.0} for number in range(30)]


def test_it_is_the_link_even_if_only_some_steps_know_their_waiting() -> None:
    before, after = (portrait(steps_of(every_third_known(one)), no_samples()) for one in ({}, WAITS))
    assert before is not None
    assert after is not None
    assert (after.wait_ns, after.parts[StepPart.BACKWARD]) == (22 * MS, 20 * MS)
    ranks = dict.fromkeys((0, 1), RankChange(before, after))
    assert reason_for(ranks) == Reason(SlowdownCause.LINK, (0, 1))


def test_waiting_that_is_known_only_in_the_slow_down_is_no_growth() -> None:
    """The backward pass is no longer because nobody knew before what of it was waiting."""
    ranks = dict.fromkeys((0, 1), change({"wait": -1.0}, WAITS))
    assert reason_for(ranks) == Reason(SlowdownCause.UNKNOWN, (0, 1))


def test_it_is_everybody_if_all_compute_longer() -> None:
    reason = reason_for({rank: change({}, {"forward": 32.0, "cpu": 62.0}) for rank in range(3)})
    assert reason == Reason(SlowdownCause.EVERYBODY, (0, 1, 2), StepPart.FORWARD)


@pytest.mark.parametrize(
    ("cause", "per_step"),
    [
        pytest.param(SlowdownCause.PROCESSOR, {"queued_ns": (1 * MS, 11 * MS)}, id="processor"),
        pytest.param(SlowdownCause.THROTTLED, {"throttled_ns": (0, 8 * MS), "queued_ns": (0, 8 * MS)}, id="throttled"),
        pytest.param(SlowdownCause.PAGING, {"major_faults": (0, 3)}, id="paging"),
        pytest.param(SlowdownCause.EVERYBODY, {"queued_ns": (1 * MS, 2 * MS)}, id="hardly-queued"),
    ],
)
def test_the_system_says_why(cause: SlowdownCause, per_step: dict[str, tuple[float, float]]) -> None:
    ranks = {rank: change({}, {"forward": 26.0, "backward": 36.0, "wait": 10.0}, **per_step) for rank in range(2)}
    assert reason_for(ranks).cause is cause


def test_queued_while_it_computes_more_is_more_work() -> None:
    ranks = {rank: change({}, {"forward": 32.0, "cpu": 62.0}, queued_ns=(0, 5 * MS)) for rank in range(2)}
    assert reason_for(ranks).cause is SlowdownCause.EVERYBODY


def test_without_known_waiting_a_longer_backward_pass_has_no_known_cause() -> None:
    ranks = {rank: change({"wait": -1.0}, {"wait": -1.0, "backward": 42.0}) for rank in range(2)}
    assert reason_for(ranks) == Reason(SlowdownCause.UNKNOWN, (0, 1))


def test_without_known_waiting_a_longer_forward_is_still_that_of_its_rank() -> None:
    slow, waiting = {"wait": -1.0, "forward": 32.0}, {"wait": -1.0, "backward": 42.0}
    reason = reason_for({0: change({"wait": -1.0}, waiting), 1: change({"wait": -1.0}, slow)})
    assert reason == Reason(SlowdownCause.OWN_TIME, (1,), StepPart.FORWARD)


def test_samples_that_do_not_reach_the_steps_say_nothing() -> None:
    steps = steps_of([{}] * 100)
    early = samples_of(rows_of(steps, slice(0, 21)), queued_ns=[MS] * 21)
    last = portrait(rows_of(steps, slice(50, 100)), early)
    assert last is not None
    assert last.queued_ns is None


def test_what_the_system_counted_between_the_compared_steps_is_not_theirs() -> None:
    steps = steps_of([{}] * 300)
    samples = samples_of(steps, queued_ns=[1 * MS] * 100 + [30 * MS] * 100 + [1 * MS] * 100)
    around = portrait(rows_of(steps, steps.number // 100 != 1), samples)
    assert around is not None
    assert around.queued_ns == MS
