"""Traces of accelerators: which work is whose. One case per trap that real traces have shown."""

from typing import Any

import pytest

from ddpprof.model import NO_STEP, UNKNOWN, CollectiveKind, Mark, Phase, ProcessGroup

TRAINING, AUTOGRAD = 100, 200
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


def rows(table: Any) -> list[tuple[int, int]]:
    return list(zip(table.start_ns.tolist(), table.end_ns.tolist(), strict=True))


def test_a_kernel_belongs_to_the_step_that_launched_it(trace: Any) -> None:
    trace.step(7, 0, 1000).step(8, 1000, 2000).launch(1, 900).launch(2, 1100)
    loaded = trace.kernel("gemm", 1200, 1300, 1).kernel("gemm", 2500, 2600, 2).load()
    assert [step.number for step in loaded.steps] == [7, 8]
    assert loaded.compute.step.tolist() == [0, 1], "the first runs in the second step, the second after all steps"


def test_durations_below_a_microsecond_are_kept(trace: Any) -> None:
    loaded = trace.launch(1, 0).kernel("gemm", 1_234_567, 1_234_999, 1).load()
    assert rows(loaded.compute) == [(1_234_567, 1_234_999)]


@pytest.mark.parametrize(
    ("category", "name"),
    [
        pytest.param("cpu_op", "triton_poi_fused_add_0", id="triton-cpu-row-with-a-stream"),
        pytest.param("cuda_sync", "Context Sync", id="context-sync"),
        pytest.param("cuda_sync", "Stream Wait Event", id="stream-wait"),
        pytest.param("gpu_user_annotation", "nccl:all_reduce", id="annotation-of-the-device"),
        pytest.param("overhead", "Buffer Flush", id="profiler-overhead"),
    ],
)
def test_what_carries_a_stream_is_not_therefore_work(trace: Any, category: str, name: str) -> None:
    trace.launch(1, 0).kernel("gemm", 10, 20, 1).add(category, name, 30, 40, 7, stream=7, correlation=1)
    loaded = trace.load()
    assert (rows(loaded.compute), rows(loaded.copies), rows(loaded.collectives)) == ([(10, 20)], [], [])


def test_marks_on_the_device_are_not_host_spans(trace: Any) -> None:
    trace.add("gpu_user_annotation", "DistributedDataParallel.forward", 0, 100, 7, stream=7)
    trace.add("gpu_user_annotation", "ProfilerStep#3", 0, 100, 7, stream=7)
    loaded = trace.launch(1, 50).kernel("gemm", 50, 60, 1).load()
    assert (len(loaded.host_spans), loaded.steps) == (0, ())


@pytest.mark.parametrize("category", ["gpu_memcpy", "gpu_memset", "Memcpy", "Memset"])
def test_copies_are_neither_compute_nor_communication(trace: Any, category: str) -> None:
    loaded = trace.step(1, 0, 50).launch(1, 0).add(category, "Memcpy DtoD", 10, 20, 7, correlation=1, stream=9).load()
    assert (rows(loaded.copies), loaded.copies.lane.tolist(), loaded.copies.step.tolist()) == ([(10, 20)], [9], [0])
    assert len(loaded.compute) == len(loaded.collectives) == 0


