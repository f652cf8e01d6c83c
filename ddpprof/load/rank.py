"""Load the files of one rank into a `Rank`: the record and trace written by ddpprof, or traces alone.

Traces written by the user's own profiler may have any name; `find_traces` determines the rank of each trace. Supported
files of other tools are registered here, and a module in ``topics`` reads them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from io import TextIOWrapper
from math import isfinite

from ddpprof.errors import BadTrace
from ddpprof.files import Location, spelled
from ddpprof.load.build import build_trace
from ddpprof.load.file_bytes import DEFAULT_LIMITS, Limits, give_back_holes
from ddpprof.load.horovod_timeline import HOROVOD_TIMELINE, is_horovod_timeline, load_horovod
from ddpprof.load.host import join_cycles
from ddpprof.load.kineto import Header, read_header, read_trace
from ddpprof.load.kineto.columns import TraceRows
from ddpprof.load.record import BadRecordError, load_nccl_log, load_record
from ddpprof.model import OtherFile, Rank, Record, StepMode, TimesTable, Trace
from ddpprof.model.backends import WITH_KERNELS
from ddpprof.model.record import error_in
from ddpprof.rundir import RUN_FILE, facts_file, steps_file
from ddpprof.words import listed

_FILES: Sequence[tuple[str, Callable[[Location], bool], Callable[[Location], OtherFile]]] = (
    (HOROVOD_TIMELINE, is_horovod_timeline, load_horovod),
)
"""for each supported file type of another tool: its name, a function that recognizes a file, and a function that loads
it
"""


def load_other_file(path: Location) -> OtherFile | None:
    """Load a file of another tool, or return ``None`` if the file is not supported. Raises `BadTrace`."""
    return next((load(path) for _, is_one, load in _FILES if is_one(path)), None)


def why_alone(path: Location) -> str | None:
    """Return the message for a file of another tool among several traces, or ``None`` for any other file."""
    return next(
        (f"{path} is a {what}. To read it, give only its path" for what, is_one, _ in _FILES if is_one(path)), None
    )


_LEAST, _MOST = 1e-12, 1e12
"""limits for sizes, and for times in seconds; values outside these limits would overflow in fits and plots"""


def load_times(path: Location) -> TimesTable:
    """Read a CSV table of times: a column of sizes and one or more columns of seconds. Raises `BadTrace`."""
    try:
        with path.open("rb") as binary, TextIOWrapper(binary, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, row) for row in reader if row]
    except OSError as error:
        raise BadTrace(f"{path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadTrace(f"{path} cannot be read: {error}.") from error
    if len(lines) < 2 or len(lines[0][1]) < 2:
        raise BadTrace(
            f"{path} is not a table of times: it needs a header line, a column of sizes, and columns of seconds."
        )
    varied, *names = (name.strip() for name in lines[0][1])
    times: dict[str, dict[float, list[float]]] = {name: {} for name in names}
    for number, row in lines[1:]:
        if len(row) != 1 + len(names):
            raise BadTrace(f"{path} line {number} has {len(row)} columns, not {1 + len(names)}.")
        size = _number(path, number, row[0])
        for name, cell in zip(names, row[1:], strict=True):
            if cell.strip():
                times[name].setdefault(size, []).append(_number(path, number, cell) * 1e9)
    return TimesTable(varied, {name: {s: tuple(t) for s, t in of.items()} for name, of in times.items()})


def _number(path: Location, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not isfinite(value) or value <= 0:
        raise BadTrace(f"{path} line {line}: {text.strip()[:40]!r} is not a number above 0.")
    if not _LEAST <= value <= _MOST:
        raise BadTrace(f"{path} line {line}: {text.strip()[:40]!r} is not between {_LEAST:g} and {_MOST:g}.")
    return value


_RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,7})", re.IGNORECASE)
_NUMBER_IN_NAME = re.compile(r"_(\d{1,7})\.")
_WORKER_IN_NAME = re.compile(r"(.+)\.\d{10,}\.pt\.trace\.json(?:\.gz|\.zst)?")
"""pattern for file names written by ``torch.profiler.tensorboard_trace_handler``: worker name and time"""


_MOST_NAMED = 4
_READERS = 8
"""number of threads that read files; it is limited because SSH servers may refuse some of more than ten connections"""


@dataclass(frozen=True, slots=True)
class FoundTraces:
    """Trace files by rank, sorted by name. `missing`: messages about files left out, and about assumed ranks."""

    ranks: dict[int, tuple[Location, ...]]
    missing: tuple[str, ...]


def find_traces(paths: Sequence[Location], limits: Limits = DEFAULT_LIMITS) -> FoundTraces:
    """Find the traces among the files, and their ranks. Usually, only the start of each file is read."""
    paths = sorted(paths, key=spelled)
    with ThreadPoolExecutor(_READERS) as readers:
        stated = dict(zip(paths, readers.map(partial(_stated, limits=limits), paths), strict=True))
    missing = [skipped(path, error) for path, error in stated.items() if isinstance(error, BadTrace)]
    headers, left_out = _of_one_job({path: one for path, one in stated.items() if isinstance(one, Header)})
    missing += left_out
    ranks: dict[int, list[Location]] = {}
    nameless = []
    for path, header in headers.items():
        rank = header.rank if header.rank is not None else rank_of_name(path.name, len(paths))
        if rank is None:
            nameless.append(path)
        else:
            ranks.setdefault(rank, []).append(path)
    for of_one in _by_worker(nameless):
        rank = next(number for number in range(len(paths)) if number not in ranks)
        ranks[rank] = of_one
        missing.append(assumed_rank(of_one[0].name, rank))
    return FoundTraces({rank: tuple(ranks[rank]) for rank in sorted(ranks)}, tuple(missing))


def _stated(path: Location, limits: Limits) -> Header | BadTrace:
    """Return the file's header, or an error that says why it is not a trace."""
    try:
        header = read_header(path, limits)
        alone = why_alone(path) if header.rank is None else None
        return header if alone is None else BadTrace(alone)
    except BadTrace as error:
        return error


