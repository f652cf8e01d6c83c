"""What a report says, in which order and in which words. Terminal and Markdown draw these sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ddpprof.render.sections.attempts import attempt_table
from ddpprof.render.sections.buckets import bucket_tables
from ddpprof.render.sections.collectives import collective_table
from ddpprof.render.sections.cost import recording_cost_line, unusual_steps_line, wrapper_table
from ddpprof.render.sections.findings import finding_list
from ddpprof.render.sections.horovod import horovod_tables
from ddpprof.render.sections.job import job_lines, missing_lines
from ddpprof.render.sections.layout import Section
from ddpprof.render.sections.memory import memory_table
from ddpprof.render.sections.outside import outside_table
from ddpprof.render.sections.own_reduction import own_reduction_line
from ddpprof.render.sections.ranks import straggler_table, waiting_table
from ddpprof.render.sections.rpc import rpc_table
from ddpprof.render.sections.several_devices import data_parallel_lines, data_parallel_table, device_table
from ddpprof.render.sections.slowdown import slowdown_section
from ddpprof.render.sections.steps import idle_table, overlap_table, step_bars
from ddpprof.report import Report

_MAKERS: Sequence[Callable[[Report], Iterable[Section]]] = (
    attempt_table,
    job_lines,
    data_parallel_lines,
    own_reduction_line,
    missing_lines,
    unusual_steps_line,
    step_bars,
    overlap_table,
    idle_table,
    data_parallel_table,
    device_table,
    horovod_tables,
    bucket_tables,
    collective_table,
    outside_table,
    rpc_table,
    straggler_table,
    waiting_table,
    slowdown_section,
    wrapper_table,
    memory_table,
    recording_cost_line,
    finding_list,
)


def sections(report: Report) -> tuple[Section, ...]:
    """Everything that is said about a run. Sections without content are left out."""
    return tuple(section for make in _MAKERS for section in make(report))