@pytest.mark.parametrize(
    "category",
    ["cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "mtia_runtime", "privateuse1_runtime", "Runtime"],
)
def test_launches_of_every_vendor_are_found(trace: Any, category: str) -> None:
    loaded = trace.step(1, 0, 50).launch(1, 10, category=category).kernel("gemm", 100, 110, 1).load()
    assert loaded.compute.step.tolist() == [0]


def test_old_traces_have_other_categories_and_threads_as_text(trace: Any) -> None:
    trace.add("Operator", "ProfilerStep#16", 0, 1000, "25738")
    trace.add("Operator", "Optimizer.step#SGD.step", 0, 500, "25738")
    trace.add("Runtime", "cudaLaunchKernel", 10, 20, "25738", correlation=1)
    loaded = trace.add("Kernel", "gemm", 100, 110, "stream 7", correlation=1).load()
    assert loaded.device == "gpu"
    assert (loaded.compute.step.tolist(), loaded.compute.phase.tolist()) == ([0], [Phase.OPTIMIZER])
    assert loaded.host_spans.thread.tolist() == [25738]


@pytest.mark.parametrize(
    ("launch_ns", "thread", "phase"),
    [
        pytest.param(50, TRAINING, Phase.FORWARD, id="forward"),
        pytest.param(150, AUTOGRAD, Phase.BACKWARD, id="backward-on-its-own-thread"),
        pytest.param(150, TRAINING, Phase.OTHER, id="training-thread-meanwhile"),
        pytest.param(170, AUTOGRAD, Phase.BACKWARD, id="reducer-within-backward"),
        pytest.param(250, AUTOGRAD, Phase.FINALIZE, id="reducer-after-backward"),
        pytest.param(350, TRAINING, Phase.OPTIMIZER, id="optimizer"),
        pytest.param(450, TRAINING, Phase.OTHER, id="zero-grad"),
        pytest.param(100, TRAINING, Phase.OTHER, id="spans-are-half-open"),
    ],
)
def test_phase_is_that_of_the_launch_on_its_thread(trace: Any, launch_ns: int, thread: int, phase: Phase) -> None:
    trace.annotation("DistributedDataParallel.forward", 0, 100)
    trace.op("autograd::engine::evaluate_function: MmBackward0", 100, 200, AUTOGRAD)
    trace.op("torch::distributed::reducer::mul_out", 160, 180, AUTOGRAD)
    trace.op("torch.distributed.ddp.reducer::copy_bucket_to_grad", 240, 260, AUTOGRAD)
    trace.annotation("Optimizer.step#SGD.step", 300, 400).annotation("Optimizer.zero_grad#SGD.zero_grad", 400, 500)
    trace.launch(1, launch_ns, thread).kernel("gemm", 1000, 1010, 1).kernel(ALL_REDUCE, 1020, 1030, 1)
    loaded = trace.load()
    assert (loaded.compute.phase.tolist(), loaded.collectives.phase.tolist()) == ([phase], [phase])


def test_the_hosts_waits_for_the_accelerator_are_kept(trace: Any) -> None:
    trace.step(1, 0, 1000).launch(1, 10).kernel("gemm", 100, 200, 1)
    trace.add("cuda_runtime", "cudaStreamSynchronize", 50, 210, TRAINING, correlation=2)
    host = trace.load().host_spans
    rows = list(zip(host.mark, host.start_ns, host.end_ns, host.step, host.thread, strict=True))
    assert rows == [(Mark.DEVICE_WAIT, 50, 210, 0, TRAINING)]


def test_one_launch_may_queue_many_kernels(trace: Any) -> None:
    trace.step(1, 0, 100).launch(5, 50).kernel("a", 200, 210, 5).kernel("b", 210, 220, 5)
    assert trace.load().compute.step.tolist() == [0, 0]


def test_a_kernel_without_its_launch_belongs_to_no_step(trace: Any) -> None:
    trace.step(1, 0, 1000).launch(5, 50).kernel("a", 200, 210, 6).kernel(ALL_REDUCE, 300, 310, 0)
    loaded = trace.kernel(ALL_REDUCE, 400, 410, 5).load()
    assert (loaded.compute.step.tolist(), loaded.compute.phase.tolist()) == ([NO_STEP], [Phase.OTHER])
    assert (loaded.collectives.step.tolist(), loaded.collectives.launched_ns.tolist()) == ([NO_STEP, 0], [UNKNOWN, 50])
    assert loaded.notes == ()


def test_correlation_zero_joins_nothing(trace: Any) -> None:
    trace.step(1, 0, 1000).launch(0, 50).kernel("a", 200, 210, 0).launch(1, 60).kernel("a", 300, 310, 1)
    assert trace.load().compute.step.tolist() == [NO_STEP, 0]


@pytest.mark.parametrize("launches", [pytest.param((), id="none"), pytest.param((7, 8), id="of-other-kernels")])
def test_without_any_known_launch_kernels_count_where_they_run_and_it_is_said(
    launches: tuple[int, ...], trace: Any
) -> None:
    for correlation in launches:
        trace.launch(correlation, 50)
    loaded = trace.step(1, 0, 1000).kernel("a", 200, 210, 6).kernel(ALL_REDUCE, 300, 310, 0).load()
    assert loaded.compute.step.tolist() == loaded.collectives.step.tolist() == [0]
    assert "launched" in loaded.notes[0]


def test_a_collective_has_what_its_arguments_say(trace: Any) -> None:
    trace.step(1, 0, 1000).launch(1, 10).annotation("DistributedDataParallel.forward", 0, 100)
    arguments = {
        "Collective name": "_allgather_base", "In msg nelems": 100, "dtype": "BFloat16",
        "Process Group Name": "3", "Seq": 17,
        "Out msg nelems": 400, "Group size": 4, "Process Group Ranks": "[0, 2, 4, 6]",
    }  # fmt: skip
    loaded = trace.kernel("ncclDevKernel_Generic(ncclDevComm*)", 500, 600, 1, 20, **arguments).load()
    found = loaded.collectives
    assert found.kind.tolist() == [CollectiveKind.ALL_GATHER]
    assert (found.num_bytes.tolist(), found.sequence.tolist(), found.launched_ns.tolist()) == ([800], [17], [10])
    assert loaded.groups[found.group[0]] == ProcessGroup("3", 4, (0, 2, 4, 6))
    assert (found.lane.tolist(), found.phase.tolist()) == ([20], [Phase.FORWARD])


def test_a_collective_is_known_by_its_name_alone(trace: Any) -> None:
    loaded = trace.launch(1, 10).kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 500, 600, 1).load()
    found = loaded.collectives
    assert (found.kind.tolist(), found.num_bytes.tolist()) == ([CollectiveKind.ALL_REDUCE], [UNKNOWN])
    assert (found.group.tolist(), found.sequence.tolist()) == ([UNKNOWN], [UNKNOWN])


