"""The backends and devices that ddpprof knows, and torch's comm hooks, which send gradients in fewer bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Compression(StrEnum):
    """The hooks of ``torch.distributed.algorithms.ddp_comm_hooks`` that compress."""

    FP16 = "fp16"
    BF16 = "bf16"
    POWERSGD = "powersgd"

    @property
    def hook(self) -> str:
        """Name of the function in torch."""
        return "powerSGD_hook" if self is Compression.POWERSGD else f"{self.value}_compress_hook"


def sends_unchanged(comm_hook: str | None) -> bool:
    """Return True if gradients are sent unchanged: there is no comm hook, or one that does not change them."""
    return comm_hook is None or "allreduce_hook" in comm_hook


def sends_half(comm_hook: str | None) -> bool:
    """Return True if a comm hook sends every 4 bytes of gradients in 2."""
    return comm_hook in (Compression.FP16.hook, Compression.BF16.hook)


TCP_PAYLOAD = 1448 / 1514
"""share of a link that TCP leaves for data, in frames of 1500 bytes"""


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend of torch's process groups."""

    name: str
    """torch's name, with which its spans in a trace begin: ``nccl:all_reduce``"""
    other_names: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    """prefixes of the names of its kernels, in lower case"""
    runs_on_host: bool = False
    """whether host threads do the communication"""
    takes_cpu_tensors: bool = False
    """whether it is measured with tensors in host memory"""
    num_at_once: int = 1
    """number of all-reduces that it runs at a time: gloo has two threads, NCCL one stream"""
    halving: Compression = Compression.FP16
    """comm hook that halves the size of gradients; DDP refuses to send bf16 over most backends"""
    aborts: bool = False
    """whether it aborts the process when ranks call different collectives"""
    payload: float = 1.0
    """share of the link's rate that is available for gradients"""
    on_slow_computation: str = "Let communication use fewer of the device's resources, as long as it stays hidden."
    """advice if communication slows down computation"""
    to_slow_it: Mapping[str, str] = field(default_factory=dict)
    """environment variables that make it use less of the device's resources"""


BACKENDS = (
    Backend(
        "gloo",
        runs_on_host=True,
        takes_cpu_tensors=True,
        num_at_once=2,
        aborts=True,
        payload=TCP_PAYLOAD,
        on_slow_computation="Leave a core free for gloo's threads: set OMP_NUM_THREADS or torch.set_num_threads below "
        "the number of cores per rank.",
    ),
    Backend(
        "nccl",
        other_names=("nccl2", "nccl-lazy"),
        kernels=("nccl", "rccl", "msccl"),  # those of AMD's RCCL, too
        halving=Compression.BF16,
        on_slow_computation="Make NCCL use fewer SMs: try NCCL_MAX_CTAS=8, then 4 (NCCL 2.17 and newer). Slower "
        "communication costs nothing as long as it stays hidden.",
        to_slow_it={"NCCL_MAX_CTAS": "8"},
    ),
    Backend("mpi", runs_on_host=True, takes_cpu_tensors=True),
    Backend("ucc", runs_on_host=True),
    Backend("xccl", kernels=("oneccl",)),
    Backend("hccl", kernels=("hccl", "hcom_")),
)


@dataclass(frozen=True, slots=True)
class Device:
    """A device type on which a rank may train."""

    name: str
    """torch's name"""
    has_kernels: bool = False
    """whether traces show its kernels; without them, a trace has no information about its work"""
    activity: str | None = None
    """name in ``torch.profiler.ProfilerActivity``; ``None`` if only another profiler can record it"""
    counts_memory: bool = False
    """whether its allocator has the same interface as CUDA's"""


DEVICES = (
    Device("cpu"),
    Device("cuda", has_kernels=True, activity="CUDA", counts_memory=True),
    Device("xpu", has_kernels=True, activity="XPU", counts_memory=True),
    Device("npu", has_kernels=True),  # torch_npu has a profiler of its own
    Device("mps"),
)

_BY_NAME: Mapping[str, Backend] = {name: one for one in BACKENDS for name in (one.name, *one.other_names)}
_OTHER = Backend("")
KNOWN = tuple(_BY_NAME)
"""names of all backends in the table"""
ON_HOST = tuple(one.name for one in BACKENDS if one.runs_on_host)
KERNELS = tuple(name for one in BACKENDS for name in one.kernels)
WITH_KERNELS = tuple(one.name for one in DEVICES if one.has_kernels)
ACTIVITIES: Mapping[str, str] = {one.name: one.activity for one in DEVICES if one.activity is not None}
"""device → its activity in torch.profiler"""
WITH_MEMORY = tuple(one.name for one in DEVICES if one.counts_memory)

_SHARED_GPU = re.compile(r"Duplicate GPU detected|Multiple Ranks are using the same GPU(?:/Partition)?", re.IGNORECASE)


def backend_of(name: str | None) -> Backend:
    """Return the description of a backend; for an unknown one, a description that fits most."""
    return _BY_NAME.get(name or "", _OTHER)


def standard_name(backend: str) -> str:
    """Return the name that rules and predictions use for a backend: several of torch's names stand for NCCL."""
    return backend_of(backend).name or backend


def refusal_of_shared_gpu(error: str) -> str | None:
    """Return NCCL's message if it refused two ranks on one GPU; the text depends on its version."""
    found = _SHARED_GPU.search(error)
    return None if found is None else found[0]


def is_accelerator(device: str | None) -> bool:
    return device not in (None, "cpu")
