"""What TensorBoard's profiler plugin (torch-tb-profiler) is to count of one rank: what the report counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddpprof.model.tables import Step


@dataclass(frozen=True, slots=True)
class PluginCollective:
    """One collective under a name that the plugin knows."""

    name: str
    """``nccl:all_reduce``, …: the plugin takes the rank's i-th for the i-th of the other ranks, by their starts"""
    start_ns: int
    end_ns: int
    num_bytes: int | None


@dataclass(frozen=True, slots=True)
class PluginView:
    """The steps and collectives of one trace that count."""

    steps: tuple[Step, ...]
    collectives: Mapping[int, PluginCollective]
    """by row of ``Trace.collectives``; the other rows are on no rank or not on all, and count nowhere"""
