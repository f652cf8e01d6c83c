"""A run directory, a folder of traces, or one trace file → `Run`. Every rank is loaded on its own, by `load_rank`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from ddpprof.errors import BadTrace, NotARun
from ddpprof.events import Rank, Record, Run
from ddpprof.load.attempts import load_attempts, shown_attempt
from ddpprof.load.folder import assumed_rank, load_trace, load_traces, rank_of_name
from ddpprof.load.horovod import is_horovod_timeline, load_horovod
from ddpprof.load.record import BadRecordError, load_record
from ddpprof.rundir import FORMAT, RUN_FILE, attempts_in, is_run, ranks_in, trace_path


class _RunFile(msgspec.Struct):
    format: int
    run_id: str
    command: list[str] = []
    world_size: int | None = None
    settings: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class LoadedRank:
    """What could be read of one rank, and what could not."""

    rank: Rank | None
    missing: tuple[str, ...]


Watch = Callable[[Path, int, int], None]
"""Called before each file is read: which, how many have been read, and of how many."""


def load_run(path: Path, watch: Watch | None = None) -> Run:
    """Everything that can be read of a run. Raises `NotARun`, and `BadTrace` where the path is one bad trace file."""
    watch = watch or _nobody
    if path.is_file():
        watch(path, 0, 1)
        return _run_of_file(path)
    if path.name == "attempt-0" and not path.exists() and is_run(path.parent):
        return _recorded_run(path.parent, watch)
    if not path.is_dir():
        raise NotARun(f"{path} does not exist. {_how_to_record(path)}")
    if not is_run(path):
        return _run_of_traces(path, watch)
    attempts = attempts_in(path)
    return _last_attempt(path, attempts, watch) if len(attempts) > 1 else _recorded_run(path, watch)


def _nobody(_path: Path, _done: int, _number: int) -> None:
    """Nobody wants to know."""


def load_rank(directory: Path, rank: int, expects_trace: bool = True) -> LoadedRank:
    """One rank of a run directory. It needs nothing from other ranks, so that processes can share the work."""
    missing = []
    record, trace = None, None
    try:
        record = load_record(directory, rank)
    except BadRecordError as error:
        missing.append(f"rank {rank}: {error}")
    path = trace_path(directory, rank)
    if path is not None:
        try:
            trace = load_trace(path)
        except BadTrace as error:
            missing.append(f"rank {rank}: {error}")
    elif expects_trace:
        missing.append(f"rank {rank} left no trace: {_why_no_trace(record)}")
    loaded = Rank(rank, trace, record) if trace is not None or record is not None else None
    return LoadedRank(loaded, tuple(missing))


def _why_no_trace(record: Record | None) -> str:
    if record is None or record.ended is None:
        return "it was killed before the profiled steps ended"
    if record.ended == "finished":
        return "training finished before the profiled steps did"
    return f"it {record.ended}"


def _last_attempt(directory: Path, attempts: Mapping[int, Path], watch: Watch) -> Run:
    """With what all attempts left. ``attempt-0`` in `directory` is the first one alone."""
    number = shown_attempt(attempts)
    run = _recorded_run(attempts[number], watch)
    loaded, missing = load_attempts(attempts, number)
    return replace(run, name=_name(directory), missing=(*run.missing, *missing), attempts=loaded)


def _recorded_run(directory: Path, watch: Watch) -> Run:
    about = _read_run_file(directory)
    present = ranks_in(directory)
    if not present:
        raise NotARun(
            f"{directory} holds no rank: the job ended before DDP had averaged gradients in a few steps. "
            f"{_how_to_record(directory)}"
        )
    expects_trace = about.settings.get("profiler") is not False
    loaded = []
    for done, rank in enumerate(present):
        watch(trace_path(directory, rank) or directory, done, len(present))
        loaded.append(load_rank(directory, rank, expects_trace))
    ranks = tuple(one.rank for one in loaded if one.rank is not None)
    world_size = about.world_size or _world_size(ranks)
    return Run(
        name=_name(directory),
        command=tuple(about.command),
        world_size=world_size,
        ranks=ranks,
        missing=(*(text for one in loaded for text in one.missing), *_absent_ranks(present, world_size, "files")),
        settings=about.settings,
    )


def _read_run_file(directory: Path) -> _RunFile:
    path = directory / RUN_FILE
    try:
        text = path.read_bytes()
        # The format first: a newer one may have changed everything else.
        found = msgspec.json.decode(text, type=dict[str, Any]).get("format")
        if isinstance(found, int) and found > FORMAT:
            raise NotARun(
                f"{directory} was written by a newer ddpprof: its format is {found}, this one reads up to {FORMAT}. "
                "Update with: pip install --upgrade ddpprof"
            )
        return msgspec.json.decode(text, type=_RunFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotARun(f"{directory} is not a run: {path.name} is not ddpprof's ({error}).") from error
    except OSError as error:
        raise NotARun(f"{path} cannot be read: {error.strerror}.") from error


def _run_of_file(path: Path) -> Run:
    if is_horovod_timeline(path):
        timeline = load_horovod(path)
        return Run(_name(path), (), timeline.world_size, (), horovod=timeline)
    trace = load_trace(path)
    known = trace.rank if trace.rank is not None else rank_of_name(path.name, num_files=1)
    rank = 0 if known is None else known
    return Run(
        name=_name(path),
        command=(),
        world_size=trace.world_size,
        ranks=(Rank(rank, trace, None),),
        missing=(
            *([assumed_rank(path.name, rank)] if known is None else []),
            *_absent_ranks([rank], trace.world_size, "trace"),
        ),
    )


def _run_of_traces(directory: Path, watch: Watch) -> Run:
    files = [file for file in directory.iterdir() if _may_be_trace(file.name) and file.is_file()]
    loaded = load_traces(files, watch)
    if not loaded.traces:
        why = loaded.missing[0].removeprefix("skipped: ") if loaded.missing else None
        reason = f"it has no run.json and no trace ({why})" if why else "it has no run.json and no traces"
        raise NotARun(f"{directory} is not a run: {reason}. {_how_to_record(directory)}")
    ranks = tuple(Rank(rank, trace, None) for rank, trace in loaded.traces.items())
    world_size = _world_size(ranks)
    absent = _absent_ranks(list(loaded.traces), world_size, "trace")
    return Run(
        name=_name(directory),
        command=(),
        world_size=world_size,
        ranks=ranks,
        missing=(*loaded.missing, *absent),
    )


def _may_be_trace(name: str) -> bool:
    """Not what ``ddpprof timeline`` wrote."""
    return name.endswith((".json", ".json.gz")) and ".perfetto.json" not in name


def _world_size(ranks: Iterable[Rank]) -> int | None:
    """The largest that any rank knows of."""
    known = [part.world_size for rank in ranks for part in (rank.record, rank.trace) if part is not None]
    return max((size for size in known if size is not None), default=None)


def _absent_ranks(present: list[int], world_size: int | None, what: str) -> list[str]:
    """One line for all ranks that left nothing; `present` is sorted."""
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
    return [f"rank{plural} {named} of {world_size} left no {what}"]


def _name(path: Path) -> str:
    return path.name if path.name not in ("", "..") else path.resolve().name


def _how_to_record(path: Path) -> str:
    return f"Record one with: ddpprof trace --out {path} train.py"
