"""The map: one rank's files → its entry. It runs in any process on any machine that sees the files."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import BinaryIO

from ddpprof.load.limits import DEFAULT_LIMITS, Limits
from ddpprof.load.rank import LoadedRank, RankFiles, load_rank
from ddpprof.load.step_selection import only_steps
from ddpprof.model import DdpModule, Rank, StepMode
from ddpprof.pipeline.cache import seen_files
from ddpprof.pipeline.entry import About, write_entry
from ddpprof.report.build import utf8_text
from ddpprof.report.rank_summary import RunSummary, summarise_rank
from ddpprof.report.ranks import training_steps
from ddpprof.report.timeline import drawing_of


@dataclass(frozen=True, slots=True)
class RankTask:
    files: RankFiles
    modules: tuple[DdpModule, ...]
    """modules of the job"""
    steps: Container[int] | None = None
    """numbers of the steps to measure; ``None`` for all"""
    limits: Limits = DEFAULT_LIMITS


def run_task(task: RankTask, out: BinaryIO, num_processes: int = 1) -> None:
    """Read a rank and write its entry. `num_processes`: number of processes that may decode its traces.

    Raises `BadTrace` if the rank is one bad trace that the user named.
    """
    seen = seen_files(task.files)  # taken before reading: later writes must not count as known
    loaded = load_rank(task.files, task.limits, num_processes)
    steps = _step_numbers(loaded.rank) if loaded.rank is not None else ()
    if loaded.rank is not None and task.steps is not None:
        loaded = replace(loaded, rank=only_steps(loaded.rank, task.steps))
    drawing = drawing_of(loaded.rank) if loaded.rank is not None else None
    write_entry(out, About(seen, loaded.is_whole, steps), _summary(loaded, task), drawing)


def _step_numbers(rank: Rank) -> tuple[int, ...]:
    traced = {step.number for step in rank.trace.steps} if rank.trace is not None else set()
    return tuple(sorted(traced | {step.number for step in training_steps(rank.record) if step.mode is StepMode.LIGHT}))


def _summary(loaded: LoadedRank, task: RankTask) -> RunSummary:
    number = loaded.rank.rank if loaded.rank is not None else task.files.rank or 0
    missing = {number: tuple(map(utf8_text, loaded.missing))}
    if loaded.rank is None:
        return RunSummary(missing=missing)
    return replace(summarise_rank(loaded.rank, task.modules), missing=missing)
