"""Traces without an accelerator: steps, compute of the training threads, and gloo's communication."""

from typing import Any

import pytest

from ddpprof.model import NO_STEP, UNKNOWN, CollectiveKind, Mark, Phase, Step

TRAINING, AUTOGRAD, WORKER = 100, 200, 300
FORWARD = "DistributedDataParallel.forward"
BACKWARD = "autograd::engine::evaluate_function: MmBackward0"
COPY_OUT = "torch.distributed.ddp.reducer::copy_bucket_to_grad"


def compute(loaded: Any) -> list[tuple[int, int, str]]:
    table = loaded.compute
    names = [loaded.names[name] for name in table.name]
    return list(zip(table.start_ns.tolist(), table.end_ns.tolist(), names, strict=True))


def test_compute_is_the_outermost_ops(trace: Any) -> None:
    trace.step(1, 0, 100).op("aten::linear", 10, 40).op("aten::addmm", 12, 38).op("aten::mm", 12, 20)
    loaded = trace.op("aten::relu", 40, 50).load()
    assert loaded.device == "cpu"
    assert compute(loaded) == [(10, 40, "aten::linear"), (40, 50, "aten::relu")]


@pytest.mark.parametrize(
    ("calls", "pieces"),
    [
        pytest.param([(30, 50)], [(10, 30), (50, 90)], id="in-the-middle"),
        pytest.param([(30, 50), (60, 70)], [(10, 30), (50, 60), (70, 90)], id="two"),
        pytest.param([(10, 50)], [(50, 90)], id="at-the-start"),
        pytest.param([(50, 90)], [(10, 50)], id="at-the-end"),
        pytest.param([(10, 90)], [], id="all-of-it"),
        pytest.param([(0, 5)], [(10, 90)], id="outside"),
    ],
)
def test_time_in_calls_to_the_backend_is_not_compute(
    trace: Any, calls: list[tuple[int, int]], pieces: list[tuple[int, int]]
) -> None:
    trace.step(1, 0, 100).op(BACKWARD, 10, 90)
    for start, end in calls:
        trace.op("c10d::allreduce_", start, end)
    assert compute(trace.load()) == [(*piece, BACKWARD) for piece in pieces]


HOOK = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


@pytest.mark.parametrize(
    ("hook", "pieces"),
    [
        pytest.param((92, 98), [(10, 30, BACKWARD), (60, 90, BACKWARD), (92, 98, HOOK)], id="by-a-layer"),
        pytest.param((30, 40), [(10, 30, BACKWARD), (40, 90, BACKWARD)], id="by-a-hook"),
    ],
)
def test_a_layer_that_waits_for_its_collective_does_not_compute(
    trace: Any, hook: tuple[int, int], pieces: list[tuple[int, int, str]]
) -> None:
    trace.step(1, 0, 100).op(BACKWARD, 10, 90).op("c10d::allreduce_", 30, 40).op(HOOK, *hook)
    trace.annotation("gloo:all_reduce", 41, 60, WORKER)
    assert compute(trace.load()) == pieces


def test_only_training_threads_compute(trace: Any) -> None:
    trace.step(1, 0, 100).op("aten::mm", 10, 20)
    trace.op(BACKWARD, 30, 40, AUTOGRAD)
    trace.op("aten::stack", 10, 90, 999)  # a thread that loads data
    trace.annotation("gloo:all_reduce", 50, 60, WORKER).op("aten::add", 52, 58, WORKER)
    assert compute(trace.load()) == [(10, 20, "aten::mm"), (30, 40, BACKWARD)]


def test_annotations_are_not_compute(trace: Any) -> None:
    trace.step(1, 0, 100).annotation(FORWARD, 0, 50).annotation("my region", 0, 80)
    assert compute(trace.op("aten::mm", 10, 20).load()) == [(10, 20, "aten::mm")]


def test_annotations_in_the_category_of_ops_are_not_compute(trace: Any) -> None:
    trace.add("Operator", "ProfilerStep#1", 0, 100).add("Operator", "Optimizer.step#SGD.step", 0, 90)
    trace.add("Operator", "Optimizer.zero_grad#SGD.zero_grad", 0, 90).add("Operator", FORWARD, 0, 90)
    assert compute(trace.add("Operator", "aten::mm", 10, 20).load()) == [(10, 20, "aten::mm")]


