"""Load a run directory, a folder of traces, or one trace file into a `Run`.

`find_ranks` finds the files and reads very little of their content. `load_rank` reads one rank independently of other
ranks, so that several processes or machines can share the work. `complete` adds the information that depends on all
ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ddpprof.errors import DdpprofError, NotARun, refuse_newer
from ddpprof.files import Location, RemotePath, location, read_small
from ddpprof.load.file_bytes import DEFAULT_LIMITS, MAX_FILES_OPTION, Limits
from ddpprof.load.rank import RankFiles, find_traces, load_other_file, load_rank, some_file
from ddpprof.load.record import load_attempts, load_exits, shown_attempt
from ddpprof.model import Run
from ddpprof.model.json_files import RunFile, TriedChange
from ddpprof.model.pulse import Pulse
from ddpprof.model.pulse_layout import NotAPulseError, decode
from ddpprof.model.whole_run import RankWholeRun, WholeRun
from ddpprof.monitor.pulse_files import MOST_COMPARED, read_pulse, read_slowdowns, read_verdict
from ddpprof.monitor.slowdowns import slowdowns_of_run
from ddpprof.monitor.whole_run import whole_run, whole_run_of_rank
from ddpprof.rundir import (
    FORMAT,
    RUN_FILE,
    TRIED_FILE,
    attempts_in,
    captures_in,
    is_run,
    pulse_file,
    pulses_in,
    ranks_in,
    read_json,
    runs_in,
    trace_path,
)


def load_whole_run(
    files: Sequence[RankFiles], left_out: Container[int] = ()
) -> tuple[WholeRun | None, tuple[str, ...]]:
    """Return the history of the whole training run, and messages about pulse files that cannot be read.

    The history is ``None`` if no rank wrote a pulse file. Step times over time are read only for the lowest rank,
    because DDP synchronizes the ranks. Slowdowns are read from the file that the launcher wrote while the job ran.
    Without this file, they are derived from the pulse files. `left_out`: ranks that are not read.
    """
    folders = list(dict.fromkeys(one.directory for one in files if one.directory is not None))
    there = {folder: frozenset(pulses_in(folder)) for folder in folders}
    if not any(there.values()):
        return None, ()
    noted = next((found for folder in folders if (found := read_slowdowns(folder)) is not None), None)
    ranks: list[RankWholeRun] = []
    compared: dict[int, Pulse] = {}
    missing = []
    for one in files:
        if one.directory is None or one.rank is None or one.rank in left_out or one.rank not in there[one.directory]:
            continue
        try:
            pulse = _read(one.directory, one.rank)
            ranks.append(whole_run_of_rank(one.rank, pulse, with_course=all(rank.whole is None for rank in ranks)))
        except DdpprofError as error:
            missing.append(f"rank {one.rank}: {error}")
        except NotAPulseError as error:
            missing.append(f"rank {one.rank}: {pulse_file(one.rank)} cannot be read: {error}.")
        except OSError as error:
            missing.append(f"rank {one.rank}: {pulse_file(one.rank)} cannot be read: {error.strerror}.")
        else:
            if noted is None and len(compared) < MOST_COMPARED:
                compared[one.rank] = pulse
    if not ranks:
        return None, tuple(missing)
    slowdowns = slowdowns_of_run(compared) if noted is None else noted
    hangs = (read_verdict(folder) for folder in folders if isinstance(folder, Path))
    hang = next((verdict for verdict in hangs if verdict is not None), None)
    captures = sorted({number for folder in folders for number in captures_in(folder)})
    return whole_run(ranks, slowdowns, hang, tuple(captures)), tuple(missing)


def _read(directory: Location, rank: int) -> Pulse:
    if isinstance(directory, Path):
        return read_pulse(directory, rank)
    return decode(read_small(directory / pulse_file(rank)))


_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run."""

    run: Run
    """the run, without data of its ranks"""
    ranks: tuple[RankFiles, ...]
    is_part: bool = False
    """whether these files are a part of a run whose hosts share no file system; another part has the main ``run.json``
    """


