"""The files of one rank → `Rank`: ddpprof's record with its trace, or traces alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpprof.errors import BadTrace
from ddpprof.files import Location, spelled
from ddpprof.load.folder import assumed_rank, rank_of_name, skipped, worker_of
from ddpprof.load.kineto.read import read_trace
from ddpprof.load.limits import DEFAULT_LIMITS, Limits, give_back_holes
from ddpprof.load.record import BadRecordError, load_record
from ddpprof.load.tables.build import build_trace
from ddpprof.load.tables.steps import join_cycles
from ddpprof.load.tables.trace_rows import TraceRows
from ddpprof.model import Rank, Record, StepMode, Trace
from ddpprof.model.backends import WITH_KERNELS
from ddpprof.model.record import error_in
from ddpprof.rundir import RUN_FILE, facts_file, steps_file

_NO_KERNELS = (
    "its trace is left out: it has no kernels although the rank trains on {device}, and host times do not show "
    "computation. Another profiler (nsys, ncu, DCGM) may have been using the device, or only administrators may be "
    "allowed to profile it (in NVIDIA's driver, NVreg_RestrictProfilingToAdminUsers=0 allows all users)"
)


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files of one rank."""

    rank: int | None
    """``None`` for a single trace, which may or may not say its rank"""
    traces: tuple[Location, ...]
    """files in order of their names; several files are the profiler's cycles"""
    directory: Location | None = None
    """directory of the run, if ddpprof recorded it"""
    expects_trace: bool = True
    run_id: str | None = None
    """ID of the run, which all of its ranks should share"""


@dataclass(frozen=True, slots=True)
class LoadedRank:
    """The readable part of one rank, and messages about the rest."""

    rank: Rank | None
    missing: tuple[str, ...]
    is_whole: bool = True
    """whether every file could be read"""


def some_file(files: RankFiles) -> Location:
    """Return one of the rank's paths, for use in messages."""
    path = files.traces[0] if files.traces else files.directory
    assert path is not None
    return path


def load_trace(path: Location, limits: Limits = DEFAULT_LIMITS, num_processes: int = 1) -> Trace:
    """Read the tables of one trace file, decoded by up to `num_processes` processes. Raises `BadTrace`."""
    header, columns = read_trace(path, limits, num_processes)
    give_back_holes()
    file = TraceRows(columns)
    del columns  # so that `file` can free columns while tables are built
    return replace(build_trace(header, file), files=(spelled(path),))


def load_rank(files: RankFiles, limits: Limits = DEFAULT_LIMITS, num_processes: int = 1) -> LoadedRank:
    """Load one rank. Its traces are decoded by up to `num_processes` processes.

    Raises `BadTrace` if the rank is a single unreadable trace that the user named.
    """
    if files.directory is not None:
        return _recorded_rank(files, files.directory, limits, num_processes)
    if files.rank is not None:
        return _rank_of_traces(files.rank, files.traces, limits, num_processes)
    (path,) = files.traces
    trace = load_trace(path, limits, num_processes)
    number = trace.rank if trace.rank is not None else rank_of_name(path.name, num_files=1)
    missing = (assumed_rank(path.name, 0),) if number is None else ()
    return LoadedRank(Rank(number or 0, trace, None), missing)


def record_or_none(files: RankFiles) -> Record | None:
    """Return the rank's record; ``None`` also if it cannot be read, which `load_rank` reports."""
    if files.directory is None or files.rank is None:
        return None
    try:
        return load_record(files.directory, files.rank)
    except BadRecordError:
        return None


def _rank_of_traces(rank: int, paths: Sequence[Location], limits: Limits, num_processes: int) -> LoadedRank:
    """Join the profiler's cycles of one process into one trace. Traces of other processes are left out."""
    names, traces, missing = [], [], []
    for path in paths:
        try:
            traces.append(load_trace(path, limits, num_processes))
            names.append(path.name)
        except BadTrace as error:
            missing.append(skipped(path, error))
    if not traces:
        return LoadedRank(None, tuple(missing), is_whole=False)
    worker = worker_of(names[0])
    mine = [index for index, name in enumerate(names) if None in (worker, of := worker_of(name)) or of == worker]
    joined, objections = join_cycles([traces[index] for index in mine])
    why = {name: "is from another process" for index, name in enumerate(names) if index not in mine}
    why |= {names[index]: reason for index, reason in zip(mine, objections, strict=True) if reason}
    kept = next(names[index] for index in mine if names[index] not in why)
    missing += [f"left out: {name} is from rank {rank}, like {kept}, and {reason}" for name, reason in why.items()]
    return LoadedRank(Rank(rank, joined, None), tuple(missing), is_whole=len(traces) == len(paths))


def _recorded_rank(files: RankFiles, directory: Location, limits: Limits, num_processes: int) -> LoadedRank:
    assert files.rank is not None
    rank, missing, is_whole = files.rank, [], True
    record, trace = None, None
    try:
        record = load_record(directory, rank)
        if record is None:
            missing.append(f"rank {rank}: {facts_file(rank)} is missing; it contains DDP's arguments and buckets")
    except BadRecordError as error:
        missing.append(f"rank {rank}: {error}")
        record, is_whole = error.record, False
    if record is not None and None not in (record.run_id, files.run_id) and record.run_id != files.run_id:
        missing.append(
            f"rank {rank} is from another run: the run_id in {facts_file(rank)} is not the one in {RUN_FILE}"
        )
    if files.traces:
        try:
            trace = load_trace(files.traces[0], limits, num_processes)
        except BadTrace as error:
            missing.append(f"rank {rank}: {error}")
            is_whole = False
    elif files.expects_trace and (record is None or record.profiles):
        missing.append(f"rank {rank} left no trace: {_why_no_trace(record)}")
    if trace is not None and record is not None and record.device in WITH_KERNELS and trace.device == "cpu":
        missing.append(f"rank {rank}: {_NO_KERNELS.format(device=record.device)}")
        trace = None
    if trace is not None and record is not None and record.no_trace is not None:
        missing.append(f"rank {rank}'s trace ends early: {record.no_trace}")
    if trace is not None and record is not None and (unknown := _unknown_steps(trace, record)):
        missing.append(
            f"rank {rank}: {steps_file(rank)} is incomplete. Steps {', '.join(map(str, unknown))} are only in the "
            "trace and are left out"
        )
    loaded = Rank(rank, trace, record) if trace is not None or record is not None else None
    return LoadedRank(loaded, tuple(missing), is_whole)


def _unknown_steps(trace: Trace, record: Record) -> list[int]:
    """Return the trace's steps that are missing in the record, if any. A job may end in the middle of its last step."""
    known = {step.number for step in record.steps}
    unknown = [step.number for step in trace.steps if step.number not in known]
    return unknown if known and unknown != [step.number for step in trace.steps[-1:]] else []


def _why_no_trace(record: Record | None) -> str:
    if record is not None and record.no_trace is not None:
        return record.no_trace
    if record is None or record.ended is None:
        return "it was killed, or called os._exit(), before the profiled steps ended"
    if record.ended == "finished":
        num_profiled = sum(step.mode is StepMode.PROFILED for step in record.steps)
        if not num_profiled:
            return "training finished before the profiled steps did"
        profiled = f"{num_profiled} steps were" if num_profiled > 1 else "one step was"
        return f"the file is missing, though {profiled} profiled"
    if record.ended == "interrupted":
        return "it was interrupted"
    return f"it {record.ended}" if error_in(record.ended) is None else "it failed before the profiled steps ended"
