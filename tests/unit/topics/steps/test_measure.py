"""Our times of a step by DDP's definitions, beside DDP's own."""

from dataclasses import replace

import pytest
from tables import forward, recorded, trace

from ddpprof.model import Mark, RecordedStep
from ddpprof.topics.buckets.steps import BucketStep
from ddpprof.topics.steps.measure import TorchTimes, compare_with_torch

LOGGED = {
    "forward_compute_time": 9, "backward_compute_time": 41, "backward_comm_time": 52,
    "backward_compute_comm_overlap_time": 21,
}  # fmt: skip
FIRST = BucketStep(10, 0, 0, 10, 5, 20, 21, 22, 35, 1, 5)
LAST = BucketStep(10, 0, 1, 10, 30, 40, 42, 43, 70, 0, None)
STEP = recorded(forwards=(forward(0, 2, 10, 11),))
TRACE = trace(
    steps=((0, 100), (100, 200)),
    host=[
        (Mark.BACKWARD, 1012, 1020, 0), (Mark.BACKWARD, 1030, 1055, 0), (Mark.BUCKET_COPY_OUT, 1080, 1083, 0),
        (Mark.BACKWARD, 1112, 1190, 1), (Mark.BUCKET_COPY_OUT, 1191, 1192, 1),
    ],
    epoch=-1000,
)  # fmt: skip


def test_ours_by_ddps_definitions() -> None:
    times = compare_with_torch(0, STEP, (FIRST, LAST), TRACE, LOGGED)
    assert times == TorchTimes(10, 45, 52, 24, 9, 41, 52, 21)


def test_gradients_that_are_views_of_their_buckets_are_not_copied() -> None:
    times = compare_with_torch(0, STEP, (FIRST, LAST), trace(host=[(Mark.BACKWARD, 12, 55, 0)]), LOGGED)
    assert times is not None
    assert (times.backward_ns, times.comm_ns) == (45, 49)


def test_a_trace_without_backward_nodes_has_the_last_launch() -> None:
    times = compare_with_torch(0, STEP, (FIRST, LAST), trace(), LOGGED)
    assert times == TorchTimes(10, 42, 49, 21, 9, 41, 52, 21)


def test_a_single_bucket_overlaps_with_nothing_by_ddps_definition() -> None:
    times = compare_with_torch(0, STEP, (FIRST,), trace(), LOGGED)
    assert times is not None
    assert (times.backward_ns, times.comm_ns, times.overlap_ns) == (21, 14, 0)


@pytest.mark.parametrize(
    ("step", "buckets", "logged"),
    [
        pytest.param(STEP, (), LOGGED, id="no-buckets"),
        pytest.param(STEP, (FIRST, replace(LAST, finished_ns=None)), LOGGED, id="a-bucket-without-end"),
        pytest.param(STEP, (FIRST, replace(LAST, launched_ns=None)), LOGGED, id="a-bucket-without-launch"),
        pytest.param(STEP, (replace(FIRST, launched_ns=None),), LOGGED, id="no-launch-at-all"),
        pytest.param(STEP, (FIRST,), {"forward_compute_time": 9}, id="ddp-lacks-times"),
        pytest.param(recorded(forwards=()), (FIRST,), LOGGED, id="no-forward"),
        pytest.param(recorded(forwards=(forward(), forward())), (FIRST,), LOGGED, id="two-forwards"),
        pytest.param(recorded(forwards=(forward(module=1),)), (FIRST,), LOGGED, id="of-another-module"),
    ],
)
def test_nothing_to_compare(step: RecordedStep, buckets: tuple[BucketStep, ...], logged: dict[str, int]) -> None:
    assert compare_with_torch(0, step, buckets, TRACE, logged) is None