def _of_one_job(headers: Mapping[Location, Header]) -> tuple[dict[Location, Header], list[str]]:
    """Return the files of one job, and messages about files of other jobs.

    If files have different world sizes, the world size with the largest number of ranks present is chosen.
    """
    sizes = {header.world_size for header in headers.values()} - {None}
    if len(sizes) < 2:
        return dict(headers), []
    present = {size: {one.rank for one in headers.values() if one.world_size == size} for size in sizes}
    chosen = max(sizes, key=lambda size: (len(present[size]), -(size or 0)))
    left_out = []
    for size in sorted(sizes - {chosen}, key=lambda size: size or 0):
        names = [path.name for path, header in headers.items() if header.world_size == size]
        left_out.append(
            f"left out: {listed(names, _MOST_NAMED)}, from a job with {size} rank{'s' if size != 1 else ''}; the "
            f"other traces are from a job with {chosen}"
        )
    return {path: header for path, header in headers.items() if header.world_size in (chosen, None)}, left_out


def skipped(path: Location, error: BadTrace) -> str:
    return f"skipped: {why_alone(path) or error}"


def rank_of_name(name: str, num_files: int) -> int | None:
    """Return the rank in a file's name.

    If "rank" does not precede the number, the number must be less than `num_files`.
    """
    if match := _RANK_IN_NAME.search(name):
        return int(match.group(1))
    numbers = [int(number) for number in _NUMBER_IN_NAME.findall(name)]
    return numbers[-1] if numbers and numbers[-1] < num_files else None


def assumed_rank(name: str, rank: int) -> str:
    return f"the file name {name} does not contain a rank: rank {rank} is assumed"


def _by_worker(paths: Sequence[Location]) -> list[list[Location]]:
    """Group files without a rank by the process that wrote them."""
    groups: dict[str, list[Location]] = {}
    for path in paths:
        groups.setdefault(worker_of(path.name) or path.name, []).append(path)
    return list(groups.values())


def worker_of(name: str) -> str | None:
    """Return the worker name in a file name of ``tensorboard_trace_handler``, or ``None`` for other names."""
    match = _WORKER_IN_NAME.fullmatch(name)
    return match.group(1) if match else None


