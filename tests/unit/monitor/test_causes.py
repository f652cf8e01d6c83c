from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pulses import MS, no_samples, samples_of, steps_of

from ddpprof.model.tables import rows_of
from ddpprof.model.whole_run import SlowdownCause, StepPart
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


@pytest.mark.parametrize(
    ("cpu_ms", "cause"),
    [
        pytest.param(50, SlowdownCause.PROCESSOR, id="as-much-work"),
        pytest.param(62, SlowdownCause.OWN_TIME, id="more-work"),
    ],
)
def test_a_rank_that_is_queued_lacks_a_processor_unless_it_computes_more(cpu_ms: int, cause: SlowdownCause) -> None:
    one = change({}, {"forward": 32.0}, queued_ns=(0, 11 * MS), cpu_ns=(50 * MS, cpu_ms * MS))
    assert reason_for({0: one, 1: change({}, WAITS)}) == Reason(
        cause, (0,), None if cause is SlowdownCause.PROCESSOR else StepPart.FORWARD
    )


@pytest.mark.parametrize(
    ("mhz", "cpu_ms", "cause"),
    [
        pytest.param(2000, 62, SlowdownCause.CLOCK, id="a-slower-clock"),
        pytest.param(2840, 62, SlowdownCause.CLOCK, id="a-little-slower"),
        pytest.param(2860, 62, SlowdownCause.OWN_TIME, id="hardly-slower"),
        pytest.param(2000, 52, SlowdownCause.OWN_TIME, id="a-slower-clock-that-does-not-matter"),
    ],
)
def test_a_core_that_is_clocked_down_computes_longer(mhz: int, cpu_ms: int, cause: SlowdownCause) -> None:
    steps = steps_of([{}] * 100 + [{"forward": 32.0}] * 100)
    counted = samples_of(steps, cpu_ns=[50 * MS] * 100 + [cpu_ms * MS] * 100)
    samples = replace(counted, core_khz=np.repeat([3_000_000, mhz * 1000], 5))
    before, after = (portrait(rows_of(steps, slice(*span)), samples) for span in ((0, 100), (100, 200)))
    assert before is not None
    assert after is not None
    reason = reason_for({0: RankChange(before, after), 1: change({}, WAITS)})
    assert (reason.cause, reason.ranks) == (cause, (0,))


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


def test_without_steps_there_is_no_portrait() -> None:
    assert portrait(steps_of([]), no_samples()) is None


def test_steps_that_became_no_longer_have_no_reason() -> None:
    """One rank computes longer by as much as it waits less."""
    ranks = {0: change({}, {"forward": 21.0, "backward": 28.0, "wait": 8.0}), 1: change({}, {"forward": 19.0})}
    assert reason_for(ranks) == Reason(SlowdownCause.UNKNOWN, (0, 1))


def test_a_job_of_one_rank_is_not_everybody() -> None:
    reason = reason_for({0: change({}, {"forward": 32.0})})
    assert reason == Reason(SlowdownCause.OWN_TIME, (0,), StepPart.FORWARD)


@pytest.mark.parametrize("known", [0, 1], ids=["only-before", "only-after"])
def test_a_clock_that_is_known_for_a_part_of_the_time_is_no_cause(known: int) -> None:
    one = change({}, {"forward": 32.0})
    rates = [3e6 if number == known else None for number in range(2)]
    clocked = RankChange(replace(one.before, core_khz=rates[0]), replace(one.after, core_khz=rates[1]))
    assert reason_for({0: clocked}).cause is SlowdownCause.OWN_TIME


SEVERAL = {"forward": 26.0, "backward": 36.0, "optimizer": 7.0}
"""a rank that needs 15 ms more, in several parts of the step"""


@pytest.mark.parametrize(
    ("after", "per_step", "cause"),
    [
        pytest.param(SEVERAL, {"process_cpu_ns": 75}, SlowdownCause.THREAD, id="another-thread"),
        pytest.param(SEVERAL, {"process_cpu_ns": 75, "queued_ns": 20}, SlowdownCause.THREAD, id="which-has-no-core"),
        pytest.param(SEVERAL, {"process_cpu_ns": 63, "cpu_ns": 60}, SlowdownCause.OWN_TIME, id="more-work"),
        pytest.param(SEVERAL, {}, SlowdownCause.OWN_TIME, id="no-thread-runs"),
        pytest.param(
            SEVERAL,
            {"process_cpu_ns": 75, "queued_ns": 14, "training_queued_ns": 14},
            SlowdownCause.PROCESSOR,
            id="no-free-core",
        ),
        pytest.param({"data": 20.0}, {"process_cpu_ns": 75}, SlowdownCause.DATA, id="threads-load-batches"),
        pytest.param({"backward": 45.0}, {"process_cpu_ns": 75}, SlowdownCause.OWN_TIME, id="threads-compute"),
        pytest.param(SEVERAL, {"process_cpu_ns": 75, "throttled_ns": 9}, SlowdownCause.THROTTLED, id="throttled"),
    ],
)
def test_another_thread_holds_up_the_training_thread(
    after: dict[str, float], per_step: dict[str, float], cause: SlowdownCause
) -> None:
    before_ms = {"cpu_ns": 50, "process_cpu_ns": 60}
    counted = {**before_ms, **per_step}
    slow = change({}, after, **{name: (before_ms.get(name, 0) * MS, ms * MS) for name, ms in counted.items()})
    reason = reason_for({0: slow, 1: change({}, {"backward": 45.0, "wait": 25.0})})
    assert (reason.cause, reason.ranks) == (cause, (0,))


def test_no_part_is_named_if_several_take_longer() -> None:
    reason = reason_for({0: change({}, SEVERAL | {"data": 8.0}), 1: change({}, {"backward": 48.0, "wait": 28.0})})
    assert reason == Reason(SlowdownCause.OWN_TIME, (0,), None)
