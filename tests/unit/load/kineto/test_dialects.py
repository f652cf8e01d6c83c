"""What torch's profiler writes differs by version, vendor and collective library; the tables are the same.

`test_properties.py` holds every measure against it on random traces; here is one case per oddity.
"""

from typing import Any

import pytest

from ddpprof.model import NO_STEP, UNKNOWN, CollectiveKind, Kernel, Phase, ProcessGroup

TRAINING, AUTOGRAD = 100, 200
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
GENERIC = "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)"
K = CollectiveKind


@pytest.mark.parametrize("launch", ["cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch"])
def test_kernels_of_a_graph_belong_where_the_graph_was_launched(launch: str, trace: Any) -> None:
    trace.step(1, 0, 100).step(2, 100, 200)
    trace.add("cuda_runtime", launch, 50, 60, correlation=5)
    for start in (110, 150, 250):
        trace.kernel("gemm", start, start + 10, 5, **{"graph id": 3, "graph node id": start})
    loaded = trace.kernel(ALL_REDUCE, 300, 310, 5).load()
    assert loaded.compute.step.tolist() == [0, 0, 0]
    assert (loaded.collectives.step.tolist(), loaded.collectives.launched_ns.tolist()) == ([0], [50])


def test_an_ascend_npu_is_an_accelerator_whose_collectives_are_hccl_s(trace: Any) -> None:
    """Its row in `model.backends` is all that is known of it."""
    trace.step(1, 0, 100).add("privateuse1_runtime", "aclrtLaunchKernel", 10, 12, correlation=1)
    trace.add("privateuse1_runtime", "aclrtLaunchKernel", 20, 22, correlation=2)
    trace.kernel("MatMulV2", 30, 60, 1, stream=3)
    loaded = trace.kernel("hcom_allReduce__523_0_1", 50, 90, 2, stream=8).load()
    assert loaded.device != "cpu"
    assert loaded.compute.step.tolist() == [0]
    assert (loaded.collectives.kind.tolist(), loaded.collectives.launched_ns.tolist()) == ([K.ALL_REDUCE], [20])


def test_a_rank_of_one_step_has_it(trace: Any) -> None:
    loaded = trace.step(7, 0, 100).launch(1, 50).kernel("gemm", 500, 600, 1).load()
    assert ([step.number for step in loaded.steps], loaded.compute.step.tolist()) == ([7], [0])


def test_times_may_be_whole_microseconds(trace: Any) -> None:
    """Before 2024; and a kernel shorter than one lasts none."""
    trace.step(1, 0, 100_000).launch(1, 5_000).kernel("gemm", 9_000, 9_000, 1).kernel("gemm", 10_000, 12_000, 1)
    for event in trace.events:
        event["ts"], event["dur"] = int(event["ts"]), int(event["dur"])
    loaded = trace.load()
    assert (loaded.compute.start_ns.tolist(), loaded.compute.end_ns.tolist()) == ([9_000, 10_000], [9_000, 12_000])


@pytest.mark.parametrize(
    ("kernel", "known"),
    [
        pytest.param({"External id": 5, "correlation": 9}, True, id="linked-to-its-op"),
        pytest.param({"External id": 5, "correlation": 5}, False, id="its-own-correlation"),
        pytest.param({"External id": 0, "correlation": 9}, False, id="none"),
    ],
)
def test_a_kernel_that_names_its_correlation_is_linked_to_no_op(
    kernel: dict[str, int], known: bool, trace: Any
) -> None:
    """The op with that number is another: pytorch/kineto issue 843."""
    trace.op("aten::mm", 0, 10, **{"External id": 5, "Input Dims": [[4, 4]]})
    loaded = trace.add("kernel", "gemm", 20, 30, 7, stream=7, **kernel).load()
    assert loaded.kernels == (Kernel("gemm", None, "[[4,4]]" if known else None),)