def test_a_collective_is_known_by_its_argument_alone(trace: Any) -> None:
    loaded = trace.launch(1, 10).kernel("vendor_kernel_17", 500, 600, 1, **{"Collective name": "allreduce"}).load()
    assert (len(loaded.compute), loaded.collectives.kind.tolist()) == (0, [CollectiveKind.ALL_REDUCE])


@pytest.mark.parametrize("odd", [{"In msg nelems": "[1, 2]"}, {"dtype": 5}, {"In msg nelems": None}, {"dtype": "Odd"}])
def test_odd_arguments_of_a_collective_are_unknown_and_no_error(trace: Any, odd: dict[str, object]) -> None:
    arguments = {"In msg nelems": 10, "dtype": "Float", "Process Group Name": 4, "Seq": "x", **odd}
    found = trace.launch(1, 10).kernel(ALL_REDUCE, 500, 600, 1, **arguments).load().collectives
    assert (found.num_bytes.tolist(), found.group.tolist(), found.sequence.tolist()) == (
        [UNKNOWN],
        [UNKNOWN],
        [UNKNOWN],
    )


def test_with_world_size_one_there_is_no_communication(trace: Any) -> None:
    trace.op("c10d::allreduce_", 0, 10).launch(1, 5)
    loaded = trace.kernel("gemm", 500, 600, 1).load()
    assert (len(loaded.collectives), len(loaded.compute)) == (0, 1)
    assert loaded.host_spans.mark.tolist() == [Mark.COLLECTIVE_CALL]


def test_ddp_over_gloo_communicates_on_the_host_while_the_device_computes(trace: Any) -> None:
    trace.step(1, 0, 1000).op("c10d::allreduce_", 100, 110).annotation("gloo:all_reduce", 120, 300, 300)
    loaded = trace.launch(1, 5).kernel("gemm", 500, 600, 1).load()
    assert (rows(loaded.collectives), loaded.collectives.launched_ns.tolist()) == ([(120, 300)], [100])


def test_tables_are_sorted_by_start(trace: Any) -> None:
    trace.launch(1, 5).kernel("b", 500, 600, 1).kernel("a", 100, 200, 1).kernel(ALL_REDUCE, 90, 95, 1)
    loaded = trace.kernel("ncclDevKernel_Broadcast", 10, 20, 1).load()
    assert [loaded.names[name] for name in loaded.compute.name] == ["a", "b"]
    assert loaded.collectives.kind.tolist() == [CollectiveKind.BROADCAST, CollectiveKind.ALL_REDUCE]


