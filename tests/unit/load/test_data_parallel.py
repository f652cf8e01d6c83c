"""Traces of `nn.DataParallel`: one process, two accelerators, a thread for each replica.

Names are those of torch's source: the mark of `DataParallel.forward`, and the autograd functions `Broadcast`,
`Scatter`, `Gather` and `ReduceAddCoalesced`, which the profiler shows as ops. It does not follow the replicas' threads:
of them it has launches alone.
"""

from typing import Any

import pytest

from ddpprof.model import UNKNOWN, CollectiveKind, Mark, Phase
from ddpprof.topics.devices import DataParallelStep, DeviceLoad, measure_data_parallel, measure_devices

REPLICAS = (501, 502)
ENGINE = (601, 602)
"""autograd's thread of each device"""
BROADCAST = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
BACKWARD = "autograd::engine::evaluate_function: "


class Launcher:
    """Device work together with its launch."""

    def __init__(self, trace: Any) -> None:
        self.trace = trace
        self.correlation = 0

    def kernel(self, name: str, at: int, start: int, end: int, device: int, thread: int = 100) -> None:
        self.correlation += 1
        self.trace.launch(self.correlation, at, thread)
        self.trace.kernel(name, start, end, self.correlation, device=device)

    def copy(self, name: str, at: int, start: int, end: int, **args: int) -> None:
        self.correlation += 1
        self.trace.launch(self.correlation, at)
        self.trace.add("gpu_memcpy", name, start, end, 7, stream=7, correlation=self.correlation, **args)


def one_step(trace: Any) -> Launcher:
    """Forward 0-300, backward 400-700, optimizer 800-900; device 0 computes 50 more than device 1, for the loss."""
    trace.step(3, 0, 1000).annotation("DataParallel.forward", 0, 300)
    work = Launcher(trace)
    trace.op("Scatter", 10, 20)
    work.copy("Memcpy HtoD (Pinned -> Device)", 12, 12, 22, device=0)
    work.copy("Memcpy PtoP (Device -> Device)", 15, 22, 40, fromDevice=0, inDevice=1, toDevice=1)
    trace.op("Broadcast", 50, 90)
    for device in (0, 1):
        work.kernel(BROADCAST, 60 + device, 70, 100, device)
        work.kernel("gemm", 110, 120, 200, device, REPLICAS[device])
    trace.op("Gather", 250, 260)
    work.copy("Memcpy PtoP (Device -> Device)", 252, 255, 270, fromDevice=1, inDevice=0, toDevice=0)
    work.kernel("nll_loss", 310, 320, 370, 0)
    trace.op(f"{BACKWARD}GatherBackward", 400, 430).op("Scatter", 405, 425)
    work.copy("Memcpy PtoP (Device -> Device)", 410, 415, 425, fromDevice=0, inDevice=1, toDevice=1)
    for device in (0, 1):
        trace.op(f"{BACKWARD}AddmmBackward0", 440, 450, ENGINE[device])
        work.kernel("gemm", 441, 450, 600, device, ENGINE[device])
    trace.op(f"{BACKWARD}BroadcastBackward", 500, 560, ENGINE[0]).op("ReduceAddCoalesced", 510, 550, ENGINE[0])
    for device in (0, 1):
        work.kernel(REDUCE, 520 + device, 590, 650, device, ENGINE[0])
    trace.annotation("Optimizer.step#SGD.step", 800, 900)
    work.kernel("sgd", 810, 820, 850, 0)
    return work


def test_what_it_moves_between_devices(trace: Any) -> None:
    one_step(trace)
    assert measure_data_parallel(trace.load(), 0) == DataParallelStep(
        num_forwards=1, replicate_ns=30, scatter_ns=28 + 10, gather_ns=15, reduce_ns=60,
        exposed_ns=30 + 28 + 10 + 15 + 50,
    )  # fmt: skip


def test_each_device_on_its_own(trace: Any) -> None:
    one_step(trace)
    loaded = trace.load()
    assert measure_devices(loaded, 0) == (
        DeviceLoad(0, compute_ns=80 + 50 + 150 + 30, comm_ns=90, copy_ns=25, busy_ns=10 + 110 + 15 + 50 + 200 + 30),
        DeviceLoad(1, compute_ns=80 + 150, comm_ns=90, copy_ns=28, busy_ns=18 + 110 + 10 + 200),
    )
    assert any("2 accelerators" in note for note in loaded.notes)


def test_what_replicas_threads_launch_is_the_forwards(trace: Any) -> None:
    one_step(trace)
    loaded = trace.load()
    assert [Phase(phase) for phase in loaded.compute.phase] == [
        Phase.FORWARD, Phase.FORWARD, Phase.OTHER, Phase.BACKWARD, Phase.BACKWARD, Phase.OPTIMIZER,
    ]  # fmt: skip
    assert loaded.collectives.phase.tolist() == [Phase.FORWARD] * 2 + [Phase.BACKWARD] * 2
    assert loaded.collectives.kind.tolist() == [CollectiveKind.BROADCAST] * 2 + [CollectiveKind.REDUCE] * 2


def test_without_dataparallel_a_thread_without_marks_is_in_no_phase(trace: Any) -> None:
    trace.step(1, 0, 100).annotation("DistributedDataParallel.forward", 0, 50).launch(1, 10, REPLICAS[0])
    assert trace.kernel("gemm", 20, 30, 1).load().compute.phase.tolist() == [Phase.OTHER]


@pytest.mark.parametrize(
    ("args", "device"),
    [
        pytest.param({"device": 3}, 3, id="device"),
        pytest.param({"fromDevice": 1, "inDevice": 2, "toDevice": 4}, 2, id="between-devices"),
        pytest.param({}, UNKNOWN, id="not-said"),
        pytest.param({"device": "first"}, UNKNOWN, id="odd"),
        pytest.param({"device": 1 << 40}, UNKNOWN, id="no-device"),
    ],
)
def test_the_device_of_a_copy(trace: Any, args: dict[str, Any], device: int) -> None:
    trace.launch(1, 0).add("gpu_memcpy", "Memcpy", 10, 20, 7, stream=7, correlation=1, **args)
    assert trace.load().copies.device.tolist() == [device]


def test_steps_without_marks_go_from_forward_to_forward(trace: Any) -> None:
    for start in (0, 100, 200):
        trace.annotation("DataParallel.forward", start, start + 40).annotation(
            "Optimizer.step#SGD.step", start + 80, start + 90
        )
        trace.op("aten::mm", start + 10, start + 20)
    loaded = trace.load()
    assert [(step.start_ns, step.end_ns) for step in loaded.steps] == [(0, 100), (100, 200), (200, 290)]
    assert [Mark(mark) for mark in loaded.host_spans.mark[:2]] == [Mark.DATA_PARALLEL, Mark.OPTIMIZER]


def test_a_step_without_it(trace: Any) -> None:
    loaded = trace.step(1, 0, 100).launch(1, 0).kernel("gemm", 10, 20, 1, device=0).load()
    assert (measure_data_parallel(loaded, 0), measure_devices(loaded, 0)) == (None, ())