def test_phases_of_ops(trace: Any) -> None:
    trace.annotation(FORWARD, 0, 100).op("aten::mm", 10, 20).op("aten::mse_loss", 110, 120)
    trace.op(BACKWARD, 130, 200).op("torch::distributed::reducer::mul_out", 140, 150).op(COPY_OUT, 210, 220)
    trace.annotation("Optimizer.step#SGD.step", 300, 400).op("aten::add_", 310, 320)
    phases = [Phase.FORWARD, Phase.OTHER, Phase.BACKWARD, Phase.FINALIZE, Phase.OPTIMIZER]
    assert trace.load().compute.phase.tolist() == phases


def test_a_collective_belongs_where_it_was_asked_for(trace: Any) -> None:
    trace.step(4, 0, 100).step(5, 100, 200).op(BACKWARD, 10, 90).op("c10d::allreduce_", 80, 85)
    loaded = trace.annotation("gloo:all_reduce", 110, 190, WORKER).load()
    found = loaded.collectives
    assert (found.start_ns.tolist(), found.end_ns.tolist(), found.lane.tolist()) == ([110], [190], [WORKER])
    assert (found.launched_ns.tolist(), found.step.tolist()) == ([80], [0]), "asked for in the first step"
    assert (found.phase.tolist(), found.kind.tolist()) == ([Phase.BACKWARD], [CollectiveKind.ALL_REDUCE])


def test_a_collective_asked_for_by_a_backends_thread_is_a_comm_hooks(trace: Any) -> None:
    trace.annotation(FORWARD, 0, 9).op(BACKWARD, 10, 30).op("c10d::allreduce_", 40, 41, WORKER)
    trace.op("c10d::allreduce_", 50, 51).annotation("gloo:all_reduce", 42, 45, WORKER + 1)
    found = trace.annotation("gloo:all_reduce", 52, 55, WORKER + 1).load().collectives
    assert found.phase.tolist() == [Phase.BACKWARD, Phase.OTHER]


def test_collectives_match_their_calls_first_in_first_out_by_kind(trace: Any) -> None:
    trace.op("c10d::broadcast_", 0, 1).op("c10d::allreduce_", 10, 11).op("c10d::allreduce_", 20, 21)
    trace.annotation("gloo:all_reduce", 26, 50, WORKER).annotation("gloo:all_reduce", 25, 40, WORKER + 1)
    trace.annotation("gloo:broadcast", 30, 35, WORKER)
    found = trace.load().collectives
    assert (found.start_ns.tolist(), found.launched_ns.tolist()) == ([25, 26, 30], [10, 20, 0])


def test_a_collective_from_before_the_profiler_started_has_no_call(trace: Any) -> None:
    trace.step(1, 0, 100).annotation("gloo:all_reduce", 5, 50, WORKER)
    trace.op("c10d::allreduce_", 20, 21).annotation("gloo:all_reduce", 55, 60, WORKER)
    found = trace.load().collectives
    assert (found.launched_ns.tolist(), found.step.tolist()) == ([UNKNOWN, 20], [0, 0])


@pytest.mark.parametrize(
    ("arguments", "num_bytes"),
    [
        pytest.param({"Input Dims": [[321271]], "Input type": ["float"]}, 1285084, id="one-tensor"),
        pytest.param({"Input Dims": [[2, 3], [4]], "Input type": ["c10::Half", "long int"]}, 44, id="two"),
        pytest.param({"Input Dims": [[]], "Input type": ["double"]}, 8, id="scalar-tensor"),
        pytest.param({"Input Dims": [[], [5]], "Input type": ["Scalar", "float"]}, 20, id="beside-a-scalar"),
        pytest.param({"Input Dims": [[[5]]], "Input type": ["TensorList"]}, UNKNOWN, id="list-of-tensors"),
        pytest.param({}, UNKNOWN, id="shapes-not-recorded"),
    ],
)
def test_bytes_come_from_the_shapes(trace: Any, arguments: dict[str, object], num_bytes: int) -> None:
    found = trace.annotation("gloo:all_reduce", 5, 50, WORKER, **arguments).load().collectives
    assert found.num_bytes.tolist() == [num_bytes]


def test_bytes_may_come_from_the_call(trace: Any) -> None:
    shapes = {"Input Dims": [[10]], "Input type": ["float"]}
    trace.op("c10d::allreduce_", 0, 1).op("c10d::allreduce_", 2, 3, **shapes)
    trace.annotation("gloo:all_reduce", 8, 9, WORKER).annotation("gloo:all_reduce", 7, 9, WORKER + 1)
    assert trace.load().collectives.num_bytes.tolist() == [UNKNOWN, 40]


