"""A recorded DDP module, the assignment of its gradients to buckets, and how torch.compile is applied to it.

A bucket is complete when its size reaches or exceeds its cap. There is one open bucket per kind of gradient (dtype and
device), and each kind has its own position in the list of caps. The last cap applies to all further buckets. This
assignment follows ``compute_bucket_assignment_by_size`` of PyTorch 2.13, as called by ``DistributedDataParallel`` and
its reducer (torch/csrc/distributed/c10d/reducer.cpp) if ``DDP_SET_LAST_BUCKET_CAP`` is not set.

DDP first assigns gradients to buckets in reverse parameter order. Unless it searches for unused parameters in every
iteration, it then rebuilds the buckets in the order in which gradients became ready on rank 0: at the second forward
pass, or at the third one with a static graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from msgspec import Struct

from ddpprof.model.backends import sends_half, sends_unchanged
from ddpprof.model.json_files import Int64


class Parameter(Struct, frozen=True, array_like=True):
    name: str
    num_bytes: Int64
    dtype: str | None = None
    """dtype, such as ``float32``; ``None`` in records of older versions of ddpprof, which lack `shape`, too"""
    shape: tuple[Int64, ...] = ()
    is_sparse: bool = False
    """True if the parameter's gradient is expected to be sparse"""
    used_rows: float | None = None
    """fraction of an embedding's rows with a nonzero averaged gradient in a step, estimated from a sample of rows;
    ``None`` if not recorded
    """


class DdpModule(Struct, frozen=True):
    """One recorded ``DistributedDataParallel`` instance."""

    name: str
    settings: Mapping[str, object]
    """constructor arguments by name, including defaults"""
    comm_hook: str | None
    parameters: tuple[Parameter, ...]
    """parameters in the reducer's order"""
    buckets: tuple[tuple[Int64, ...], ...]
    """parameter indices of each bucket; these are the buckets that DDP used in the recorded steps"""
    num_buffers: Int64
    buffer_bytes: Int64
    num_batch_norms: Int64
    num_buffers_of_batch_norms: Int64 | None = None
    """number of buffers that belong to batch norm layers; ``None`` in records of older versions of ddpprof"""
    unused: tuple[str, ...] | None = None
    """parameters that got no gradient in any of the examined backward passes; ``None`` if no pass was examined"""
    graph_is_static: bool | None = None
    """value of ``can_set_static_graph`` in PyTorch's DDP logging data"""
    num_searched_passes: Int64 = 0
    """number of backward passes in which ddpprof looked for parameters without a gradient"""
    num_lacking_passes: Int64 | None = None
    """number of examined backward passes in which at least one parameter got no gradient; ``None`` if not recorded"""
    num_used_passes: Int64 = 0
    """number of recorded backward passes after which an optimizer took a step with the reduced gradients"""
    num_discarded_passes: Int64 = 0
    """number of recorded backward passes whose reduced gradients were set to ``None`` before an optimizer used them"""
    largest_buffer: str | None = None
    """name of the largest buffer that DDP broadcasts"""
    largest_buffer_bytes: Int64 = 0

    @property
    def bucket_cap_mb(self) -> float | None:
        """Bucket cap in MiB, set by the user or PyTorch's default; ``None`` if not recorded."""
        cap = self.settings.get("bucket_cap_mb")
        return float(cap) if isinstance(cap, int | float) else None

    def message_bytes(self, bucket: int) -> int | None:
        """Return the message size of a bucket in bytes, or ``None`` if it is unknown because of a comm hook."""
        num_bytes = self.bucket_bytes(bucket)
        if sends_unchanged(self.comm_hook) or num_bytes is None:
            return num_bytes
        dtypes = {self.parameters[index].dtype for index in self.buckets[bucket]}
        return num_bytes // 2 if sends_half(self.comm_hook) and dtypes == {"float32"} else None

    def bucket_bytes(self, bucket: int) -> int | None:
        """Return the size of a bucket in bytes, or ``None`` for sparse gradients, which are sent only in part."""
        parameters = [self.parameters[index] for index in self.buckets[bucket]]
        return None if any(one.is_sparse for one in parameters) else sum(one.num_bytes for one in parameters)


MIB = 1 << 20
DEFAULT_CAP_MIB = 25
"""PyTorch's ``_DEFAULT_BUCKET_CAP_MB``, in MiB"""
DEFAULT_FIRST_CAP_MIB = 1

