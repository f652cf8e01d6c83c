import pytest

from ddpprof.load.classify import (
    Role,
    classify,
    collective_kind,
    element_bytes,
    is_communication_kernel,
    may_queue_work,
    step_number,
    waits_for_device,
)
from ddpprof.model import UNKNOWN, CollectiveKind, Mark

K = CollectiveKind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", K.ALL_REDUCE),
        ("ncclKernel_AllReduce_TREE_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)", K.ALL_REDUCE),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", K.BROADCAST),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", K.SEND_RECV),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclWorkElem)", K.REDUCE_SCATTER),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", K.ALL_GATHER),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", K.ALL_REDUCE),
        ("ncclDevKernel_Reduce_Sum_bf16_RING_LL(ncclDevComm*)", K.REDUCE),
        ("ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)", K.OTHER),
        ("ncclDevKernel_Generic_1(ncclDevComm*)", K.OTHER),
        ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_f32(ncclSymDevArgs)", K.ALL_REDUCE),
        ("ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)", K.ALL_GATHER),
        ("rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", K.OTHER),
        ("void rccl_allreduce<float>(float*)", K.ALL_REDUCE),
        ("oneccl_allreduce_large_bf16", K.ALL_REDUCE),
        ("HcclAllreduce", K.ALL_REDUCE),
        ("hcom_broadcast_", K.BROADCAST),
        ("void multimem_all_reduce_kernel<float, 16>(float*, unsigned int**)", K.ALL_REDUCE),
        ("void c10d::multimem_one_shot_all_reduce_kernel<c10::BFloat16, 8>(...)", K.ALL_REDUCE),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel<float, 16, 8>(float**)", K.ALL_REDUCE),
        ("void one_shot_all_reduce_kernel<float>(float**)", K.ALL_REDUCE),
        ("multimem_all_gather_kernel", K.ALL_GATHER),
        ("void c10d::(anonymous namespace)::oneShotAllReduceKernel<4u, false>(c10d::P2pState**)", K.ALL_REDUCE),
        ("void hybridCubeMeshAllReduceKernel<true>(void*)", K.ALL_REDUCE),
        ("_Z42ncclDevKernel_AllReduce_Sum_f32_RING_LLP11ncclDevCommmP8ncclWork", K.ALL_REDUCE),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", K.ALL_REDUCE),
        ("mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", K.OTHER),
        ("oneccl_allreduce_pcie<sycl::half, Rt64_128_PCIE, RingTransmit>", K.ALL_REDUCE),
    ],
)
def test_communication_kernels_are_known_by_name(name: str, kind: CollectiveKind) -> None:
    identity = classify("kernel", name)
    assert (identity.role, identity.kind) == (Role.KERNEL, kind)


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)",
        "void padmask_dma_gather(float*)",
        "hipMemsetKernel",
        "Cijk_Ailk_Bljk_SB_MT128x64x8_SE_AMAS3_BL1_BS1_HIP",
        "void gather_topk<float>(int)",
        "triton_per_fused_all_reduce_like_0",
        "void copy_for(ncclDevComm*)",
        "void elementwise<ncclFloat>(int)",
        "_Z8copy_forP11ncclDevComm",
        "void one_shot_attention_kernel(float*)",
    ],
)
def test_other_kernels_are_compute(name: str) -> None:
    assert not is_communication_kernel(name)
    assert classify("kernel", name).kind is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", K.ALL_REDUCE),
        ("allreduce_coalesced_", K.ALL_REDUCE),
        ("sparse_all_reduce", K.ALL_REDUCE),
        ("_allgather_base", K.ALL_GATHER),
        ("allgather_into_tensor_coalesced_", K.ALL_GATHER),
        ("_reduce_scatter_base", K.REDUCE_SCATTER),
        ("reduce_scatter_tensor_coalesced_", K.REDUCE_SCATTER),
        ("reduce", K.REDUCE),
        ("all_to_allv", K.ALL_TO_ALL),
        ("alltoall_base_", K.ALL_TO_ALL),
        ("send 0->1", K.SEND_RECV),
        ("recv_any_source_", K.SEND_RECV),
        ("barrier", K.BARRIER),
        ("gather_", K.GATHER),
        ("scatter_", K.SCATTER),
        ("broadcast_", K.BROADCAST),
        ("wait", K.OTHER),
        ("", K.OTHER),
    ],
)
def test_kinds_of_collectives(name: str, kind: CollectiveKind) -> None:
    assert collective_kind(name) is kind


@pytest.mark.parametrize("prefix", ["gloo", "mpi", "ucc"])
def test_host_collectives(prefix: str) -> None:
    for category in ("user_annotation", "cpu_op", "Operator"):
        identity = classify(category, f"{prefix}:all_reduce")
        assert (identity.role, identity.kind, identity.is_op) == (Role.HOST_COLLECTIVE, K.ALL_REDUCE, False)


def test_nccl_spans_of_the_host_are_neither_communication_nor_compute() -> None:
    assert classify("user_annotation", "nccl:all_reduce").role is Role.UNUSED
    assert classify("Operator", "nccl:all_reduce").is_op is False


