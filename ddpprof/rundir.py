"""A run directory: every file name in it, its format version, and how files are written.

    run.json               what was run, by which ddpprof, with which settings
    rank-0.facts.json      rank 0: host, versions, DDP modules and their buckets, data loaders, how it ended
    rank-0.steps.jsonl     rank 0: one line per recorded step, appended while training runs
    rank-0.trace.json.gz   rank 0: the profiler's trace of the profiled steps
    rank-0.last_step       rank 0: how many steps it has finished, and when the last of them ended; a few bytes
    rank-0.losses.json     rank 0: what each step was trained for, where the run is a trial of ``ddpprof tune``
    exits.jsonl            how ranks, and the job, ended, as those saw it who had started them
    summaries/             what reports keep of each rank, so that they need not read it again; may be deleted
    tensorboard/           what TensorBoard shows of the run, one folder per TensorBoard run; made from the files above
    attempt-1/             the same of the job's next attempt, where torchrun started all ranks again

Folders ``run-1``, ``run-2`` and so on in one folder are runs of one job, as ``ddpprof trace --repeat`` records it.

Files appear whole: they are written beside and renamed. Only ``steps.jsonl`` grows, a line at a time, so that a rank
that is killed leaves every line that it wrote.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddpprof import own_files
from ddpprof.files import Location
from ddpprof.files.small import read_small

FORMAT = 1
"""Version of the run directory. A reader refuses a newer one and reads every older one."""

RUN_FILE = "run.json"
EXITS_FILE = "exits.jsonl"
LAST_STEP = "<qq"
"""what ``rank-0.last_step`` holds, for `struct`: the number of finished steps; ns since 1970"""
_RANK_FILE = re.compile(
    r"^rank-(\d{1,7})\.(facts\.json|losses\.json|last_step|steps\.jsonl|trace\.json(?:\.gz|\.zst)?)$"
)


_MOST_LOOKED_AT = 100

_ATTEMPT = re.compile(r"^attempt-([1-9]\d{0,5})$")


CACHE_DIRECTORY = "summaries"
CACHE_IGNORED_BY_GIT = ".gitignore"
CACHE_IGNORE_ALL = "*\n"
_CACHED = re.compile(
    r"^(?:(?:rank-\d+|trace)\.[0-9a-f]+-[0-9a-f]+\.zip|\.(?:rank-\d+|trace)\..*\.zip\.[0-9a-f-]+\.part)$"
)

TENSORBOARD_DIRECTORY = "tensorboard"
TENSORBOARD_OF_RUN = "run"
"""the TensorBoard run for what is of all ranks"""
TENSORBOARD_TRACES = "traces"
"""that of the profiler plugin"""
_TENSORBOARD_RUN = re.compile(rf"^(?:{TENSORBOARD_OF_RUN}|{TENSORBOARD_TRACES}|rank-\d+)$")
_TENSORBOARD_FILE = re.compile(r"^events\.out\.tfevents\.\d+\.ddpprof$|\.pt\.trace\.json\.gz$")


_REPEATED = re.compile(r"^run-([1-9]\d{0,5})$")


def attempt_directory(number: int) -> str:
    """In the run directory, which is that of the first attempt, number 0, itself."""
    return f"attempt-{number}" if number else ""


def attempt_of(directory_name: str) -> int | None:
    """Return the number of the attempt whose directory has that name; ``None`` for any other name."""
    match = _ATTEMPT.match(directory_name)
    return int(match.group(1)) if match else None


def attempts_in(directory: Location) -> dict[int, Location]:
    """Return every attempt that was recorded, by its number, in order; of most runs only the first.

    A link is no attempt: what stands behind it is of another run, or of none.
    """
    folders = (path for path in directory.iterdir() if not (isinstance(path, Path) and path.is_symlink()))
    numbers = sorted({0, *filter(None, (attempt_of(path.name) for path in folders))})
    paths = {number: directory / attempt_directory(number) if number else directory for number in numbers}
    return {number: path for number, path in paths.items() if is_run(path)}


def facts_file(rank: int) -> str:
    return f"rank-{rank}.facts.json"


def steps_file(rank: int) -> str:
    return f"rank-{rank}.steps.jsonl"


def losses_file(rank: int) -> str:
    return f"rank-{rank}.losses.json"


def last_step_file(rank: int) -> str:
    return f"rank-{rank}.last_step"


def trace_file(rank: int) -> str:
    return f"rank-{rank}.trace.json.gz"


def plain_trace_file(rank: int) -> str:
    """The trace before it is compressed: all there is when a rank dies after its profiled steps."""
    return f"rank-{rank}.trace.json"


def ranks_in(directory: Location) -> list[int]:
    """Every rank that left a file, in order."""
    matches = (_RANK_FILE.match(path.name) for path in directory.iterdir())
    return sorted({int(match.group(1)) for match in matches if match})


def trace_path(directory: Location, rank: int) -> Location | None:
    """The rank's trace, as it was written, plain or compressed anew, or ``None`` where it left none."""
    plain = plain_trace_file(rank)
    for name in (trace_file(rank), plain, f"{plain}.zst"):
        if (directory / name).is_file():
            return directory / name
    return None