def test_columns_are_read_only(trace: Any) -> None:
    loaded = trace.launch(1, 5).kernel("b", 500, 600, 1).load()
    with pytest.raises(ValueError, match="read-only"):
        loaded.compute.start_ns[0] = 0


@pytest.mark.parametrize(
    ("keys", "epoch"), [({}, None), ({"baseTimeNanoseconds": 1790857026000000000}, 1790857026000000000)]
)
def test_the_epoch_is_what_the_file_says(trace: Any, keys: dict[str, object], epoch: int | None) -> None:
    trace.keys = keys
    assert trace.launch(1, 5).kernel("b", 500, 600, 1).load().epoch_ns == epoch


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        pytest.param({}, (None, None, None, None), id="nothing"),
        pytest.param(
            {"distributedInfo": {"rank": 0, "world_size": 2, "backend": "nccl"}, "host_name": "n1"},
            (0, 2, "nccl", "n1"), id="rank-zero-is-a-rank",
        ),
        pytest.param({"distributedInfo": {"rank": "3", "world_size": "8"}}, (3, 8, None, None), id="text"),
        pytest.param({"distributedInfo": {"backend": "nccl"}}, (None, None, "nccl", None), id="rank-missing"),
        pytest.param({"distributedInfo": [1], "host_name": 5}, (None, None, None, None), id="odd"),
    ],
)  # fmt: skip
def test_rank_and_host_are_those_of_the_file(trace: Any, keys: dict[str, object], expected: tuple[object, ...]) -> None:
    trace.keys = keys
    loaded = trace.launch(1, 5).kernel("b", 500, 600, 1).load()
    assert (loaded.rank, loaded.world_size, loaded.backend, loaded.host) == expected


def test_a_step_without_kernels_stays_a_step(trace: Any) -> None:
    trace.step(1, 0, 100).step(2, 100, 200).launch(1, 150).kernel("b", 500, 600, 1)
    loaded = trace.load()
    assert [(step.number, step.duration_ns) for step in loaded.steps] == [(1, 100), (2, 100)]
    assert loaded.compute.step.tolist() == [1]


def test_calls_of_a_barrier_and_of_batch_norm_are_marks(trace: Any) -> None:
    """NCCL's barrier is an all-reduce; what the script asked for stands on the host."""
    trace.op("c10d::barrier", 10, 20).launch(1, 12).op("SyncBatchNorm", 30, 50).launch(2, 35)
    loaded = trace.kernel(ALL_REDUCE, 25, 28, 1).kernel(ALL_REDUCE, 55, 60, 2).load()
    assert loaded.host_spans.mark.tolist() == [Mark.COLLECTIVE_CALL, Mark.SYNC_BATCH_NORM]
    assert loaded.collectives.launched_ns.tolist() == [12, 35]
    assert [loaded.names[name] for name in loaded.host_spans.name] == ["c10d::barrier", "SyncBatchNorm"]


@pytest.mark.parametrize(
    ("category", "call", "has_cuda"),
    [
        pytest.param("cuda_runtime", "cudaLaunchKernel", True, id="cuda"),
        pytest.param("cuda_driver", "cuLaunchKernelEx", True, id="driver"),
        pytest.param("hip_runtime", "hipLaunchKernel", True, id="hip"),
        pytest.param("mtia_runtime", "mtiaLaunch", False, id="mtia"),
        pytest.param("xpu_runtime", "urEnqueueKernelLaunch", False, id="xpu"),
    ],
)
def test_whose_accelerator_it_is(trace: Any, category: str, call: str, has_cuda: bool) -> None:
    trace.add(category, call, 0, 5, TRAINING, correlation=1)
    assert trace.kernel("gemm", 10, 20, 1).load().has_cuda is has_cuda


def test_without_any_call_nothing_is_said_against_cuda(trace: Any) -> None:
    assert trace.kernel("gemm", 10, 20, 1).load().has_cuda