Buckets = tuple[tuple[int, ...], ...]
"""parameter indices of each bucket, in launch order"""


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of one parameter."""

    num_bytes: int
    kind: str = ""
    """dtype and device; all gradients in a bucket have the same kind"""
    is_sparse: bool = False
    """True if the gradient is expected to be sparse; a sparse gradient gets its own bucket"""
    item_bytes: int = 4
    """bytes per element"""
    shape: tuple[int, ...] = ()
    """shape of the parameter; empty if unknown"""


def gradient_of(parameter: Parameter) -> Gradient:
    items = prod(parameter.shape) if parameter.dtype is not None else 0
    return Gradient(
        parameter.num_bytes,
        parameter.dtype or "",
        is_sparse=parameter.is_sparse,
        item_bytes=parameter.num_bytes // items if items else 4,
        shape=parameter.shape,
    )


@dataclass(frozen=True, slots=True)
class Caps:
    first_bytes: int = DEFAULT_FIRST_CAP_MIB * MIB
    others_bytes: int = DEFAULT_CAP_MIB * MIB
    per_bucket_bytes: tuple[int, ...] = ()
    """cap of each bucket, in order; if not empty, it replaces `first_bytes` and `others_bytes`"""

    @classmethod
    def of(cls, bucket_cap_mb: float | None = None, bucket_cap_mb_list: Sequence[float] = ()) -> Caps:
        """Return the caps that DDP's arguments specify.

        A list overrides a single cap. The first bucket is small only with the default cap.
        """
        if bucket_cap_mb_list:
            return cls(per_bucket_bytes=tuple(int(cap * MIB) for cap in bucket_cap_mb_list))
        if bucket_cap_mb is None:
            return cls()
        return cls(int(bucket_cap_mb * MIB), int(bucket_cap_mb * MIB))

    @property
    def limits(self) -> tuple[int, ...]:
        return self.per_bucket_bytes or (self.first_bytes, self.others_bytes)


def same_buckets(one: Buckets, other: Buckets) -> bool:
    """Return True if the buckets are the same, regardless of their order.

    Records do not contain the order of buckets of different kinds.
    """
    return sorted(map(sorted, one)) == sorted(map(sorted, other))


def rebuilds_buckets(*, find_unused_parameters: bool, static_graph: bool) -> bool:
    """Return True if DDP rebuilds its buckets in the order in which gradients became ready in the first iteration."""
    return static_graph or not find_unused_parameters


def is_rebuilt(module: DdpModule) -> bool:
    """Return True if `rebuilds_buckets` applies to a recorded module."""
    return rebuilds_buckets(
        find_unused_parameters=bool(module.settings.get("find_unused_parameters")),
        static_graph=bool(module.settings.get("static_graph")),
    )


def buckets_under(module: DdpModule, caps: Caps) -> Buckets:
    """Return the buckets to which DDP would assign the module's gradients with these caps, in launch order."""
    return final_buckets(
        tuple(map(gradient_of, module.parameters)),
        caps,
        [index for bucket in module.buckets for index in bucket],
        rebuilt=is_rebuilt(module),
    )


def final_buckets(gradients: Sequence[Gradient], caps: Caps, ready_order: Sequence[int], *, rebuilt: bool) -> Buckets:
    """Return the buckets after DDP has rebuilt them, or the initial buckets if it does not rebuild them.

    `ready_order`: indices of gradients in the order in which they became ready on rank 0. With a static graph, some
    gradients may not be ready in the first iteration. `ready_order` lacks these, and they come last.
    """
    if not rebuilt:
        return tuple(sorted(_cut(gradients, range(len(gradients)), caps.limits), key=min, reverse=True))
    seen = set(ready_order)
    unused = [index for index in range(len(gradients)) if index not in seen]
    return tuple(_cut(gradients, [*ready_order, *unused], caps.limits))


def _cut(gradients: Sequence[Gradient], order: Sequence[int], limits: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the buckets in the order in which they were completed, followed by the incomplete buckets.

    PyTorch iterates over incomplete buckets in the order of a hash table, in which the last kind usually comes first.
    PyTorch's order differs from the order returned here if there are at least three kinds and two of them have the same
    hash, such as complex128 and float8_e5m2.
    """
    closed: list[tuple[int, ...]] = []
    filled: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    num_closed: dict[str, int] = {}
    for index in order:
        gradient = gradients[index]
        if gradient.is_sparse:
            closed.append((index,))
            continue
        kind = gradient.kind
        filled.setdefault(kind, []).append(index)
        sizes[kind] = sizes.get(kind, 0) + gradient.num_bytes
        cap_index = min(num_closed.get(kind, 0), len(limits) - 1)
        if sizes[kind] >= limits[cap_index]:
            closed.append(tuple(filled[kind]))
            filled[kind], sizes[kind] = [], 0
            num_closed[kind] = num_closed.get(kind, 0) + 1
    return [*closed, *(tuple(open_bucket) for open_bucket in reversed(filled.values()) if open_bucket)]


class CompileOrder(StrEnum):
    """Order in which torch.compile and DDP wrap the model."""

    DDP_FIRST = "ddp_first"
    """``torch.compile(DistributedDataParallel(model))``, or ``ddp.compile()``"""
    MODEL_FIRST = "model_first"
    """``DistributedDataParallel(torch.compile(model))``, or ``model.compile()`` before DDP"""
    SUBMODULES = "submodules"
    """only submodules of the model are compiled"""


class OptimizeDdp(StrEnum):
    """Values of ``torch._dynamo.config.optimize_ddp``.

    For the first value, PyTorch also accepts True, and for the last value, False.
    """

    DDP_OPTIMIZER = "ddp_optimizer"
    """torch.compile splits the model into one graph per bucket (PyTorch's default)"""
    PYTHON_REDUCER = "python_reducer"
    """compiled autograd reduces the gradients, and DDP's reducer does not"""
    PYTHON_REDUCER_WITHOUT_COMPILED_FORWARD = "python_reducer_without_compiled_forward"
    NO_OPTIMIZATION = "no_optimization"
    """torch.compile does not split the model"""


class Compilation(Struct, frozen=True):
    """How torch.compile is applied to the first DDP module of a rank."""

    order: str
    """value of `CompileOrder`"""
    optimize_ddp: str
    """value of `OptimizeDdp`, or another value that this version of ddpprof does not know"""
    num_graphs: Int64 | None = None
    """number of graphs into which DDPOptimizer split the model; 0 if nothing was compiled, ``None`` if unknown"""


class CompiledCode(Struct, frozen=True):
    """What torch.compile compiled in a process, from its first recorded step on."""

    num_steps: Int64
    """number of steps"""
    num_functions: Int64
    """number of functions that were compiled; a function that was compiled again counts again"""
    taken_ns: Int64
    """time that PyTorch spent on compiling them, according to its own timers"""
