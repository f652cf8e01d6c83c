"""The backends and devices that ddpprof supports, and PyTorch's comm hooks that compress gradients."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Compression(StrEnum):
    """Comm hooks of ``torch.distributed.algorithms.ddp_comm_hooks`` that compress gradients."""

    FP16 = "fp16"
    BF16 = "bf16"
    POWERSGD = "powersgd"

    @property
    def hook(self) -> str:
        """Name of the hook function in PyTorch."""
        return "powerSGD_hook" if self is Compression.POWERSGD else f"{self.value}_compress_hook"


def sends_unchanged(comm_hook: str | None) -> bool:
    """Return True if there is no comm hook, or if the hook sends gradients unchanged."""
    return comm_hook is None or "allreduce_hook" in comm_hook


def sends_half(comm_hook: str | None) -> bool:
    """Return True if a comm hook halves the size of float32 gradients."""
    return comm_hook in (Compression.FP16.hook, Compression.BF16.hook)


TCP_PAYLOAD = 1448 / 1514
"""share of the link's rate that carries data when TCP is used with an MTU of 1500 bytes"""


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend of ``torch.distributed`` process groups."""

    name: str
    """name in PyTorch. In a trace, the names of the backend's spans begin with it: ``nccl:all_reduce``"""
    other_names: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    """prefixes of the names of the backend's kernels, in lower case"""
    runs_on_host: bool = False
    """whether collectives run in host threads"""
    takes_cpu_tensors: bool = False
    """whether `ddpprof netbench` measures this backend with CPU tensors"""
    num_at_once: int = 1
    """number of all-reduces that run at the same time: gloo has two threads, and NCCL has one stream"""
    halving: Compression = Compression.FP16
    """comm hook that halves the size of gradients; fp16 by default, because DDP supports the bf16 hook with only a few
    backends
    """
    half_ns_per_byte: float = 0.0
    """additional time per byte that the backend needs to add 16-bit numbers instead of 32-bit numbers, on one rank"""
    aborts: bool = False
    """whether the backend aborts the process if ranks call different collectives"""
    payload: float = 1.0
    """share of the link's rate that carries data; the rest is protocol overhead"""
    on_slow_computation: str = (
        "Reduce the device resources that communication uses, as long as communication stays hidden."
    )
    """advice if communication slows down computation on the device"""
    to_slow_it: Mapping[str, str] = field(default_factory=dict)
    """environment variables that make communication use fewer of the device's resources"""


BACKENDS = (
    Backend(
        "gloo",
        runs_on_host=True,
        takes_cpu_tensors=True,
        num_at_once=2,
        half_ns_per_byte=1.3,  # measured with 2 ranks and 0.5 to 16 MB: 1.2 to 2.3 ns per number that is sent
        aborts=True,
        payload=TCP_PAYLOAD,
        on_slow_computation="Leave a core free for gloo's threads: set OMP_NUM_THREADS or torch.set_num_threads below "
        "the number of cores per rank.",
    ),
    Backend(
        "nccl",
        other_names=("nccl2", "nccl-lazy"),
        kernels=("nccl", "rccl", "msccl"),  # PyTorch calls RCCL on AMD GPUs "nccl", too
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
    """name in PyTorch"""
    has_kernels: bool = False
    """whether a trace contains the kernels that run on the device"""
    activity: str | None = None
    """name in ``torch.profiler.ProfilerActivity``; ``None`` if only another profiler can record it"""
    counts_memory: bool = False
    """whether PyTorch reports the device's memory through the same functions as ``torch.cuda``"""


DEVICES = (
    Device("cpu"),
    Device("cuda", has_kernels=True, activity="CUDA", counts_memory=True),
    Device("xpu", has_kernels=True, activity="XPU", counts_memory=True),
    Device("npu", has_kernels=True),  # torch_npu has its own profiler
    Device("mps"),
)

_BY_NAME: Mapping[str, Backend] = {name: one for one in BACKENDS for name in (one.name, *one.other_names)}
_OTHER = Backend("")
KNOWN = tuple(_BY_NAME)
"""names of all backends that ddpprof supports"""
ON_HOST = tuple(one.name for one in BACKENDS if one.runs_on_host)
KERNELS = tuple(name for one in BACKENDS for name in one.kernels)
WITH_KERNELS = tuple(one.name for one in DEVICES if one.has_kernels)
ACTIVITIES: Mapping[str, str] = {one.name: one.activity for one in DEVICES if one.activity is not None}
"""for each device: its name in ``torch.profiler.ProfilerActivity``"""
WITH_MEMORY = tuple(one.name for one in DEVICES if one.counts_memory)

_SHARED_GPU = re.compile(r"Duplicate GPU detected|Multiple Ranks are using the same GPU(?:/Partition)?", re.IGNORECASE)


TO_DEVICE = re.compile(r"HtoD|HostToDevice|H2D|M2D")
"""pattern for the names of copies from the host to a device, in traces of CUDA, ROCm and XPU"""
FROM_DEVICE = re.compile(r"DtoH|DeviceToHost|D2H|D2M")
PAGEABLE = "Pageable"
"""part of a copy's name if the host memory is not pinned; only traces of CUDA contain it"""


def backend_of(name: str | None) -> Backend:
    """Return the description of a backend, or default values for an unknown backend."""
    return _BY_NAME.get(name or "", _OTHER)


def standard_name(backend: str) -> str:
    """Return the standard name of a backend. PyTorch has several names for NCCL."""
    return backend_of(backend).name or backend


def refusal_of_shared_gpu(error: str) -> str | None:
    """Return the part of `error` in which NCCL refuses to run two ranks on one GPU, or ``None``."""
    found = _SHARED_GPU.search(error)
    return None if found is None else found[0]


def is_accelerator(device: str | None) -> bool:
    return device not in (None, "cpu")
