"""Classification of a trace's events by category and name.

The category decides what is device work; the name decides what a kernel or a host span stands for. A `stream` argument
decides nothing, because host ops of Triton and rows such as `Context Sync` also have one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ddpprof.model import UNKNOWN, CollectiveKind, Mark, backends
from ddpprof.model.tables import InterruptibleEnum


class Role(IntEnum, metaclass=InterruptibleEnum):
    """The role of an event in the tables."""

    UNUSED = 0
    STEP = 1
    """``ProfilerStep#k``"""
    MARK = 2
    """a host span with a `Mark`"""
    OP = 3
    """any other host op"""
    LAUNCH = 4
    """the host's call that queued device work"""
    KERNEL = 5
    COPY = 6
    HOST_COLLECTIVE = 7
    """communication by a host thread: ``gloo:``, ``mpi:``, ``ucc:``"""
    PARAM_COMMS = 8
    """``record_param_comms``: the op that launches NCCL's collective; it has details that kernels of older versions
    lack
    """


DEVICE_ROLES = (Role.KERNEL, Role.COPY)


class Family(IntEnum):
    """Categories that are handled alike."""

    OTHER = 0
    OP = 1
    ANNOTATION = 2
    LAUNCH = 3
    KERNEL = 4
    COPY = 5


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity shared by all events of one category and name."""

    name: str
    role: Role
    is_op: bool = False
    """whether its thread computes during it"""
    mark: Mark | None = None
    kind: CollectiveKind | None = None
    """kind of a communication or a ``c10d::`` call; ``None`` for anything else"""


class IdentityColumns:
    """Properties of identities, by index; `UNKNOWN` stands for ``None``."""

    def __init__(self, identities: Sequence[Identity]) -> None:
        self.role = np.array([one.role for one in identities], np.int8)
        self.is_op = np.array([one.is_op for one in identities], np.bool_)
        self.mark = np.array([UNKNOWN if one.mark is None else one.mark for one in identities], np.int8)
        self.kind = np.array([UNKNOWN if one.kind is None else one.kind for one in identities], np.int8)
        self.is_only_op = self.role == Role.OP
        """whether it only represents compute"""


# Lower case: traces of 2021 write `Kernel`, `Operator`, `Runtime`.
_KERNEL_CATEGORIES = {"kernel", "mtia_ccp_events"}
_COPY_CATEGORIES = {"gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_LAUNCH_CATEGORY = re.compile(r"(?:[a-z0-9]+_)?(?:runtime|driver)")  # cuda_, hip_, xpu_, mtia_, privateuse1_, gcu_ …
_ASKS_ONLY = re.compile(
    r"(?:cuda|hip|cu)(?:Event(?!Synchronize)|Occupancy|Pointer|PeekAtLastError|Get|SetDevice|DeviceGet|Func[GS]et"
    r"|Stream(?:IsCapturing|Get|Query|WaitEvent))\w*"
)
_WAITS = re.compile(r"\w*Synchronize(?:_\w+)?|hipMemcpyWithStream")
_OP_CATEGORIES = {"cpu_op", "operator"}

# Spans that contain ops but are none. Traces of 2021 give them the category of ops. A compiled region contains the ops
# that torch.compile made, and a whole DDP forward if the module around it is compiled.
_ANNOTATION = re.compile(
    r"ProfilerStep\s*#|Optimizer\.(?:step|zero_grad)#|enumerate\(DataLoader\)#|(?:Distributed)?DataParallel\.forward"
    rf"|(?:{'|'.join(backends.KNOWN)}):|Torch-Compiled Region"
)
_OF_CUDA = re.compile(r"(?:cuda|cu|hip)[A-Z]")
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})")
_HOST_COLLECTIVE = re.compile(rf"(?:{'|'.join(backends.ON_HOST)}):(.*)", re.DOTALL)

_MARKS_BY_NAME = {
    "DistributedDataParallel.forward": Mark.FORWARD,
    "torch::distributed::reducer::mul_out": Mark.BUCKET_COPY_IN,
    "torch::distributed::reducer::copy_": Mark.BUCKET_COPY_IN,
    "torch.distributed.ddp.reducer::copy_bucket_to_grad": Mark.BUCKET_COPY_OUT,
    "torch.distributed.ddp.reducer::search_unused_parameters": Mark.UNUSED_SEARCH,
    "SyncBatchNorm": Mark.SYNC_BATCH_NORM,
    "DataParallel.forward": Mark.DATA_PARALLEL,
    "Broadcast": Mark.REPLICATE,
    "Scatter": Mark.SCATTER,
    "Gather": Mark.GATHER,
    "ReduceAddCoalesced": Mark.REDUCE_GRADIENTS,
    "aten::flatten_dense_tensors": Mark.FLATTEN,
    "aten::unflatten_dense_tensors": Mark.FLATTEN,
}
_MARKS_BY_PREFIX = (
    ("autograd::engine::evaluate_function", Mark.BACKWARD),
    ("Optimizer.step#", Mark.OPTIMIZER),
    ("enumerate(DataLoader)#", Mark.DATA),
    ("c10d::", Mark.COLLECTIVE_CALL),
    ("FullyShardedDataParallel.", Mark.SHARDED),
    ("FSDP::", Mark.SHARDED),
)

# ncclKernel_…, ncclDevKernel_…, ncclSymk…, rccl…, msccl… (RCCL's), oneccl…, Hccl…, also mangled; then torch's own:
# symmetric memory, and before it `oneShotAllReduceKernel`, `hybridCubeMeshAllReduceKernel`.
_COMMUNICATION_KERNEL = re.compile(
    rf"(?:\b|^_Z\d+)(?:{'|'.join(backends.KERNELS)})"
    r"|\b(?:multimem_\w*|(?:one|two)_?shot_?|hybridCubeMesh)(?:all_?reduce|all_?gather|reduce_?scatter)",
    re.IGNORECASE,
)

# The longer name first: `reducescatter` holds `reduce` and `scatter`.
_KINDS = (
    ("allreduce", CollectiveKind.ALL_REDUCE),
    ("reducescatter", CollectiveKind.REDUCE_SCATTER),
    ("allgather", CollectiveKind.ALL_GATHER),
    ("alltoall", CollectiveKind.ALL_TO_ALL),
    ("broadcast", CollectiveKind.BROADCAST),
    ("bcast", CollectiveKind.BROADCAST),
    ("barrier", CollectiveKind.BARRIER),
    ("gather", CollectiveKind.GATHER),
    ("scatter", CollectiveKind.SCATTER),
    ("reduce", CollectiveKind.REDUCE),
    ("send", CollectiveKind.SEND_RECV),
    ("recv", CollectiveKind.SEND_RECV),
)

# The NCCL logger's spelling (`In msg nelems`, `dtype`), then C++'s (`Input type`).
_ELEMENT_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "unsigned char", "signed char"), 1),
    **dict.fromkeys(("short", "short int", "half", "bfloat16", "uint16", "unsigned short"), 2),
    **dict.fromkeys(("int", "float", "uint32", "unsigned int"), 4),
    **dict.fromkeys(("long", "long int", "long long", "double", "uint64", "unsigned long"), 8),
    **dict.fromkeys(("complexfloat", "complex<float>"), 8),
    **dict.fromkeys(("complexdouble", "complex<double>"), 16),
}


def family(category: str) -> Family:
    category = category.lower()
    if category in _OP_CATEGORIES:
        return Family.OP
    if category == "user_annotation":
        return Family.ANNOTATION
    if category in _KERNEL_CATEGORIES:
        return Family.KERNEL
    if category in _COPY_CATEGORIES:
        return Family.COPY
    return Family.LAUNCH if _LAUNCH_CATEGORY.fullmatch(category) else Family.OTHER


def is_of_cuda(call: str) -> bool:
    """Return True if a host call is a CUDA or HIP function."""
    return _OF_CUDA.match(call) is not None


def may_queue_work(call: str) -> bool:
    """Return True if a host call may queue work. About half of all calls only query or mark, and take no time."""
    return _ASKS_ONLY.fullmatch(call) is None


def waits_for_device(call: str) -> bool:
    """Return True if a host call returns only when the accelerator has done its work."""
    return _WAITS.fullmatch(call) is not None


def classify(category: str, name: str) -> Identity:
    """Return the identity of events with this category and name."""
    return classify_in(family(category), name)


def classify_in(which: Family, name: str) -> Identity:
    if which in (Family.OP, Family.ANNOTATION):
        return _classify_host_span(name, in_op_category=which is Family.OP)
    if which is Family.KERNEL:
        return Identity(name, Role.KERNEL, kind=collective_kind(name) if is_communication_kernel(name) else None)
    if which is Family.LAUNCH and waits_for_device(name):
        return Identity(name, Role.MARK, mark=Mark.DEVICE_WAIT)
    return Identity(name, _ROLES.get(which, Role.UNUSED))


_ROLES = {Family.COPY: Role.COPY, Family.LAUNCH: Role.LAUNCH}


def _classify_host_span(name: str, *, in_op_category: bool) -> Identity:
    if step_number(name) is not None:
        return Identity(name, Role.STEP)
    if match := _HOST_COLLECTIVE.fullmatch(name):
        return Identity(name, Role.HOST_COLLECTIVE, kind=collective_kind(match.group(1)))
    is_op = in_op_category and not _ANNOTATION.match(name)
    if is_op and name == "record_param_comms":
        return Identity(name, Role.PARAM_COMMS, is_op, kind=CollectiveKind.OTHER)
    mark = _mark(name)
    if mark is not None:
        kind = collective_kind(name.removeprefix("c10d::")) if mark is Mark.COLLECTIVE_CALL else None
        return Identity(name, Role.MARK, is_op, mark, kind)
    return Identity(name, Role.OP if is_op else Role.UNUSED, is_op)


def step_number(name: str) -> int | None:
    """Return the ``k`` of ``ProfilerStep#k``, or ``None`` for other names."""
    match = _STEP.fullmatch(name)
    return int(match.group(1)) if match else None


def is_communication_kernel(name: str) -> bool:
    return bool(_COMMUNICATION_KERNEL.search(_without_parameters(name)))


def collective_kind(name: str) -> CollectiveKind:
    """Return the collective named by a kernel, a ``c10d::`` op or a ``Collective name`` argument."""
    letters = re.sub(r"[^a-z]", "", _without_parameters(name).lower())
    return next((kind for part, kind in _KINDS if part in letters), CollectiveKind.OTHER)


def element_bytes(dtype: str) -> int:
    """Return the size of one element in bytes, given the name of its type, or `UNKNOWN`."""
    dtype = dtype.lower().removeprefix("c10::")
    return 1 if dtype.startswith("float8") else _ELEMENT_BYTES.get(dtype, UNKNOWN)


def _without_parameters(kernel: str) -> str:
    """Return a C++ kernel's own name, without template and function parameters, which name unrelated types."""
    return kernel.replace("(anonymous namespace)", "").partition("(")[0].partition("<")[0]


def _mark(name: str) -> Mark | None:
    if name in _MARKS_BY_NAME:
        return _MARKS_BY_NAME[name]
    return next((mark for prefix, mark in _MARKS_BY_PREFIX if name.startswith(prefix)), None)
