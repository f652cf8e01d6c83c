"""Data of one rank that TensorBoard's profiler plugin (torch-tb-profiler) shows, equal to the report's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddpprof.model.tables import Step


@dataclass(frozen=True, slots=True)
class PluginCollective:
    """A collective under a name that the plugin knows."""

    name: str
    """``nccl:all_reduce``, …; the plugin pairs the rank's i-th by start with the i-th of the other ranks"""
    start_ns: int
    end_ns: int
    num_bytes: int | None


@dataclass(frozen=True, slots=True)
class PluginView:
    """The steps and collectives of one trace that the plugin counts."""

    steps: tuple[Step, ...]
    collectives: Mapping[int, PluginCollective]
    """collectives by row of ``Trace.collectives``; the other rows are not on all ranks, and are not counted"""
