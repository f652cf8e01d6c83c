"""Collectives beside DDP: which are, where in the step, what for, what they cost."""

from dataclasses import replace
from typing import Any

import pytest
from tables import collective, forward, marks, recorded, trace

from ddpprof.model import UNKNOWN, CollectiveKind, Mark, Phase, Trace
from ddpprof.topics.script_collectives import (
    OutsideCalls,
    Place,
    Purpose,
    measure_outside,
    summarize_outside,
)

SIZES = [[400_000, 1000]]
"""parameters of one module, in bytes"""

MARKS = [
    (Mark.FORWARD, 10, 100, 0),
    (Mark.BACKWARD, 200, 300, 0),
    (Mark.BACKWARD, 300, 400, 0),
    (Mark.OPTIMIZER, 500, 600, 0),
]


def step(*comm: dict[str, int], host: Any = (), **changes: Any) -> Trace:
    """0-1000: forward 10-100, backward 200-400, optimizer 500-600."""
    return trace([(0, 1000)], comm=comm, host=[*MARKS, *host], **changes)


def call(start: int, end: int, size: int = UNKNOWN, **changes: Any) -> dict[str, int]:
    return collective(start, end, **{"phase": Phase.OTHER, "num_bytes": size, **changes})


def only(made: Trace, parameters: Any = ()) -> OutsideCalls:
    measured = measure_outside(made, 0, parameters)
    assert measured is not None
    (one,) = measured
    return one


@pytest.mark.parametrize(
    ("launched", "phase", "place"),
    [
        pytest.param(5, Phase.OTHER, Place.AFTER_OPTIMIZER, id="before-all-marks"),
        pytest.param(50, Phase.FORWARD, Place.FORWARD, id="forward"),
        pytest.param(100, Phase.OTHER, Place.AFTER_FORWARD, id="after-the-forward"),
        pytest.param(400, Phase.OTHER, Place.AFTER_BACKWARD, id="after-the-backward"),
        pytest.param(550, Phase.OPTIMIZER, Place.OPTIMIZER, id="optimizer"),
        pytest.param(600, Phase.OTHER, Place.AFTER_OPTIMIZER, id="after-the-optimizer"),
    ],
)
def test_the_place_is_where_it_was_launched(launched: int, phase: Phase, place: Place) -> None:
    assert only(step(call(700, 720, launched=launched, phase=phase))).place is place


@pytest.mark.parametrize(
    ("row", "host"),
    [
        pytest.param(call(250, 300, phase=Phase.BACKWARD), [], id="gradients"),
        pytest.param(call(20, 30, phase=Phase.FORWARD, kind=CollectiveKind.BROADCAST), [], id="buffers"),
        pytest.param(
            call(20, 30, phase=Phase.FORWARD, kind=CollectiveKind.ALL_GATHER), [(Mark.SYNC_BATCH_NORM, 15, 25, 0)],
            id="batch-norm",
        ),
        pytest.param(call(20, 30, launched=UNKNOWN), [], id="launch-unknown"),
        pytest.param(call(1020, 1030, step=1), [], id="another-step"),
    ],
)  # fmt: skip
def test_what_is_ddps_or_nobodys(row: dict[str, int], host: Any) -> None:
    assert measure_outside(step(row, host=host), 0, SIZES) == ()


@pytest.mark.parametrize(("launched", "is_ddps"), [(11, True), (29, True), (30, False), (89, False), (95, True)])
def test_what_ddp_does_around_the_modules_forward_is_its_own(launched: int, is_ddps: bool) -> None:
    made = step(call(96, 99, launched=launched, phase=Phase.FORWARD), epoch=1000)
    known = recorded(forwards=(forward(1010, 1030, 1090, 1100),))
    assert measure_outside(made, 0, SIZES) != ()
    assert (measure_outside(made, 0, SIZES, known) == ()) is is_ddps


def test_without_a_ddp_forward_nothing_is_beside_it() -> None:
    made = replace(step(call(700, 720)), host_spans=marks(*MARKS[1:]))
    assert measure_outside(made, 0, SIZES) is None


def test_exposed_is_beside_neither_computation_nor_ddps_communication() -> None:
    made = step(
        call(700, 800, 8),
        call(790, 900, 8),
        call(850, 950, 99, phase=Phase.BACKWARD),
        compute=[(680, 710, Phase.OTHER, 0), (950, 990, Phase.OTHER, 0)],
    )
    one = only(made)
    assert (one.num_calls, one.num_bytes, one.time_ns, one.exposed_ns) == (2, 16, 200, 140)


