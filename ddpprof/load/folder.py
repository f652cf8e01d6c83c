"""Traces as the user's own profiler left them, under any name: which rank each is of, and which belong together."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddpprof.errors import BadTrace
from ddpprof.events import Trace
from ddpprof.load.cycles import join_cycles
from ddpprof.load.horovod import is_horovod_timeline
from ddpprof.load.kineto import read_trace
from ddpprof.load.tables import build_trace

_RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,7})", re.IGNORECASE)
_NUMBER_IN_NAME = re.compile(r"_(\d{1,7})\.")
_WORKER_IN_NAME = re.compile(r"(.+)\.\d{10,}\.pt\.trace\.json(?:\.gz)?")
"""as ``torch.profiler.tensorboard_trace_handler`` names its files: worker, time"""


@dataclass(frozen=True, slots=True)
class LoadedTraces:
    """rank → trace, and what was left out or assumed, in words."""

    traces: dict[int, Trace]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    trace: Trace

    @property
    def worker(self) -> str | None:
        """The process that wrote it, where the name says; not a rank's name, which other files may share."""
        match = _WORKER_IN_NAME.fullmatch(self.name)
        return match.group(1) if match else None


def load_trace(path: Path) -> Trace:
    """The tables of one trace file. Raises `BadTrace`."""
    return replace(build_trace(*read_trace(path)), files=(str(path),))


def load_traces(paths: Sequence[Path], watch: Callable[[Path, int, int], None]) -> LoadedTraces:
    """Every trace that can be read of the files, in the order of their names. `watch`: see `load_run`."""
    files, missing = [], []
    for done, path in enumerate(sorted(paths)):
        watch(path, done, len(paths))
        try:
            files.append(_File(path.name, load_trace(path)))
        except BadTrace as error:
            why = f"{path} is a Horovod timeline; give it alone" if is_horovod_timeline(path) else str(error)
            missing.append(f"skipped: {why}")
    ranks: dict[int, list[_File]] = {}
    nameless = []
    for file in files:
        rank = file.trace.rank if file.trace.rank is not None else rank_of_name(file.name, len(paths))
        if rank is None:
            nameless.append(file)
        else:
            ranks.setdefault(rank, []).append(file)
    for of_one in _by_worker(nameless):
        rank = next(number for number in range(len(paths)) if number not in ranks)
        ranks[rank] = of_one
        missing.append(assumed_rank(of_one[0].name, rank))
    traces = {}
    for rank in sorted(ranks):
        traces[rank], left_out = _of_one_rank(rank, ranks[rank])
        missing.extend(left_out)
    return LoadedTraces(traces, tuple(missing))


def rank_of_name(name: str, num_files: int) -> int | None:
    """The rank by the file's name. A number without the word counts only where it is small: others are process ids."""
    if match := _RANK_IN_NAME.search(name):
        return int(match.group(1))
    numbers = [int(number) for number in _NUMBER_IN_NAME.findall(name)]
    return numbers[-1] if numbers and numbers[-1] < num_files else None


def assumed_rank(name: str, rank: int) -> str:
    return f"{name} does not say its rank: taken as rank {rank}"


def _by_worker(files: Sequence[_File]) -> list[list[_File]]:
    """Files without a rank: those of one process are one rank's."""
    groups: dict[str, list[_File]] = {}
    for file in files:
        groups.setdefault(file.worker or file.name, []).append(file)
    return list(groups.values())


def _of_one_rank(rank: int, files: Sequence[_File]) -> tuple[Trace, list[str]]:
    """The profiler's cycles in one process; what is of another process is left out."""
    first = files[0]
    mine = [file for file in files if None in (first.worker, file.worker) or file.worker == first.worker]
    trace, objections = join_cycles([file.trace for file in mine])
    why = {file.name: "is of another process" for file in files if file not in mine}
    why |= {file.name: reason for file, reason in zip(mine, objections, strict=True) if reason}
    kept = next(file.name for file in mine if file.name not in why)
    return trace, [f"left out: {name} is of rank {rank}, as {kept} is, and {reason}" for name, reason in why.items()]