@pytest.mark.parametrize(
    ("call", "optimizer", "optimizer_thread", "end"),
    [
        pytest.param(20, 60, None, 60, id="awaited-before-the-optimizer"),
        pytest.param(20, 95, None, 90, id="over-before-the-optimizer"),
        pytest.param(20, 60, WORKER, 90, id="optimizer-in-backward-on-a-worker"),
        pytest.param(120, 60, None, 90, id="not-asked-for-in-backward"),
    ],
)
def test_a_gradient_collective_is_over_when_the_optimizer_starts(
    call: int, optimizer: int, optimizer_thread: int | None, end: int, trace: Any
) -> None:
    trace.annotation(FORWARD, 0, 9).op(BACKWARD, 10, 30).op("c10d::allreduce_", call, call + 1)
    trace.annotation("gloo:all_reduce", 25, 90, WORKER)
    lane = [] if optimizer_thread is None else [optimizer_thread]
    trace.annotation("Optimizer.step#SGD.step", optimizer, optimizer + 10, *lane)
    assert trace.load().collectives.end_ns.tolist() == [end]


def test_a_collective_that_outlives_the_profiler_is_kept_and_named(trace: Any) -> None:
    trace.step(1, 0, 100).annotation("gloo:all_reduce", 5, 50, WORKER).annotation("gloo:broadcast", 60, 120, WORKER)
    loaded = trace.window_end(120).load()
    assert loaded.collectives.end_ns.tolist() == [50, 120]
    assert loaded.notes == (
        "1 collective was still running when the profiler stopped; the trace does not show when it ends",
    )


@pytest.mark.parametrize(
    ("optimizers", "steps"),
    [
        pytest.param([], [Step(0, 10, 110), Step(1, 110, 210), Step(2, 210, 400)], id="no-optimizer"),
        pytest.param([50, 150, 250], [Step(0, 10, 110), Step(1, 110, 210), Step(2, 210, 400)], id="one-forward-each"),
        pytest.param([160, 260], [Step(0, 10, 210), Step(1, 210, 400)], id="two-forwards-accumulate"),
    ],
)
def test_forwards_delimit_steps_where_the_profiler_did_not(
    trace: Any, optimizers: list[int], steps: list[Step]
) -> None:
    for start in (10, 110, 210):
        trace.annotation(FORWARD, start, start + 20).op("aten::mm", start, start + 10)
    for start in optimizers:
        trace.annotation("Optimizer.step#SGD.step", start, start + 5)
    loaded = trace.op(BACKWARD, 300, 400).load()
    assert list(loaded.steps) == steps
    assert "no ProfilerStep" in loaded.notes[0]


def test_a_trace_without_steps_and_forwards_has_none_and_says_so(trace: Any) -> None:
    loaded = trace.op(BACKWARD, 0, 10).load()
    assert loaded.steps == ()
    assert loaded.compute.step.tolist() == [NO_STEP]
    assert "no steps" in loaded.notes[0]


def test_work_between_steps_belongs_to_none(trace: Any) -> None:
    trace.step(1, 0, 100).step(2, 150, 200).op("aten::mm", 10, 20).op("aten::mm", 110, 120).op("aten::mm", 160, 170)
    assert trace.load().compute.step.tolist() == [0, NO_STEP, 1]


def test_host_spans_are_the_marks(trace: Any) -> None:
    trace.step(1, 0, 100).annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 5)
    trace.annotation(FORWARD, 5, 20).op("torch.distributed.ddp.reducer::search_unused_parameters", 6, 8)
    trace.op(BACKWARD, 20, 40).op("torch::distributed::reducer::copy_", 22, 24).op("c10d::allreduce_", 25, 26)
    trace.op(COPY_OUT, 41, 42).annotation("Optimizer.step#SGD.step", 50, 60)
    spans = trace.load().host_spans
    assert [Mark(mark) for mark in spans.mark] == [
        Mark.DATA, Mark.FORWARD, Mark.UNUSED_SEARCH, Mark.BACKWARD, Mark.BUCKET_COPY_IN, Mark.COLLECTIVE_CALL,
        Mark.BUCKET_COPY_OUT, Mark.OPTIMIZER,
    ]  # fmt: skip
    assert set(spans.step.tolist()) == {0}
    assert set(spans.thread.tolist()) == {TRAINING}


@pytest.mark.parametrize(
    "hint", [pytest.param("launch", id="launches"), pytest.param("device", id="device-properties")]
)
def test_an_accelerator_whose_work_is_missing_is_named(trace: Any, hint: str) -> None:
    trace.step(1, 0, 100).op("aten::mm", 10, 20)
    if hint == "launch":
        trace.launch(1, 5)
    else:
        trace.keys = {"deviceProperties": [{"id": 0}]}
    loaded = trace.load()
    assert loaded.device == "cpu"
    assert "contains no work on it" in loaded.notes[0]
