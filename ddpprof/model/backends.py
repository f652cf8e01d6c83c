"""Backends of torch's process groups, by name, and the kinds of them."""

from __future__ import annotations

import re

_OF_NCCL = ("nccl2", "nccl-lazy")
"""other names of torch's for NCCL"""
KNOWN = ("gloo", "nccl", "mpi", "ucc", "xccl", *_OF_NCCL)
"""backends whose communication is told from other work by the names of spans: ``nccl:all_reduce``"""
ON_HOST = ("gloo", "mpi", "ucc")
"""backends whose threads of the host communicate"""
FOR_CPU_TENSORS = ("gloo", "mpi")
"""backends that are measured with tensors in the host's memory; DDP refuses to send bf16 over them"""


_SHARED_GPU = re.compile(r"Duplicate GPU detected|Multiple Ranks are using the same GPU(?:/Partition)?", re.IGNORECASE)


def standard_name(backend: str) -> str:
    """Return the name by which rules and predictions know a backend: several of torch's names are NCCL."""
    return "nccl" if backend in _OF_NCCL else backend


def refusal_of_shared_gpu(error: str) -> str | None:
    """Return NCCL's words, which depend on its version, if it refused two ranks on one GPU."""
    found = _SHARED_GPU.search(error)
    return None if found is None else found[0]


def is_accelerator(device: str | None) -> bool:
    return device not in (None, "cpu")
