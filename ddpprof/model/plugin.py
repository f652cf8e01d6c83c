"""Data of one rank that TensorBoard's profiler plugin (torch-tb-profiler) shows, equal to the data of the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddpprof.model.tables import Step


@dataclass(frozen=True, slots=True)
class PluginCollective:
    """A collective under a name that the plugin knows."""

    name: str
    """``nccl:all_reduce``, …; the plugin pairs the rank's i-th collective by start with the i-th of the other ranks"""
    start_ns: int
    end_ns: int
    num_bytes: int | None


@dataclass(frozen=True, slots=True)
class PluginView:
    """The steps and collectives of one rank that the plugin counts."""

    device: str
    """``"cpu"`` or ``"gpu"``"""
    epoch_ns: int | None
    """offset from the view's times to nanoseconds since 1970"""
    steps: tuple[Step, ...]
    collectives: Mapping[tuple[int, int], PluginCollective]
    """collectives by their start in the trace and their position among those with the same start; those that are not on
    all ranks are left out
    """
