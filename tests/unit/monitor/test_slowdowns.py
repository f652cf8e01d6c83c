"""The slowdowns of a job, with their causes, while it runs and after the fact; and its pauses."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from msgspec import structs
from pulses import BEGIN_NS, MS, pulse_of, samples_of, steps_of, summaries_of, with_noise

from ddpprof.model.pulse import Pulse, PulseSteps, StepFlag
from ddpprof.model.tables import rows_of
from ddpprof.model.whole_run import Pause, PauseKind, SlowdownCause, StepPart, StepSlowdown, UnevenWork
from ddpprof.monitor import slowdowns
from ddpprof.monitor.causes import Reason
from ddpprof.monitor.level_shifts import LevelShift
from ddpprof.monitor.slowdowns import (
    SlowdownWatch,
    common_steps,
    joined,
    lasting,
    pauses_in,
    slowdown_of,
    slowdowns_of_run,
    uneven_work,
)


def test_the_job_has_the_steps_that_all_ranks_have() -> None:
    ranks = {0: steps_of([{}] * 5, first=3), 1: steps_of([{"forward": 24.0}] * 5, first=5)}
    steps = common_steps(ranks)
    assert steps is not None
    assert steps.number.tolist() == [5, 6, 7]
    assert steps.length_ns.tolist() == [62 * MS] * 3
    assert steps.ranks[0].number.tolist() == steps.ranks[1].number.tolist()


def test_a_flag_of_one_rank_is_that_of_all() -> None:
    steps = common_steps({0: steps_of([{}, {}]), 1: steps_of([{}, {"flags": StepFlag.SAVED}])})
    assert steps is not None
    assert steps.is_usual.tolist() == [True, False]


def test_there_are_no_steps_without_ranks() -> None:
    assert common_steps({}) is None


def test_each_kind_of_pause_is_counted() -> None:
    rows = [
        {},
        {"other": 31.0, "save": 70.0, "flags": StepFlag.SAVED},
        {},
        {"other": 31.0, "flags": StepFlag.EVALUATED | StepFlag.BEGAN_EPOCH},
        {},
        {"data": 15.0, "flags": StepFlag.BEGAN_EPOCH},
        {"other": 1.0, "save": 50.0, "evaluation": 150.0, "flags": StepFlag.SAVED | StepFlag.EVALUATED},
        {"other": 1.0, "save": 4.0, "flags": StepFlag.SAVED | StepFlag.BEGAN_EPOCH},
    ]
    steps = common_steps({0: steps_of(rows)})
    assert steps is not None
    assert pauses_in(steps) == (
        Pause(PauseKind.SAVE, 3, 154 * MS, ranks=(0,)),
        Pause(PauseKind.EVALUATION, 2, 180 * MS),
        Pause(PauseKind.EPOCH, 1, 10 * MS),
    )


def test_what_takes_long_after_a_checkpoint_does_not_count_for_it() -> None:
    """Such as an upload: at the end of an epoch, and within an epoch."""
    saves = {"other": 101.0, "save": 10.0, "flags": StepFlag.SAVED}
    rows = [{}, {**saves, "flags": StepFlag.SAVED | StepFlag.RAN_OUT}, {}, saves, {}]
    steps = common_steps({0: steps_of(rows)})
    assert steps is not None
    saving, unknown = pauses_in(steps)
    assert saving == Pause(PauseKind.SAVE, 2, 20 * MS, ranks=(0,))
    assert (unknown.kind, unknown.num_steps, unknown.extra_ns) == (PauseKind.UNKNOWN, 2, 200 * MS)


@pytest.mark.parametrize(("last_step", "num_left"), [(None, 1), (8, 2), (6, 4)])
def test_long_steps_of_a_slowdown_are_not_counted_again(last_step: int | None, num_left: int) -> None:
    rows: list[dict[str, float]] = [{}] * 12
    for long in (1, 5, 7, 8, 10):
        rows[long] = {"other": 200.0}
    steps = common_steps({0: steps_of(rows)})
    assert steps is not None
    slowdown = StepSlowdown(
        first_step=4, last_step=last_step, before_ns=100 * MS, after_ns=200 * MS, num_steps=5, began_ns=None,
        ended_ns=None, cause=SlowdownCause.UNKNOWN, ranks=(),
    )  # fmt: skip
    (found,) = pauses_in(steps, [slowdown])
    assert (found.kind, found.num_steps) == (PauseKind.UNKNOWN, num_left)


@pytest.mark.parametrize(
    ("extra_ms", "grows_ms"),
    [
        pytest.param((10, 40, 90, 160), (10, 160), id="each-is-longer"),
        pytest.param((10, 40, 90), None, id="few"),
        pytest.param((100, 110, 120, 130), None, id="by-a-little"),
        pytest.param((10, 90, 40, 160), None, id="up-and-down"),
    ],
)
def test_evaluations_that_become_longer_and_longer(extra_ms: tuple[int, ...], grows_ms: tuple[int, int] | None) -> None:
    rows = [row for ms in extra_ms for row in ({}, {"evaluation": float(ms), "flags": StepFlag.EVALUATED})]
    steps = common_steps({0: steps_of(rows)})
    assert steps is not None
    (found,) = pauses_in(steps)
    assert found.grows_ns == (None if grows_ms is None else tuple(ms * MS for ms in grows_ms))


def test_without_normal_steps_nothing_is_known() -> None:
    steps = common_steps({0: steps_of([{"flags": StepFlag.SAVED}] * 3)})
    assert steps is not None
    assert pauses_in(steps) == ()


def test_what_the_rank_that_saves_longest_takes_counts_for_the_checkpoint() -> None:
    """Rank 1 waits for rank 0, which saves; then both evaluate."""
    both = StepFlag.SAVED | StepFlag.EVALUATED
    saves = [{}, {}, {"save": 50.0, "evaluation": 150.0, "flags": both}]
    waits = [{}, {}, {"backward": 80.0, "wait": 60.0, "evaluation": 150.0, "flags": StepFlag.EVALUATED}]
    steps = common_steps({0: steps_of(saves), 1: steps_of(waits)})
    assert steps is not None
    assert pauses_in(steps) == (Pause(PauseKind.SAVE, 1, 50 * MS, ranks=(0,)), Pause(PauseKind.EVALUATION, 1, 150 * MS))


def test_the_last_and_the_first_step_of_epochs_are_one_kind_of_pause() -> None:
    """A loader that has run out joins its workers, and starts new ones for the next epoch."""
    rows = [{}, {"data": 35.0, "flags": StepFlag.RAN_OUT}, {"data": 55.0, "flags": StepFlag.BEGAN_EPOCH}, {}]
    steps = common_steps({0: steps_of(rows)})
    assert steps is not None
    assert pauses_in(steps) == (Pause(PauseKind.EPOCH, 2, 80 * MS),)


@pytest.mark.parametrize(
    ("long", "every"),
    [
        pytest.param((3, 7, 11, 15, 19), 4, id="regular"),
        pytest.param((3, 7, 15, 19, 23), 4, id="one-is-left-out"),
        pytest.param((3, 5, 11, 14, 19), None, id="irregular"),
        pytest.param((3, 4, 5, 6, 7), None, id="one-after-the-other"),
        pytest.param((3, 7, 11), None, id="too-few"),
    ],
)
def test_long_steps_without_a_flag_have_no_known_reason(long: tuple[int, ...], every: int | None) -> None:
    steps = common_steps({0: steps_of([{"other": 301.0} if number in long else {} for number in range(40)])})
    assert steps is not None
    extra_ns = len(long) * 300 * MS
    assert pauses_in(steps) == (Pause(PauseKind.UNKNOWN, len(long), extra_ns, every, StepPart.OTHER, (0,)),)


@pytest.mark.parametrize(
    ("usual", "apart_ms", "every_ms"),
    [
        pytest.param((7, 9, 8, 7, 8, 9), (600,) * 6, 600, id="by-a-timer"),
        pytest.param((7, 9, 16, 7, 8, 9), (600, 600, 1200, 600, 600, 600), 600, id="one-is-left-out"),
        pytest.param((8, 3, 11, 4, 9, 6), (600, 310, 780, 420, 700, 530), None, id="irregular"),
        pytest.param((7, 9, 8, 7), (600,) * 4, None, id="too-few"),
    ],
)
def test_long_steps_at_regular_times(usual: tuple[int, ...], apart_ms: tuple[int, ...], every_ms: int | None) -> None:
    """`usual`: number of steps of usual length between two steps of 160 ms; `apart_ms`: times from one to the next."""
    long = {"other": 101.0}
    between = [[{"other": (ms - 160) / number - 59}] * number for number, ms in zip(usual, apart_ms, strict=True)]
    steps = common_steps({0: steps_of([long, *(row for rows in between for row in (*rows, long))])})
    assert steps is not None
    (pause,) = pauses_in(steps)
    assert (pause.kind, pause.num_steps, pause.every) == (PauseKind.UNKNOWN, len(usual) + 1, None)
    assert pause.every_ns == (None if every_ms is None else every_ms * MS)


@pytest.mark.parametrize(
    ("long", "part", "ranks"),
    [
        pytest.param(({"other": 301.0}, {"backward": 320.0, "wait": 300.0}), StepPart.OTHER, (0,), id="one-works"),
        pytest.param(({"data": 301.0}, {"data": 290.0}), StepPart.DATA, (0, 1), id="all-wait-for-data"),
        pytest.param(({"forward": 160.0}, {"forward": 161.0}), StepPart.FORWARD, (0, 1), id="all-compute"),
        pytest.param(({"backward": 320.0, "wait": 300.0}, {"backward": 320.0, "wait": 300.0}), None, (), id="all-wait"),
        pytest.param(({"backward": 320.0, "wait": -1.0}, {"backward": 320.0, "wait": -1.0}), None, (), id="unknown"),
    ],
)
def test_where_long_steps_take_longer(
    long: tuple[dict[str, float], dict[str, float]], part: StepPart | None, ranks: tuple[int, ...]
) -> None:
    unknown = {"wait": -1.0} if long[0].get("wait") == -1.0 else {}
    rows = [[unknown if number % 5 else {**unknown, **one} for number in range(1, 41)] for one in long]
    steps = common_steps({rank: steps_of(of_rank) for rank, of_rank in enumerate(rows)})
    assert steps is not None
    (pause,) = pauses_in(steps)
    assert (pause.every, pause.part, pause.ranks) == (5, part, ranks)


def test_ranks_that_wait_are_one_step_ahead() -> None:
    """Rank 0 works after its optimizer step; rank 1 waits for it in the next step."""
    works = [{"other": 301.0} if number % 5 == 0 else {} for number in range(1, 41)]
    waits = [{"backward": 320.0, "wait": 300.0} if number % 5 == 1 and number > 1 else {} for number in range(1, 41)]
    steps = common_steps({0: steps_of(works), 1: steps_of(waits)})
    assert steps is not None
    (pause,) = pauses_in(steps)
    assert (pause.part, pause.ranks) == (StepPart.OTHER, (0,))


def test_how_much_longer_the_slowest_rank_works() -> None:
    """The ranks take turns; a tenth of the steps is left out."""
    rows = [[{"forward": 30.0 if number % 2 == rank else 10.0} for number in range(40)] for rank in (0, 1)]
    steps = common_steps({rank: steps_of(of_rank) for rank, of_rank in enumerate(rows)})
    assert steps is not None
    assert uneven_work(steps) == UnevenWork(10 * MS, 40, 0.5)


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param([[{}] * 40], id="one-rank"),
        pytest.param([[{}] * 40, [{"wait": -1.0}] * 40], id="waiting-is-unknown"),
        pytest.param([[{}] * 9] * 2, id="few-steps"),
    ],
)
def test_where_uneven_work_is_unknown(ranks: list[list[dict[str, float]]]) -> None:
    steps = common_steps({rank: steps_of(rows) for rank, rows in enumerate(ranks)})
    assert steps is not None
    assert uneven_work(steps) is None


def test_recording_and_the_end_of_an_epoch_are_pauses() -> None:
    rows = [{}, {"other": 8.0, "flags": StepFlag.RECORDED}, {"data": 8.0, "flags": StepFlag.RAN_OUT}]
    steps = common_steps({0: steps_of(rows)})
    assert steps is not None
    assert pauses_in(steps) == (Pause(PauseKind.RECORDING, 1, 7 * MS), Pause(PauseKind.EPOCH, 1, 3 * MS))


def test_what_runs_between_two_epochs_is_not_the_beginning_of_an_epoch() -> None:
    """Such as an evaluation that calls neither the DDP module nor a loader."""
    rows = [{}, {}, {"other": 101.0, "data": 35.0, "flags": StepFlag.BEGAN_EPOCH}, {}, {}]
    steps = common_steps({0: steps_of(rows)})
    assert steps is not None
    epoch, unknown = pauses_in(steps)
    assert epoch == Pause(PauseKind.EPOCH, 1, 30 * MS)
    assert (unknown.kind, unknown.extra_ns, unknown.part, unknown.ranks) == (
        PauseKind.UNKNOWN, 100 * MS, StepPart.OTHER, (0,),
    )  # fmt: skip


def test_compilation_in_a_recorded_step_counts_as_compilation() -> None:
    both = StepFlag.RECORDED | StepFlag.COMPILED
    rows = [{}, {"other": 8.0, "flags": both}, {}, {"other": 4.0, "flags": StepFlag.COMPILED}, {}]
    steps = common_steps({0: steps_of(rows)})
    assert steps is not None
    assert pauses_in(steps) == (Pause(PauseKind.COMPILATION, 2, 10 * MS),)


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


def throttled_job(num_normal: int, num_slow: int) -> dict[int, Pulse]:
    """Return the pulses of a job in which rank 1 is throttled in each fifth step, at the end of the job."""
    found = {}
    for rank, row in enumerate(({"backward": 230.0, "wait": 210.0}, {"forward": 220.0})):
        slow = [row if step % 5 == 0 else {} for step in range(num_slow)]
        steps = steps_of(with_noise([*[{}] * num_normal, *slow]))
        throttled_ns = [0.0] * num_normal + [(190 * MS if rank and one else 0) for one in slow]
        found[rank] = pulse_of(steps, rank, samples_of(steps, throttled_ns=throttled_ns))
    return found


def watched(pulses: Mapping[int, Pulse], every: int = 10) -> tuple[StepSlowdown, ...]:
    watch = SlowdownWatch()
    for until in range(every, len(pulses[0].steps) + 1, every):
        watch.update({rank: replace(one, steps=rows_of(one.steps, slice(0, until))) for rank, one in pulses.items()})
    return watch.slowdowns


def test_steps_of_which_some_are_throttled_are_a_slow_down() -> None:
    (slow,) = watched(throttled_job(600, 300))
    assert abs(slow.first_step - 600) <= 8
    assert (slow.last_step, slow.cause, slow.ranks) == (None, SlowdownCause.THROTTLED, (1,))
    assert abs(slow.growth - 40 / 60) < 0.05, "each fifth step takes 200 ms longer"


def test_means_count_only_if_the_slow_down_lasts() -> None:
    assert watched(throttled_job(600, 180)) == ()


def test_means_that_become_worse_are_still_a_slow_down() -> None:
    pulses = {}
    for rank, row in enumerate(({"backward": 230.0, "wait": 210.0}, {"forward": 220.0})):
        worse = {name: ms + 200 for name, ms in row.items()}
        slow = [(row if step < 300 else worse) if step % 5 == 0 else {} for step in range(430)]
        pulses[rank] = pulse_of(steps_of(with_noise([*[{}] * 600, *slow])), rank)
    (slow_down,) = watched(pulses)
    assert (slow_down.last_step, slow_down.ranks) == (None, (1,))
    assert abs(slow_down.first_step - 600) <= 8


def slowdown(first_step: int, last_step: int | None, **changes: Any) -> StepSlowdown:
    """Return a slowdown of steps that take 100 ms from the beginning of the test on."""
    found = StepSlowdown(
        first_step=first_step, last_step=last_step, before_ns=100 * MS, after_ns=200 * MS, num_steps=100,
        began_ns=first_step * 100 * MS, ended_ns=None if last_step is None else (last_step + 1) * 100 * MS,
        cause=SlowdownCause.OWN_TIME, ranks=(0,), part=StepPart.FORWARD,
    )  # fmt: skip
    return structs.replace(found, **changes)


def test_slow_downs_that_follow_each_other_with_the_same_cause_are_one() -> None:
    first = slowdown(100, 199)
    second = slowdown(200, 499, after_ns=400 * MS, num_steps=300, part=StepPart.BACKWARD)
    other = slowdown(500, None, cause=SlowdownCause.LINK)
    (one, last) = joined([first, second, other], [])
    assert (one.first_step, one.last_step, one.after_ns, one.num_steps) == (100, 499, 400 * MS, 400)
    assert one.part is None, "it is not the same"
    assert last == other
    assert joined([first, slowdown(210, 499)], []) == (first, slowdown(210, 499)), "there are normal steps in between"


@pytest.mark.parametrize(
    ("of_steps", "first_steps"),
    [
        pytest.param([slowdown(300, 349), slowdown(370, 400)], [300], id="within"),
        pytest.param([slowdown(280, None, cause=SlowdownCause.LINK)], [280], id="shortly-before"),
        pytest.param([slowdown(100, None, cause=SlowdownCause.LINK)], [100, 300], id="another-long-before"),
        pytest.param([slowdown(100, None)], [100], id="the-same-long-before"),
        pytest.param([slowdown(100, 199)], [100, 300], id="over"),
    ],
)
def test_a_slow_down_of_means_replaces_those_of_steps(of_steps: list[StepSlowdown], first_steps: list[int]) -> None:
    found = joined(of_steps, [slowdown(300, None, after_ns=300 * MS)])
    assert [one.first_step for one in found] == first_steps
    assert found[-1].after_ns == 300 * MS


@pytest.mark.parametrize(
    ("num_slow", "num_steps", "num_found"),
    [
        pytest.param(40, 1000, 0, id="short"),
        pytest.param(60, 1000, 1, id="long"),
        pytest.param(40, 150, 1, id="much-of-a-short-run"),
        pytest.param(20, 150, 0, id="little-of-a-short-run"),
    ],
)
def test_short_disturbances_are_no_slow_downs_of_a_run(num_slow: int, num_steps: int, num_found: int) -> None:
    steps = steps_of([{"other": 41.0}] * num_steps)
    pulse = pulse_of(steps)
    begin_ns = pulse.identity.created_ns
    short = slowdown(50, 49 + num_slow, began_ns=begin_ns, ended_ns=begin_ns + num_slow * 100 * MS)
    assert len(lasting([short], {0: pulse})) == num_found


def test_a_rank_without_steps_has_no_slow_downs() -> None:
    assert lasting([], {0: pulse_of(steps_of([]))}) == ()


def test_short_disturbances_of_a_running_job_are_no_slow_downs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1000 * 100 * MS)
    assert lasting([slowdown(950, None)]) == lasting([slowdown(900, 949), slowdown(950, None)])[1:] != ()
    assert lasting([slowdown(960, None)]) == ()


def test_of_very_many_those_stay_that_cost_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowdowns, "_MOST_KEPT", 4)
    growths = (6.0, 30.0, 12.0, 18.0, 24.0)
    rows = [{}] * 300 + [row for growth in growths for row in [{"forward": 20.0 + growth}] * 100 + [{}] * 200]
    watch = SlowdownWatch()
    steps = steps_of(with_noise(rows))
    for until in range(50, len(rows) + 1, 50):
        watch.update({0: pulse_of(rows_of(steps, slice(0, until)), 0)})
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