_NO_KERNELS = (
    "its trace is left out: it has no kernels, although the rank trains on {device}. Host times do not measure "
    "computation on a device. Another profiler (nsys, ncu, DCGM) may have been using the device, or only "
    "administrators may be allowed to profile it (in NVIDIA's driver, NVreg_RestrictProfilingToAdminUsers=0 allows all "
    "users)"
)


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files of one rank."""

    rank: int | None
    """rank of the files; ``None`` for a single trace, which itself names the rank"""
    traces: tuple[Location, ...]
    """trace files, sorted by name; if there are several, they are successive cycles of the same profiler"""
    directory: Location | None = None
    """run directory, if ddpprof recorded the run"""
    expects_trace: bool = True
    run_id: str | None = None
    """ID of the run, which should be the same on all ranks"""


@dataclass(frozen=True, slots=True)
class LoadedRank:
    """The data of one rank that could be read, and messages about data that could not be read."""

    rank: Rank | None
    missing: tuple[str, ...]
    is_whole: bool = True
    """whether every file could be read"""


def some_file(files: RankFiles) -> Location:
    """Return one of the rank's paths, for messages."""
    path = files.traces[0] if files.traces else files.directory
    assert path is not None
    return path


def load_trace(path: Location, limits: Limits = DEFAULT_LIMITS, num_processes: int = 1) -> Trace:
    """Load one trace file with up to `num_processes` processes. Raises `BadTrace`."""
    header, columns = read_trace(path, limits, num_processes)
    give_back_holes()
    file = TraceRows(columns)
    del columns  # so that `file` can free columns while tables are built
    return replace(build_trace(header, file), files=(spelled(path),))


def load_rank(files: RankFiles, limits: Limits = DEFAULT_LIMITS, num_processes: int = 1) -> LoadedRank:
    """Load one rank. Up to `num_processes` processes decode its traces.

    Raises `BadTrace` if the user gave a single trace and it cannot be read.
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
    """Return the rank's record, or ``None`` if there is none or it cannot be read. `load_rank` reports the error."""
    if files.directory is None or files.rank is None:
        return None
    try:
        return load_record(files.directory, files.rank)
    except BadRecordError:
        return None


def _rank_of_traces(rank: int, paths: Sequence[Location], limits: Limits, num_processes: int) -> LoadedRank:
    """Join the profiler's cycles of one process into one trace. Leave out traces of other processes."""
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
            missing.append(f"rank {rank}: {facts_file(rank)} is missing, so DDP's arguments and buckets are unknown")
    except BadRecordError as error:
        missing.append(f"rank {rank}: {error}")
        record, is_whole = error.record, False
    if record is not None and None not in (record.run_id, files.run_id) and record.run_id != files.run_id:
        missing.append(
            f"rank {rank} is from another run: the run_id in {facts_file(rank)} differs from the run_id in {RUN_FILE}"
        )
    if files.traces:
        try:
            trace = load_trace(files.traces[0], limits, num_processes)
        except BadTrace as error:
            missing.append(f"rank {rank}: {error}")
            is_whole = False
    elif files.expects_trace and (record is None or record.profiles):
        missing.append(f"rank {rank} wrote no trace: {_why_no_trace(record)}")
    if trace is not None and record is not None and record.device in WITH_KERNELS and trace.device == "cpu":
        missing.append(f"rank {rank}: {_NO_KERNELS.format(device=record.device)}")
        trace = None
    if trace is not None and record is not None and record.no_trace is not None:
        missing.append(f"rank {rank}'s trace ends early: {record.no_trace}")
    if trace is not None and record is not None and (unknown := _unknown_steps(trace, record)):
        missing.append(
            f"rank {rank}: {steps_file(rank)} is incomplete. Steps {', '.join(map(str, unknown))} are in the "
            "trace but not in that file, and are left out"
        )
    nccl = load_nccl_log(directory, record) if record is not None and record.backend == "nccl" else None
    loaded = Rank(rank, trace, record, nccl) if trace is not None or record is not None else None
    return LoadedRank(loaded, tuple(missing), is_whole)


def _unknown_steps(trace: Trace, record: Record) -> list[int]:
    """Return the numbers of the trace's steps that the record lacks.

    The last step may be missing, because a job may end in the middle of it.
    """
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
            return "training finished before the profiled steps were complete"
        profiled = f"{num_profiled} steps were" if num_profiled > 1 else "one step was"
        return f"the file is missing, although {profiled} profiled"
    if record.ended == "interrupted":
        return "it was interrupted"
    return f"it {record.ended}" if error_in(record.ended) is None else "it failed before the profiled steps ended"