@pytest.mark.parametrize("write", [str, float, int], ids=["text", "float", "integer"])
def test_numbers_in_arguments_may_be_text_or_floats(write: Any, trace: Any) -> None:
    trace.step(1, 0, 100).add("cuda_runtime", "cudaLaunchKernel", 10, 15, correlation=write(5))
    trace.add("kernel", ALL_REDUCE, 20, 30, 7, **{
        "correlation": write(5), "stream": write(20), "Collective name": "allreduce", "In msg nelems": write(8),
        "dtype": "Float", "Group size": write(2), "Seq": write(3),
    })  # fmt: skip
    loaded = trace.load()
    found = loaded.collectives
    assert (found.step.tolist(), found.lane.tolist(), found.num_bytes.tolist(), found.sequence.tolist()) == (
        [0], [20], [32], [3],
    )  # fmt: skip
    assert loaded.groups == (ProcessGroup(None, 2),)


@pytest.mark.parametrize("count", [1, 2])
def test_several_accelerators_of_one_rank_are_named(count: int, trace: Any) -> None:
    trace.step(1, 0, 100).launch(1, 5)
    for device in range(count):
        trace.kernel("gemm", 10, 20, 1, device=device)
    trace.kernel("gemm", 30, 40, 1)
    assert [note for note in trace.load().notes if "accelerators" in note] == [
        "the rank's kernels ran on 2 accelerators. Only the devices table shows them separately"
    ][: count - 1]