@pytest.mark.parametrize(
    ("category", "name", "mark", "is_op"),
    [
        ("user_annotation", "DistributedDataParallel.forward", Mark.FORWARD, False),
        ("cpu_op", "DistributedDataParallel.forward", Mark.FORWARD, False),
        ("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", Mark.BACKWARD, True),
        ("user_annotation", "Optimizer.step#AdamW.step", Mark.OPTIMIZER, False),
        ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", Mark.DATA, False),
        ("cpu_op", "torch::distributed::reducer::mul_out", Mark.BUCKET_COPY_IN, True),
        ("cpu_op", "torch::distributed::reducer::copy_", Mark.BUCKET_COPY_IN, True),
        ("cpu_op", "torch.distributed.ddp.reducer::copy_bucket_to_grad", Mark.BUCKET_COPY_OUT, True),
        ("cpu_op", "torch.distributed.ddp.reducer::search_unused_parameters", Mark.UNUSED_SEARCH, True),
        ("cpu_op", "c10d::allreduce_", Mark.COLLECTIVE_CALL, True),
    ],
)
def test_marks(category: str, name: str, mark: Mark, is_op: bool) -> None:
    identity = classify(category, name)
    assert (identity.role, identity.mark, identity.is_op) == (Role.MARK, mark, is_op)


@pytest.mark.parametrize(
    ("category", "name"),
    [
        ("user_annotation", "Optimizer.zero_grad#SGD.zero_grad"),
        ("gpu_user_annotation", "DistributedDataParallel.forward"),
        ("python_function", "DistributedDataParallel.forward"),
        ("ac2g", "ac2g"),
        ("cuda_sync", "Context Sync"),
        ("overhead", "CUPTI_Runtime"),
        ("Trace", "PyTorch Profiler (0)"),
        ("", "process_name"),
    ],
)
def test_nobody_needs_the_rest(category: str, name: str) -> None:
    assert classify(category, name).role is Role.UNUSED


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ProfilerStep#12", 12),
        ("ProfilerStep# 12", 12),
        ("ProfilerStep #12", 12),
        ("ProfilerStep#", None),
        ("ProfilerStep#x", None),
        ("MyProfilerStep#1", None),
        ("ProfilerStep#" + "9" * 30, None),
    ],
)
def test_step_numbers(name: str, number: int | None) -> None:
    assert step_number(name) == number


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("Float", 4), ("float", 4), ("Half", 2), ("c10::Half", 2), ("BFloat16", 2), ("c10::BFloat16", 2), ("Double", 8),
        ("Long", 8), ("long int", 8), ("Int", 4), ("Byte", 1), ("unsigned char", 1), ("Bool", 1), ("Float8_e4m3fn", 1),
        ("c10::Float8_e5m2", 1), ("c10::complex<float>", 8), ("ComplexDouble", 16), ("Scalar", UNKNOWN), ("", UNKNOWN),
    ],
)  # fmt: skip
def test_sizes_of_elements(dtype: str, size: int) -> None:
    assert element_bytes(dtype) == size


@pytest.mark.parametrize("call", ["cudaLaunchKernel", "cuLaunchKernelEx", "hipMemcpyWithStream", "cudaGraphLaunch"])
def test_calls_that_queue_work(call: str) -> None:
    assert may_queue_work(call)


@pytest.mark.parametrize(
    "call", ["cudaEventRecord", "cudaStreamIsCapturing", "hipGetDeviceCount", "cudaFuncSetAttribute"]
)
def test_calls_that_only_ask_or_mark(call: str) -> None:
    assert not may_queue_work(call)


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        ("cudaStreamSynchronize", True),
        ("cudaDeviceSynchronize", True),
        ("cudaEventSynchronize", True),
        ("cudaStreamSynchronize_v3020", True),
        ("hipMemcpyWithStream", True),
        ("cuCtxSynchronize", True),
        ("cudaStreamWaitEvent", False),
        ("cudaMemcpyAsync", False),
        ("cudaLaunchKernel", False),
    ],
)
def test_calls_that_wait_for_the_accelerator(call: str, waits: bool) -> None:
    assert waits_for_device(call) is waits
    assert (classify("cuda_runtime", call).mark is Mark.DEVICE_WAIT) is waits


@pytest.mark.parametrize(
    ("call", "manages"),
    [
        ("cudaMalloc", True),
        ("cudaFree", True),
        ("hipFree", True),
        ("cuMemUnmap", True),
        ("cudaMallocAsync", False),
        ("cudaFreeHost", False),
        ("cudaMemcpyAsync", False),
    ],
)
def test_calls_that_allocate_or_free_memory_of_the_accelerator(call: str, manages: bool) -> None:
    assert (classify("cuda_runtime", call).mark is Mark.DEVICE_MEMORY) is manages


def test_a_compiled_region_is_no_work_but_what_it_holds_is() -> None:
    """With torch.compile(ddp) it holds the whole of a DDP forward."""
    assert not classify("cpu_op", "Torch-Compiled Region: 0/0").is_op
    assert classify("cpu_op", "CompiledFunction").is_op
