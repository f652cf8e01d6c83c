"""A rank's own time in a step that only the light recorder saw."""

from dataclasses import replace
from typing import Any

import pytest
from tables import collective, forward, record, recorded, trace

from ddpprof.measures.ranks.own_time_light import measure_recorded_progress, progress_of_rank
from ddpprof.model import Mark, Rank, RecordedStep

# data 0-10, forward 12-30, backward and loss to 60, waiting to 80, optimizer 80-90, other to 100
STEP: dict[str, Any] = {
    "mode": "light",
    "data_ns": 10,
    "forwards": (forward(12, 14, 29, 30),),
    "ready": {0: (60, 50, None)},
    "optimizers": ((80, 90),),
}


def parts(step: RecordedStep) -> tuple[int, ...] | None:
    row = measure_recorded_progress(step)
    return row and (row.data_ns, row.forward_ns, row.backward_ns, row.optimizer_ns, row.other_ns)


def test_parts_of_a_step() -> None:
    row = measure_recorded_progress(recorded(start=0, end=100, **STEP))
    assert row is not None
    assert (row.step, row.is_traced, row.step_ns, row.arrival_ns, row.own_ns) == (10, False, 100, 60, 80)
    assert parts(recorded(**STEP)) == (10, 18, 30, 10, 12)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"forwards": (forward(12, 22, 29, 30, buffer_sync_ns=8),)}, (10, 10, 30, 10, 12), id="buffers"),
        pytest.param({"optimizers": ()}, (10, 18, 30, 0, 2), id="no-optimizer"),
        pytest.param({"optimizers": ((80, 90), (82, 88))}, (10, 18, 30, 10, 12), id="one-optimizer-inside-another"),
        pytest.param({"data_ns": None}, (0, 18, 30, 10, 22), id="data-not-observed"),
        pytest.param(
            {"forwards": (forward(12, 14, 19, 20, synchronises=False), forward(30, 31, 39, 40))},
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
    assert parts(recorded(**{**STEP, **changes})) == expected


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"ready": {}}, id="nothing-was-synchronised"),
        pytest.param({"ready": {0: (None, None)}}, id="no-gradients"),
        pytest.param({"forwards": ()}, id="recording-was-off"),
    ],
)
def test_steps_that_say_too_little(changes: dict[str, Any]) -> None:
    assert parts(recorded(**{**STEP, **changes})) is None


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
