"""Backends of torch's process groups, by name, and the kinds of them."""

from __future__ import annotations

KNOWN = ("gloo", "nccl", "mpi", "ucc", "xccl")
"""backends whose communication is told from other work by the names of spans: ``nccl:all_reduce``"""
ON_HOST = ("gloo", "mpi", "ucc")
"""backends whose threads of the host communicate"""
FOR_CPU_TENSORS = ("gloo", "mpi")
"""backends that are measured with tensors in the host's memory; DDP refuses to send bf16 over them"""