class TestParamComms:
    """Of traces before 2023 the op has what the kernel lacks: it holds the launch of the kernel, on its thread."""

    @staticmethod
    def loaded(trace: Any, kernel: str = ALL_REDUCE, of_kernel: dict[str, Any] | None = None, **of_op: Any) -> Any:
        trace.op("c10d::allreduce_", 10, 40, AUTOGRAD).op("record_param_comms", 12, 38, AUTOGRAD, **of_op)
        trace.launch(1, 20, AUTOGRAD)
        return trace.kernel(kernel, 500, 600, 1, **(of_kernel or {})).load()

    def test_it_says_what_the_kernel_does_not(self, trace: Any) -> None:
        arguments = {
            "Collective name": "allreduce", "In msg nelems": 100, "Out msg nelems": 100, "dtype": "BFloat16",
            "Process Group Name": "0", "Group size": 2, "Process Group Ranks": "[0, 1]", "Seq": 4,
        }  # fmt: skip
        loaded = self.loaded(trace, GENERIC, **arguments)
        found = loaded.collectives
        assert (found.kind.tolist(), found.num_bytes.tolist(), found.sequence.tolist()) == ([K.ALL_REDUCE], [200], [4])
        assert loaded.groups[found.group[0]] == ProcessGroup("0", 2, (0, 1))

    def test_what_the_kernel_says_counts_first(self, trace: Any) -> None:
        mine = {"Collective name": "allgather", "In msg nelems": 8, "dtype": "Byte", "Process Group Name": "7"}
        other = {"Collective name": "allreduce", "In msg nelems": 100, "dtype": "Float", "Seq": 3}
        loaded = self.loaded(trace, GENERIC, mine, **other)
        found = loaded.collectives
        assert (found.kind.tolist(), found.num_bytes.tolist(), found.sequence.tolist()) == ([K.ALL_GATHER], [8], [3])
        assert loaded.groups[found.group[0]].name == "7"

    @pytest.mark.parametrize(
        ("kernel", "num_bytes"),
        [
            pytest.param("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", 3072, id="all-to-all"),
            pytest.param("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 3072, id="all-reduce"),
            pytest.param("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", UNKNOWN, id="output-is-larger"),
            pytest.param(GENERIC, UNKNOWN, id="collective-unknown"),
        ],
    )
    def test_shapes_are_those_of_the_inputs(self, kernel: str, num_bytes: int, trace: Any) -> None:
        shapes = {"Input Dims": [[384], [], [], []], "Input type": ["long", "Scalar", "Scalar", ""]}
        assert self.loaded(trace, kernel, **shapes).collectives.num_bytes.tolist() == [num_bytes]

    def test_lists_of_tensors_have_no_size(self, trace: Any) -> None:
        shapes = {"Input Dims": [[], [], [], []], "Input type": ["TensorList", "Scalar", "Scalar", ""]}
        found = self.loaded(trace, **shapes).collectives
        assert (found.num_bytes.tolist(), found.kind.tolist()) == ([UNKNOWN], [K.ALL_REDUCE])

    @pytest.mark.parametrize(
        ("launched", "thread"),
        [
            pytest.param(45, AUTOGRAD, id="launched-after-it"),
            pytest.param(11, AUTOGRAD, id="before-it"),
            pytest.param(20, TRAINING, id="on-another-thread"),
        ],
    )
    def test_an_op_that_does_not_hold_the_launch_says_nothing(self, launched: int, thread: int, trace: Any) -> None:
        trace.op("record_param_comms", 12, 38, AUTOGRAD, **{"In msg nelems": 100, "dtype": "Float"})
        loaded = trace.launch(1, launched, thread).kernel(ALL_REDUCE, 500, 600, 1).load()
        assert loaded.collectives.num_bytes.tolist() == [UNKNOWN]

    def test_without_an_accelerator_it_is_an_op_like_any(self, trace: Any) -> None:
        trace.step(1, 0, 100).op("record_param_comms", 10, 20)
        loaded = trace.op("aten::mm", 30, 40).load()
        assert [loaded.names[name] for name in loaded.compute.name] == ["record_param_comms", "aten::mm"]


class TestCommunicationWithoutLaunch:
    """ROCm's tracer gives every communication kernel the correlation 0: ROCm/roctracer issue 100."""

    def test_it_counts_with_the_work_begun_before_it(self, trace: Any) -> None:
        trace.annotation("DistributedDataParallel.forward", 0, 100)
        trace.op("autograd::engine::evaluate_function: MmBackward0", 100, 200, AUTOGRAD)
        trace.step(1, 0, 250).step(2, 250, 500).launch(1, 50).launch(2, 150, AUTOGRAD).launch(3, 260)
        trace.kernel("forward", 60, 90, 1).kernel("backward", 300, 350, 2).kernel("next", 400, 450, 3)
        trace.add("gpu_memcpy", "Memcpy HtoD", 380, 390, 7, correlation=3, stream=9)
        for start in (10, 70, 320, 360, 385, 410):
            trace.kernel(ALL_REDUCE, start, start + 20, 0)
        loaded = trace.load()
        found = loaded.collectives
        assert found.step.tolist() == [NO_STEP, 0, 0, 0, 1, 1]
        assert found.phase.tolist() == [
            Phase.OTHER, Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD, Phase.OTHER, Phase.OTHER,
        ]  # fmt: skip
        assert set(found.launched_ns.tolist()) == {UNKNOWN}
        assert "launched its collectives" in loaded.notes[0]

    def test_where_some_launches_are_known_the_others_began_before_the_profiler(self, trace: Any) -> None:
        trace.step(1, 0, 250).launch(1, 50).launch(2, 60).kernel("gemm", 60, 90, 1)
        loaded = trace.kernel(ALL_REDUCE, 70, 80, 0).kernel(ALL_REDUCE, 90, 100, 2).load()
        assert (loaded.collectives.step.tolist(), loaded.notes) == ([NO_STEP, 0], ())


@pytest.mark.parametrize(
    ("category", "name"),
    [
        ("xpu_driver", "zeCommandListAppendLaunchKernel"),
        ("xpu_runtime", "urEnqueueKernelLaunch"),
        ("privateuse1_driver", "launch"),
        ("mtia_runtime", "launch"),
        ("glow_runtime", "launch"),
        ("gcu_runtime", "topsLaunchKernel"),
        ("hip_driver", "hipModuleLaunchKernel"),
        ("Driver", "cuLaunchKernel"),
    ],
)
def test_every_vendors_launches_are_found(category: str, name: str, trace: Any) -> None:
    trace.step(1, 0, 50).add(category, name, 10, 15, correlation=1)
    assert trace.kernel("gemm", 100, 110, 1).load().compute.step.tolist() == [0]


@pytest.mark.parametrize(
    "category",
    ["xpu_sync", "cuda_event", "cuda_profiler_range", "xpu_scope_profiler", "mtia_insight", "mtia_counters", "hpu_op",
     "external_correlation", "cpu_instant_event", "gpu_user_annotation", "python_function"],
)  # fmt: skip
def test_other_categories_of_kineto_are_no_work(category: str, trace: Any) -> None:
    trace.step(1, 0, 50).launch(1, 10).kernel("gemm", 100, 110, 1)
    loaded = trace.add(category, "ncclDevKernel_AllReduce", 120, 130, 7, stream=7, correlation=1).load()
    assert (len(loaded.compute), len(loaded.collectives), len(loaded.copies)) == (1, 0, 0)