@pytest.mark.parametrize(
    ("sizes", "parameters", "purposes"),
    [
        pytest.param([64 * 1024], SIZES, [Purpose.FEW_NUMBERS], id="a-metric"),
        pytest.param([64 * 1024 + 1], SIZES, [Purpose.OTHER], id="larger"),
        pytest.param([UNKNOWN], SIZES, [Purpose.OTHER], id="unknown"),
        pytest.param([1000, 400_000], SIZES, [Purpose.PARAMETERS] * 2, id="parameter-by-parameter"),
        pytest.param([401_000], SIZES, [Purpose.PARAMETERS], id="flattened"),
        pytest.param([UNKNOWN] * 2, SIZES, [Purpose.PARAMETERS] * 2, id="as-many-as-parameters"),
        pytest.param([UNKNOWN] * 2, [[4] * 3], [Purpose.OTHER] * 2, id="fewer-than-parameters"),
        pytest.param([UNKNOWN] * 5, [[4] * 2], [Purpose.OTHER] * 5, id="many-more-than-parameters"),
        pytest.param([UNKNOWN] * 2, [], [Purpose.OTHER] * 2, id="unknown-model"),
        pytest.param(
            [400_000, 4, 1000], SIZES, [Purpose.PARAMETERS, Purpose.FEW_NUMBERS, Purpose.PARAMETERS],
            id="a-metric-among-them",
        ),
        pytest.param([400_000, 8], SIZES, [Purpose.OTHER, Purpose.FEW_NUMBERS], id="not-all-of-them"),
        pytest.param([4], [[4]], [Purpose.FEW_NUMBERS], id="one-tiny-parameter-tells-nothing"),
        pytest.param([50, 44], [], [Purpose.FEW_NUMBERS] * 2, id="less-than-the-gradients"),
        pytest.param([60, 44], [], [Purpose.PARAMETERS] * 2, id="as-much-as-the-gradients"),
    ],
)  # fmt: skip
def test_the_purpose_is_told_by_sizes(sizes: list[int], parameters: Any, purposes: list[Purpose]) -> None:
    gradients = call(300, 390, 110, phase=Phase.BACKWARD)
    rows = [call(700 + 10 * i, 705 + 10 * i, size) for i, size in enumerate(sizes)]
    measured = measure_outside(step(gradients, *rows), 0, parameters)
    assert measured is not None
    assert {(one.purpose, one.num_calls) for one in measured} == {(p, purposes.count(p)) for p in purposes}


def test_a_barrier_is_known_by_its_kind_or_by_its_call() -> None:
    """NCCL's is an all-reduce of one number."""
    by_kind = only(step(call(700, 720, 0, kind=CollectiveKind.BARRIER)))
    host = [(Mark.COLLECTIVE_CALL, 690, 699, 0, 1)]
    by_call = only(step(call(700, 720, 4, launched=695), host=host, names=("x", "c10d::barrier")))
    for one in (by_kind, by_call):
        assert (one.purpose, one.kind, one.num_bytes) == (Purpose.BARRIER, "barrier", None)


def calls(exposed: int, num_calls: int = 1, place: Place = Place.AFTER_OPTIMIZER, size: int | None = 8) -> OutsideCalls:
    return OutsideCalls(Purpose.FEW_NUMBERS, place, "all_reduce", num_calls, size, exposed + 1, exposed)


def test_the_summary_takes_medians_of_the_rank_that_exposes_least() -> None:
    waiting = [(calls(50),), (calls(70),), (calls(60),)]
    last = [(calls(9),), (calls(10, size=None),), (calls(11), calls(90, place=Place.FORWARD))]
    assert summarize_outside([waiting, last]) == (calls(10, size=None),)


def test_the_summary_leaves_out_what_only_some_steps_or_ranks_do() -> None:
    every_other = [(calls(9),), ()]
    assert summarize_outside([every_other, every_other]) == ()
    assert summarize_outside([[(calls(9),)], [()]]) == ()
    assert summarize_outside([[None], []]) is None


@pytest.mark.parametrize(
    ("launched", "place"),
    [
        pytest.param(5, Place.AFTER_OPTIMIZER, id="before-all-marks"),
        pytest.param(12, Place.OPTIMIZER, id="before-the-closure"),
        pytest.param(35, Place.AFTER_FORWARD, id="in-it-behind-the-forward"),
        pytest.param(62, Place.AFTER_BACKWARD, id="in-it-behind-the-backward"),
        pytest.param(95, Place.AFTER_OPTIMIZER, id="behind-the-optimizer"),
    ],
)
def test_an_optimizer_may_hold_forward_and_backward(launched: int, place: Place) -> None:
    host = [(Mark.OPTIMIZER, 10, 90, 0), (Mark.FORWARD, 20, 30, 0), (Mark.BACKWARD, 40, 60, 0)]
    comm = [collective(launched, launched + 2, Phase.OTHER, launched=launched)]
    (calls,) = measure_outside(trace(comm=comm, host=host), 0, ()) or ()
    assert calls.place is place