def tensorboard_rank(rank: int) -> str:
    """The name of the rank's TensorBoard run."""
    return f"rank-{rank}"


def is_run(directory: Location) -> bool:
    return (directory / RUN_FILE).is_file()


def runs_in(directory: Location) -> list[str]:
    """Names of the folders in it that are runs; of very many only the first are looked at."""
    folders = sorted(path for path in directory.iterdir() if path.is_dir())
    return [path.name for path in folders[:_MOST_LOOKED_AT] if is_run(path)]


def repeated_directory(number: int) -> str:
    """In the folder that ``ddpprof trace --repeat`` writes, from 1 on."""
    return f"run-{number}"


def repeated_runs_in(directory: Location) -> dict[int, Location]:
    """The runs of one job, by number, in order; none where the folder is a run itself, or no such folder."""
    if not directory.is_dir() or is_run(directory):
        return {}
    found = {int(match.group(1)): path for path in directory.iterdir() if (match := _REPEATED.match(path.name))}
    return {number: found[number] for number in sorted(found) if is_run(found[number])}


def read_world_size(directory: Path) -> int | None:
    """How many ranks the job has, as its ``run.json`` says; ``None`` where there is none."""
    try:
        size = json.loads(read_small(directory / RUN_FILE))["world_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return size if isinstance(size, int) else None


def write_json(path: Path, content: dict[str, Any] | list[Any]) -> None:
    """Write beside and rename, so that a reader sees the old file or the whole new one. Raises ``OSError``."""
    own_files.write_whole(path, json.dumps(content).encode())


def remove_run(directory: Path) -> None:
    """Delete the files of an earlier run, those of its further attempts too, and nothing else in the folder."""
    for number in attempts_in(directory):
        if number:
            attempt = directory / attempt_directory(number)
            remove_run(attempt)
            with suppress(OSError):  # something else stands in it
                attempt.rmdir()
    remove_tensorboard(directory / TENSORBOARD_DIRECTORY)
    _remove_cached(directory / CACHE_DIRECTORY)
    for name in os.listdir(directory):
        if _is_of_run(name) or _is_of_run(own_files.name_of_part(name) or ""):
            own_files.remove_file(directory / name)


def _is_of_run(name: str) -> bool:
    return name in (RUN_FILE, EXITS_FILE) or _RANK_FILE.match(name) is not None


def is_cached(name: str) -> bool:
    """Whether a file of that name is an entry of the cache, or a part of one: another may stand in the same folder."""
    return _CACHED.match(name) is not None


def _remove_cached(directory: Path) -> None:
    if not own_files.is_folder(directory):
        return
    for name in os.listdir(directory):
        if is_cached(name) or (name == CACHE_IGNORED_BY_GIT and _ignores_all(directory / name)):
            own_files.remove_file(directory / name)
    with suppress(OSError):  # something else stands in it
        directory.rmdir()


def _ignores_all(path: Path) -> bool:
    if path.is_symlink() or not path.is_file() or path.stat().st_size != len(CACHE_IGNORE_ALL):
        return False
    return path.read_text(encoding="utf-8", errors="replace") == CACHE_IGNORE_ALL


def remove_tensorboard(directory: Path) -> None:
    """Delete what ddpprof wrote there for TensorBoard, and nothing else."""
    if not own_files.is_folder(directory):
        return
    own_files.remove_left_parts(directory)
    for name in os.listdir(directory):
        if _TENSORBOARD_RUN.match(name) and own_files.is_folder(directory / name):
            for file in os.listdir(directory / name):
                if _TENSORBOARD_FILE.search(file):
                    own_files.remove_file(directory / name / file)
            with suppress(OSError):  # something else stands in it
                (directory / name).rmdir()
    with suppress(OSError):
        directory.rmdir()
