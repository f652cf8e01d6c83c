"""A rank's own time in a step: what the others would wait for, not what it waits for itself."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import collective, forward, record, recorded, trace

from ddpprof.model import UNKNOWN, CollectiveKind, Mark, Phase, Rank, RecordedStep, Step
from ddpprof.topics.ranks.own_time import StepProgress, measure_progress, measure_recorded_progress, progress_of_rank

F, B, P, X = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER
TWO = [(0, 100), (100, 200)]
CAST = CollectiveKind.BROADCAST


def marks_of_step(begin: int, step: int) -> list[tuple[Mark, int, int, int]]:
    """Data 0-10, forward 10-30, backward 35-60, optimizer 72-80."""
    spans = [(Mark.DATA, 0, 10), (Mark.FORWARD, 10, 30), (Mark.BACKWARD, 35, 60), (Mark.OPTIMIZER, 72, 80)]
    return [(mark, begin + start, begin + end, step) for mark, start, end in spans]


HOST = [*marks_of_step(0, 0), *marks_of_step(100, 1)]
SYNC = [collective(52, 70, launched=50), collective(152, 170, launched=150, step=1)]


def parts(rows: tuple[StepProgress, ...]) -> list[tuple[int, ...]]:
    return [(row.data_ns, row.forward_ns, row.backward_ns, row.optimizer_ns, row.other_ns) for row in rows]


def test_from_one_synchronization_to_the_arrival_at_the_next() -> None:
    first, second = measure_progress(trace(steps=TWO, host=HOST, comm=SYNC, epoch=1000))
    assert first == StepProgress(10, True, 100, 1050, 10, 20, 20, 0, 0)
    # from 70: 2 other, 8 optimizer, 20 other, 10 data, 20 forward, 20 backward with the loss
    assert second == StepProgress(11, True, 100, 1150, 10, 20, 20, 8, 22)
    assert (first.own_ns, second.own_ns) == (50, 80)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param({"comm": [collective(11, 25, F, kind=CAST)]}, (10, 6, 20, 0, 0), id="buffers-of-rank-0"),
        pytest.param(
            {"comm": [collective(15, 25, F, kind=CAST, launched=11)]}, (10, 6, 20, 0, 0), id="it-waits-from-the-call-on"
        ),
        pytest.param(
            {"comm": [collective(11, 25, F, kind=CAST)], "compute": [(10, 11, F, 0), (20, 30, F, 0)]},
            (10, 11, 20, 0, 0),
            id="who-computes-does-not-wait",
        ),
        pytest.param(
            {"comm": [collective(2, 9, X, kind=CollectiveKind.BARRIER)]}, (3, 20, 20, 0, 0), id="a-barrier-for-data"
        ),
        pytest.param({"comm": [collective(31, 34, B)]}, (10, 20, 17, 0, 0), id="gradients-of-an-earlier-backward-pass"),
        pytest.param({"comm": [collective(36, 49, B)]}, (10, 20, 20, 0, 0), id="gradients-behind-the-backward-pass"),
        pytest.param(
            {"comm": [collective(61, 69, B)]}, (10, 20, 20, 0, 0), id="what-a-hook-sends-after-the-backward-pass"
        ),
        pytest.param({"comm": [collective(55, 80, X)]}, (10, 20, 20, 0, 0), id="the-users-own-after-the-arrival"),
    ],
)
def test_waiting_for_others_is_no_time_of_its_own(made: dict[str, Any], expected: tuple[int, ...]) -> None:
    made = {**made, "comm": [SYNC[0], *made["comm"]]}
    assert parts(measure_progress(trace(host=HOST[:4], **made))) == [expected]


def test_the_last_gradients_to_be_launched_are_the_arrival_whenever_they_start() -> None:
    # The second waits for its thread until the first is through.
    comm = [collective(40, 80, launched=40), collective(80, 90, launched=50)]
    (row,) = measure_progress(trace(host=HOST[:4], comm=comm))
    assert row.arrival_ns == 50


def test_a_launch_that_is_not_known_is_the_start() -> None:
    (row,) = measure_progress(trace(host=HOST[:4], comm=[collective(52, 70, launched=UNKNOWN)]))
    assert row.arrival_ns == 52


def test_after_a_gap_a_step_counts_from_its_own_start() -> None:
    made = trace(steps=TWO, host=HOST, comm=SYNC)
    assert parts(measure_progress(made))[1] == (10, 20, 20, 8, 22)
    for later in (Step(12, 100, 200), Step(11, 100, 200, cycle=1)):
        assert parts(measure_progress(replace(made, steps=(made.steps[0], later))))[1] == (10, 20, 20, 0, 0)


def test_steps_without_gradient_communication_are_left_out() -> None:
    assert measure_progress(trace(host=HOST[:4])) == ()
    assert measure_progress(trace(host=HOST[:4], comm=[collective(50, 60, X)])) == ()
    assert measure_progress(trace(host=HOST[:4], comm=[collective(50, 60, kind=CollectiveKind.SEND_RECV)])) == ()
    rows = measure_progress(trace(steps=TWO, host=HOST, comm=SYNC[1:]))
    assert [row.step for row in rows] == [11]


GPU: dict[str, Any] = {
    "device": "gpu",
    "steps": TWO,
    "compute": [(5, 25, F, 0), (30, 50, B, 0), (72, 80, P, 0), (110, 130, F, 1), (130, 150, B, 1)],
    "comm": [collective(50, 70, launched=35), collective(150, 170, launched=135, step=1)],
}


def test_on_an_accelerator_what_is_late_is_what_was_launched_late() -> None:
    # 25-30 late with the backward; 70-72 with the optimizer; 80-110 with the next forward. Nothing is known before 5.
    first, second = measure_progress(trace(**GPU))
    assert parts((first, second)) == [(0, 20, 25, 0, 5), (0, 50, 20, 10, 0)]
    assert (first.arrival_ns, second.arrival_ns) == (50, 150)


def test_on_an_accelerator_data_is_what_its_host_waits_for_while_it_has_nothing_to_do() -> None:
    made = trace(**GPU, host=[(Mark.DATA, 75, 105, 1)])
    assert parts(measure_progress(made))[1] == (25, 25, 20, 10, 0)


def test_on_an_accelerator_communication_alone_is_waiting() -> None:
    comm = [*GPU["comm"], collective(85, 100, F, step=1, kind=CAST), collective(112, 118, F, step=1)]
    assert parts(measure_progress(trace(**{**GPU, "comm": comm})))[1] == (0, 35, 20, 10, 0)


@pytest.mark.parametrize(
    ("launched", "forward"),
    [
        pytest.param(85, 35, id="held-up"),
        pytest.param(95, 45, id="held-up-in-the-end"),
        pytest.param(110, 50, id="not-yet-launched"),
        pytest.param(UNKNOWN, 35, id="launch-unknown"),
    ],
)
def test_on_an_accelerator_gradients_are_waited_for_by_what_has_been_launched(launched: int, forward: int) -> None:
    # From 85 to 100, between the optimizer's kernel and the forward's.
    made = trace(**{**GPU, "comm": [*GPU["comm"], collective(85, 100, B, step=1)]})
    times = np.array([5, 30, 72, launched, 130])
    made = replace(made, compute=replace(made.compute, launched_ns=times))
    assert parts(measure_progress(made))[1] == (0, forward, 20, 10, 0)


def test_on_an_accelerator_the_arrival_waits_for_what_was_launched_before() -> None:
    # Its own kernel stands behind another collective until 90, and another stream goes on computing.
    comm = [collective(40, 90, launched=34), collective(90, 95, launched=36)]
    compute = [(5, 25, F, 0), (30, 50, B, 0), (60, 99, X, 0)]
    made = trace(device="gpu", compute=compute, comm=comm)
    made = replace(made, compute=replace(made.compute, launched_ns=np.array([1, 20, 50])))
    (row,) = measure_progress(made)
    assert row.arrival_ns == 50


def test_on_an_accelerator_gradients_of_a_hook_are_known_by_not_being_the_forwards() -> None:
    comm = [collective(10, 20, F), collective(50, 60, X, launched=45)]
    (row,) = measure_progress(trace(device="gpu", compute=[(5, 50, B, 0)], comm=comm))
    assert row.arrival_ns == 50


SPAN = st.tuples(st.integers(0, 180), st.integers(1, 40)).map(lambda s: (s[0], s[0] + s[1]))
COMM = st.lists(st.tuples(SPAN, st.sampled_from([F, B, X]), st.integers(0, 1)), max_size=6)
MARKS = st.lists(st.tuples(SPAN, st.sampled_from(Mark), st.integers(0, 1)), max_size=6)
OPS = st.lists(st.tuples(SPAN, st.sampled_from(Phase), st.integers(0, 1)), max_size=6)


@given(COMM, MARKS, OPS, st.sampled_from(["cpu", "gpu"]), st.integers(0, 1 << 60))
def test_parts_are_within_the_time_that_passed_whatever_the_clock(
    comm: Any, host: Any, ops: Any, device: str, shift: int
) -> None:
    def made(by: int) -> tuple[StepProgress, ...]:
        return measure_progress(
            trace(
                steps=[(by, by + 100), (by + 100, by + 200)],
                comm=[collective(a + by, b + by, phase, step) for (a, b), phase, step in comm],
                host=[(mark, a + by, b + by, step) for (a, b), mark, step in host],
                compute=[(a + by, b + by, phase, step) for (a, b), phase, step in ops],
                device=device,
                epoch=-by,
            )
        )

    rows = made(0)
    assert made(shift) == rows
    for row in rows:
        assert min(*parts((row,))[0]) >= 0
        assert row.own_ns <= row.arrival_ns


def test_a_device_that_still_computes_for_the_step_before_is_not_ready() -> None:
    made = trace(
        steps=TWO,
        device="gpu",
        compute=[(10, 155, B, 0, 0, 5)],
        comm=[collective(60, 70, launched=50), collective(160, 170, launched=150, step=1)],
    )
    assert [row.arrival_ns for row in measure_progress(made)] == [60, 155]


# data 0-10, forward 12-30, backward and loss to 60, waiting to 80, optimizer 80-90, other to 100
STEP: dict[str, Any] = {
    "mode": "light",
    "data_ns": 10,
    "forwards": (forward(12, 14, 29, 30),),
    "ready": {0: (60, 50, None)},
    "optimizers": ((80, 90),),
}


def parts_of_own_time_light(step: RecordedStep) -> tuple[int, ...] | None:
    row = measure_recorded_progress(step)
    return row and (row.data_ns, row.forward_ns, row.backward_ns, row.optimizer_ns, row.other_ns)


def test_parts_of_a_step() -> None:
    row = measure_recorded_progress(recorded(start=0, end=100, **STEP))
    assert row is not None
    assert (row.step, row.is_traced, row.step_ns, row.arrival_ns, row.own_ns) == (10, False, 100, 60, 80)
    assert parts_of_own_time_light(recorded(**STEP)) == (10, 18, 30, 10, 12)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"forwards": (forward(12, 22, 29, 30, buffer_sync_ns=8),)}, (10, 10, 30, 10, 12), id="buffers"),
        pytest.param({"optimizers": ()}, (10, 18, 30, 0, 2), id="no-optimizer"),
        pytest.param({"optimizers": ((80, 90), (82, 88))}, (10, 18, 30, 10, 12), id="one-optimizer-inside-another"),
        pytest.param({"data_ns": None}, (0, 18, 30, 10, 22), id="data-not-observed"),
        pytest.param(
            {"forwards": (forward(12, 14, 19, 20, synchronizes=False), forward(30, 31, 39, 40))},
            (10, 18, 30, 10, 12),
            id="gradients-accumulate",
        ),
        pytest.param(
            {"forwards": (forward(12, 14, 20, 20), forward(45, 46, 50, 50, module=1)), "ready": {0: (40,), 1: (60,)}},
            (10, 13, 30, 10, 12),
            id="two-modules-each-with-its-backward",
        ),
        pytest.param({"ready": {0: (50,), 1: (60,)}}, (10, 18, 30, 10, 12), id="two-modules-with-one-backward"),
    ],
)
def test_parts_of_unusual_steps(changes: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert parts_of_own_time_light(recorded(**{**STEP, **changes})) == expected


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"ready": {}}, id="nothing-was-synchronized"),
        pytest.param({"ready": {0: (None, None)}}, id="no-gradients"),
        pytest.param({"forwards": ()}, id="recording-was-off"),
    ],
)
def test_steps_that_say_too_little(changes: dict[str, Any]) -> None:
    assert parts_of_own_time_light(recorded(**{**STEP, **changes})) is None


TRACED = trace(
    host=[(Mark.FORWARD, 10, 30, 0), (Mark.BACKWARD, 35, 60, 0)], comm=[collective(52, 70, launched=50)]
)  # step 10
LIGHT = [recorded(number, **STEP) for number in (8, 10)]


def test_the_trace_goes_before_the_record() -> None:
    rank = Rank(0, TRACED, record(steps=LIGHT))
    assert [(row.step, row.is_traced) for row in progress_of_rank(rank)] == [(8, False), (10, True)]


def test_either_may_be_missing() -> None:
    assert [row.step for row in progress_of_rank(Rank(0, None, record(steps=LIGHT)))] == [8, 10]
    assert [row.step for row in progress_of_rank(Rank(0, TRACED, None))] == [10]


def test_on_an_accelerator_the_hosts_times_do_not_tell() -> None:
    rank = Rank(0, replace(TRACED, device="gpu"), record(steps=LIGHT, device="cuda"))
    assert [row.step for row in progress_of_rank(rank)] == [10]