class KnownRank(Protocol):
    """Attributes of a rank that `complete` needs."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int | None: ...


def load_run(path: str | Location, limits: Limits = DEFAULT_LIMITS) -> Run:
    """Load a whole run into memory, from a path or a URL supported by fsspec (``"s3://…"``).

    `limits` apply to each trace file. Raises `NotARun`, `BadTrace` if the path is a bad trace file, and `RemoteError`.
    """
    files = find_ranks(location(path) if isinstance(path, str) else path, limits)
    loaded = [load_rank(one, limits) for one in files.ranks]
    ranks = tuple(one.rank for one in loaded if one.rank is not None)
    return replace(complete(files, ranks, [text for one in loaded for text in one.missing]), ranks=ranks)


def find_ranks(path: Location, limits: Limits = DEFAULT_LIMITS) -> RunFiles:
    """Find the ranks in `path`. `limits` apply to traces that must be read to determine their rank.

    Raises `NotARun`, and `BadTrace` if the path is a file that is not a trace.
    """
    if path.is_file():
        return _files_of_one(path)
    if path.name == "attempt-0" and not path.exists() and is_run(path.parent):
        return _recorded_files(path.parent)
    if not path.is_dir():
        what = "is neither a file nor a folder" if path.exists() else "does not exist"
        raise NotARun(f"{path} {what}. {_how_to_record(path)}")
    if not is_run(path):
        return _files_of_folder(path, limits)
    attempts = attempts_in(path)
    return _files_of_attempts(path, attempts) if len(attempts) > 1 else _recorded_files(path)


def find_parts(paths: Sequence[Location], limits: Limits = DEFAULT_LIMITS) -> RunFiles:
    """Find the ranks in the parts of one run, recorded on hosts without a shared file system.

    Raises `NotARun` if the paths are not parts of one run, and the errors of `find_ranks`.
    """
    if len(paths) == 1:
        return find_ranks(paths[0], limits)
    found = [find_ranks(path, limits) for path in paths]
    for path, part in zip(paths, found, strict=True):
        ids = {one.run_id for one in part.ranks}
        if None in ids or ids != {one.run_id for one in found[0].ranks}:
            raise NotARun(
                f"{paths[0]} and {path} are not parts of the same run. A run has several parts only if its hosts do "
                "not share a file system. To compare two runs, use: ddpprof compare. To read several traces, give "
                "their folder."
            )
    whole = next((part for part in found if not part.is_part), found[0])
    ranks: dict[int | None, RankFiles] = {}
    twice = []
    for part in (whole, *(part for part in found if part is not whole)):
        twice += [
            f"rank {one.rank} has data in several parts of the run. Only one part was read"
            for one in part.ranks
            if one.rank in ranks
        ]
        ranks = {**{one.rank: one for one in part.ranks}, **ranks}
    missing = dict.fromkeys(text for part in found for text in part.run.missing)
    exits = tuple(one for part in found for one in part.run.exits)
    run = replace(whole.run, missing=(*missing, *twice), exits=exits)
    return RunFiles(run, tuple(ranks[rank] for rank in sorted(ranks, key=lambda rank: rank or 0)))


def complete(
    files: RunFiles, ranks: Sequence[KnownRank], missing: Iterable[str], left_out: Collection[int] = ()
) -> Run:
    """Return the run, completed with the world size, missing ranks and training history. Raises `NotARun`.

    `missing`: messages about ranks that cannot be read. `left_out`: ranks that the user did not select.
    """
    run, missing = files.run, tuple(missing)
    is_recorded = any(of_rank.directory is not None for of_rank in files.ranks)
    if not ranks and files.ranks and not is_recorded:
        raise NotARun(_holds_no_trace(some_file(files.ranks[0]).parent, missing))
    world_size = run.world_size or max((one.world_size for one in ranks if one.world_size is not None), default=None)
    # A rank is absent only if it has no files. Unreadable files are reported separately.
    there = (
        [one.rank for one in files.ranks if one.rank is not None]
        if is_recorded
        else [*(one.rank for one in ranks), *left_out]
    )
    what = "files" if is_recorded else "trace"
    absent = (
        _absent_ranks(sorted(there), world_size, what) if run.other_file is None else []
    )  # a file of another tool covers all ranks
    whole_run, unreadable = load_whole_run(files.ranks, left_out)
    missing = (*run.missing, *missing, *unreadable, *_of_other_jobs(ranks), *absent)
    return replace(run, world_size=world_size, missing=missing, whole_run=whole_run)


def _of_other_jobs(ranks: Sequence[KnownRank]) -> list[str]:
    """Return a message for each rank whose world size differs from that of most ranks."""
    sizes = [(one.rank, one.world_size) for one in ranks if one.world_size is not None]
    usual = max(counts, key=lambda size: counts[size]) if (counts := Counter(size for _, size in sizes)) else None
    return [
        f"rank {rank} is from another job: its world size is {size}, but the world size of most other ranks is {usual}"
        for rank, size in sizes
        if size != usual
    ]


def _files_of_attempts(directory: Location, attempts: Mapping[int, Location]) -> RunFiles:
    """Return the files of the attempt that the report shows, and the records of all attempts in the run."""
    number = shown_attempt(attempts)
    shown = _recorded_files(attempts[number])
    loaded, missing = load_attempts(attempts, number)
    run = replace(shown.run, name=_name(directory), missing=(*shown.run.missing, *missing), attempts=loaded)
    return replace(shown, run=run)


def _recorded_files(directory: Location) -> RunFiles:
    about = _read_run_file(directory)
    present = ranks_in(directory)
    if not present:
        raise NotARun(
            f"{directory} contains no data from any rank: the job ended before DDP had averaged gradients in "
            f"enough steps. {_how_to_record(directory)}"
        )
    expects_trace = about.settings.get("profiler") is not False
    traces = {rank: trace_path(directory, rank) for rank in present}
    return RunFiles(
        Run(
            name=_name(directory),
            command=tuple(about.command),
            world_size=about.world_size or None,
            ranks=(),
            settings=about.settings,
            missing=(about.profiled_ranks,) if about.profiled_ranks else (),
            exits=load_exits(directory),
            tried=tuple(read_json(directory / TRIED_FILE, list[TriedChange]) or ()),
            is_of_torchrun=about.elastic is not None,
        ),
        tuple(
            RankFiles(rank, () if trace is None else (trace,), directory, expects_trace, about.run_id)
            for rank, trace in traces.items()
        ),
        about.is_part,
    )


def _read_run_file(directory: Location) -> RunFile:
    path = directory / RUN_FILE
    try:
        text = read_small(path)
        # Check the format first: a newer one may have changed everything else.
        refuse_newer(directory, msgspec.json.decode(text, type=dict[str, Any]).get("format"), FORMAT)
        return msgspec.json.decode(text, type=RunFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotARun(f"{directory} is not a run: {path.name} was not written by ddpprof ({error}).") from error
    except OSError as error:
        raise NotARun(f"{path} cannot be read: {error.strerror}.") from error


def _files_of_one(path: Location) -> RunFiles:
    if (other := load_other_file(path)) is not None:
        return RunFiles(Run(_name(path), (), other.world_size, (), other_file=other), ())
    return RunFiles(Run(_name(path), (), None, ()), (RankFiles(None, (path,)),))


def _files_of_folder(directory: Location, limits: Limits) -> RunFiles:
    files = [file for file in directory.iterdir() if _may_be_trace(file.name)]
    if len(files) > limits.files:
        raise NotARun(
            f"{directory} contains {len(files)} files that may be traces, but the limit is {limits.files}. "
            f"Give the folder of one job, or allow more with {MAX_FILES_OPTION} {len(files)}"
        )
    found = find_traces([file for file in files if file.is_file()], limits)
    if not found.ranks:
        raise NotARun(_holds_no_trace(directory, found.missing))
    ranks = tuple(RankFiles(rank, paths) for rank, paths in found.ranks.items())
    return RunFiles(Run(_name(directory), (), None, (), missing=found.missing), ranks)


def _holds_no_trace(directory: Location, missing: Sequence[str]) -> str:
    if runs := runs_in(directory):
        more = " and more" if len(runs) > _MOST_NAMED else ""
        named = ", ".join(runs[:_MOST_NAMED])
        return f"{directory} is not a run, but contains runs: {named}{more}. Give one run: {directory / runs[0]}"
    why = missing[0].removeprefix("skipped: ") if missing else None
    reason = f"it has no run.json and no trace ({why})" if why else "it has no run.json and no traces"
    return f"{directory} is not a run: {reason}. {_how_to_record(directory)}"


def _may_be_trace(name: str) -> bool:
    """Return True if a file may be a trace, judging by its name. Files of ``ddpprof timeline`` are excluded."""
    return name.endswith((".json", ".json.gz", ".json.zst")) and ".perfetto.json" not in name


def _absent_ranks(present: list[int], world_size: int | None, what: str) -> list[str]:
    """Return a message that names the ranks without files, if there are any. `present` must be sorted."""
    if world_size is None:
        return []
    gaps = []
    expected = 0
    for rank in [*(rank for rank in present if rank < world_size), world_size]:
        if rank > expected:
            gaps.append((expected, rank - 1))
        expected = rank + 1
    if not gaps:
        return []
    named = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in gaps)
    plural = "s" if len(gaps) > 1 or gaps[0][0] != gaps[0][1] else ""
    return [f"rank{plural} {named} of {world_size} wrote no {what}"]


def _name(path: Location) -> str:
    return path.name if path.name not in ("", "..") else path.resolve().name


def _how_to_record(path: Location) -> str:
    if isinstance(path, RemotePath):
        return "Give a run directory, a folder of torch.profiler traces, or one trace."
    is_here = path.resolve() == Path.cwd()  # do not suggest to record a run among the user's own files
    return f"Record a run with: ddpprof trace {'' if is_here else f'--out {path} '}train.py"
