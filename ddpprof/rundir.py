"""The run directory: its files, its format version, and functions that read and write them.

    run.json               the command, the ddpprof version and the settings
    rank-0.facts.json      rank 0: host, versions, DDP modules and their buckets, data loaders, how the rank ended
    rank-0.steps.jsonl     rank 0: one line per recorded step, appended during training
    rank-0.trace.json.gz   rank 0: the profiler's trace of the profiled steps
    rank-0.last_step       rank 0: number of finished steps, and the time when the last one ended; a few bytes
    rank-0.pulse           rank 0: current activity and a summary of all steps; fixed size, see ``model/pulse.py``
    rank-0.losses.json     rank 0: the loss of each step, if the run is a trial of ``ddpprof tune``
    exits.jsonl            how the ranks and the job ended, recorded by the processes that started them
    tensorboard/           event files for TensorBoard, one folder per TensorBoard run; made from the files above
    slowdowns.json         slowdowns of the whole run so far, written by the process that watches it
    hang.json              the last verdict on a job that hung, from ``ddpprof diagnose`` or the process that watches it
    hang-stacks.txt        stacks of all threads of the ranks while the job hung, if requested
    nccl/                  NCCL's own log, one file per process, with ``--nccl-log``
    control.sock           socket on which the running job accepts requests from ``ddpprof capture``
    board/                 small files through which the ranks agree on a capture
    capture-1/             a run with the steps that ``ddpprof capture`` requested
    attempt-1/             the same files for the job's next attempt, if torchrun restarted all ranks

A folder written by ``ddpprof trace --repeat`` contains runs of the same job in ``run-1``, ``run-2``, …

Files are written under a temporary name and then renamed, so readers never see a partial file. Only ``steps.jsonl``
grows, line by line, so that all lines remain if a rank is killed.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ddpprof import own_files
from ddpprof.files import Location, read_small

FORMAT = 1
"""version of the run directory's format; ddpprof refuses newer versions and reads all older ones"""

RUN_FILE = "run.json"
EXITS_FILE = "exits.jsonl"
LAST_STEP = "<qq"
"""`struct` format of ``rank-0.last_step``: number of finished steps, and time in ns since 1970"""
_RANK_FILE = re.compile(
    r"^rank-(\d{1,7})\.(crash\.txt|facts\.json|losses\.json|last_step|pulse|steps\.jsonl|trace\.json(?:\.gz|\.zst)?)$"
)
_MOST_LOOKED_AT = 100

_ATTEMPT = re.compile(r"^attempt-([1-9]\d{0,5})$")

CONTROL_SOCKET = "control.sock"
HANG_FILE = "hang.json"
HANG_STACKS_FILE = "hang-stacks.txt"
SLOWDOWNS_FILE = "slowdowns.json"
TRIED_FILE = "tried.json"
_OF_RUN = (RUN_FILE, EXITS_FILE, CONTROL_SOCKET, HANG_FILE, HANG_STACKS_FILE, SLOWDOWNS_FILE, TRIED_FILE)
BOARD_DIRECTORY = "board"
NCCL_DIRECTORY = "nccl"
_NCCL_LOG = re.compile(r"^[\w-]{1,64}\.\d{1,10}\.txt$")
_NOTE = re.compile(r"^(?:request|open|start)-\d+$|^(?:ready|done)-\d+\.\d+$")
_CAPTURE = re.compile(r"^capture-([1-9]\d{0,5})$")

TENSORBOARD_DIRECTORY = "tensorboard"
TENSORBOARD_OF_RUN = "run"
"""name of the TensorBoard run with the data of all ranks"""
TENSORBOARD_TRACES = "traces"
"""name of the TensorBoard run with traces for the profiler plugin"""
_TENSORBOARD_RUN = re.compile(rf"^(?:{TENSORBOARD_OF_RUN}|{TENSORBOARD_TRACES}|rank-\d+)$")
_TENSORBOARD_FILE = re.compile(r"^events\.out\.tfevents\.\d+\.ddpprof$|\.pt\.trace\.json\.gz$")

_REPEATED = re.compile(r"^run-([1-9]\d{0,5})$")

_T = TypeVar("_T")


def attempt_directory(number: int) -> str:
    """Return the name of an attempt's folder in the run directory. Attempt 0 uses the run directory itself."""
    return f"attempt-{number}" if number else ""


def attempt_of(directory_name: str) -> int | None:
    """Return the number of the attempt that is stored in a directory of this name; ``None`` for any other name."""
    match = _ATTEMPT.match(directory_name)
    return int(match.group(1)) if match else None


def attempts_in(directory: Location) -> dict[int, Location]:
    """Return all recorded attempts by number, in order. Most runs have only one attempt."""
    further = _numbered_runs(directory, _ATTEMPT)
    return {0: directory, **further} if is_run(directory) else further


def last_attempt(directory: Path) -> Path:
    """Return the directory of the run's last attempt. Raises ``OSError``."""
    return directory / attempt_directory(max(attempts_in(directory), default=0))


def capture_directory(number: int) -> str:
    """Return the name of a capture's folder in the run directory. Numbers begin at 1."""
    return f"capture-{number}"


def captures_in(directory: Location) -> dict[int, Location]:
    """Return the captures of a run by number, in order."""
    return _numbered_runs(directory, _CAPTURE)


def _numbered_runs(directory: Location, names: re.Pattern[str]) -> dict[int, Location]:
    """Return the runs in folders with names that match `names`, by number, in order. Links are ignored."""
    found = {int(match.group(1)): path for path in directory.iterdir() if (match := names.match(path.name))}
    kept = {number: path for number, path in found.items() if not (isinstance(path, Path) and path.is_symlink())}
    return {number: kept[number] for number in sorted(kept) if is_run(kept[number])}


def facts_file(rank: int) -> str:
    return f"rank-{rank}.facts.json"


def steps_file(rank: int) -> str:
    return f"rank-{rank}.steps.jsonl"


def crash_file(rank: int) -> str:
    return f"rank-{rank}.crash.txt"


def losses_file(rank: int) -> str:
    return f"rank-{rank}.losses.json"


def write_last_step(file: int, num_steps: int, ended_ns: int) -> None:
    """Write the number of finished steps, and the time when the last step ended, to an open file.

    Raises ``OSError``.
    """
    os.pwrite(file, struct.pack(LAST_STEP, num_steps, ended_ns), 0)


def last_step_file(rank: int) -> str:
    return f"rank-{rank}.last_step"


def pulse_file(rank: int) -> str:
    return f"rank-{rank}.pulse"


def pulses_in(directory: Location) -> list[int]:
    """Return the ranks that have written a pulse, in ascending order."""
    matches = (_RANK_FILE.match(path.name) for path in directory.iterdir())
    return sorted({int(match.group(1)) for match in matches if match and match.group(2) == "pulse"})


def trace_file(rank: int) -> str:
    return f"rank-{rank}.trace.json.gz"


def plain_trace_file(rank: int) -> str:
    """Return the name of the uncompressed trace. Only this file exists if a rank dies after its profiled steps."""
    return f"rank-{rank}.trace.json"


def ranks_in(directory: Location) -> list[int]:
    """Return the ranks that have written any file, in ascending order."""
    matches = (_RANK_FILE.match(path.name) for path in directory.iterdir())
    return sorted({int(match.group(1)) for match in matches if match})


def trace_path(directory: Location, rank: int) -> Location | None:
    """Return the rank's trace file, which may be compressed, plain or recompressed; ``None`` if there is none."""
    plain = plain_trace_file(rank)
    for name in (trace_file(rank), plain, f"{plain}.zst"):
        if (directory / name).is_file():
            return directory / name
    return None


def tensorboard_rank(rank: int) -> str:
    """Return the name of the rank's TensorBoard run."""
    return f"rank-{rank}"


def nccl_log_file(host: str, process: int | str) -> str:
    """Return the path of a process's NCCL log in the run directory. NCCL truncates host names at the first dot."""
    return f"{NCCL_DIRECTORY}/{host.partition('.')[0]}.{process}.txt"


def remove_nccl_logs(directory: Path) -> None:
    """Delete the NCCL logs of an earlier run. Call this before the job starts, because NCCL creates its logs early."""
    _remove_files(directory / NCCL_DIRECTORY, _NCCL_LOG.match)


def is_run(directory: Location) -> bool:
    return (directory / RUN_FILE).is_file()


def runs_in(directory: Location) -> list[str]:
    """Return the names of subfolders that are runs. Only the first 100 subfolders are checked."""
    folders = sorted(path for path in directory.iterdir() if path.is_dir())
    return [path.name for path in folders[:_MOST_LOOKED_AT] if is_run(path)]


def repeated_directory(number: int) -> str:
    """Return the name of a run's folder in a folder written by ``ddpprof trace --repeat``. Numbers begin at 1."""
    return f"run-{number}"


def repeated_runs_in(directory: Location) -> dict[int, Location]:
    """Return the runs of one job by number, in order. Empty if the folder is a run itself or does not exist."""
    if not directory.is_dir() or is_run(directory):
        return {}
    found = {int(match.group(1)): path for path in directory.iterdir() if (match := _REPEATED.match(path.name))}
    return {number: found[number] for number in sorted(found) if is_run(found[number])}


def read_world_size(directory: Path) -> int | None:
    """Return the job's world size, which is stored in ``run.json``; ``None`` if the file does not contain it."""
    content = read_json(directory / RUN_FILE, dict[str, object]) or {}
    size = content.get("world_size")
    return size if isinstance(size, int) else None


def read_json(path: Location, content: type[_T]) -> _T | None:
    """Return the content of a JSON file that ddpprof wrote; ``None`` if it cannot be read."""
    import msgspec  # not needed by `ddpprof --help`

    try:
        return msgspec.json.decode(read_small(path), type=content)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def write_json(path: Path, content: dict[str, Any] | list[Any]) -> None:
    """Write a JSON file so that readers see either the old or the new content. Raises ``OSError``."""
    own_files.write_whole(path, json.dumps(content).encode())


def remove_run(directory: Path, keep: Collection[str] = ()) -> None:
    """Delete the files of an earlier run, including its attempts and captures. Other files in the folder are kept.

    `keep`: names of files of the run that are kept, too.
    """
    for part in (*attempts_in(directory).values(), *captures_in(directory).values()):
        if isinstance(part, Path) and part != directory:
            remove_run(part)
            with suppress(OSError):  # the folder contains other files
                part.rmdir()
    _remove_files(directory / BOARD_DIRECTORY, _NOTE.match)
    remove_tensorboard(directory / TENSORBOARD_DIRECTORY)
    for name in os.listdir(directory):
        if name not in keep and (_is_of_run(name) or _is_of_run(own_files.name_of_part(name) or "")):
            own_files.remove_file(directory / name)


def _remove_files(directory: Path, is_own: Callable[[str], object]) -> None:
    """Delete the files with names that `is_own` accepts in a folder. If the folder is then empty, delete it, too."""
    if not own_files.is_folder(directory):
        return
    own_files.remove_left_parts(directory)
    for name in os.listdir(directory):
        if is_own(name):
            own_files.remove_file(directory / name)
    with suppress(OSError):  # the folder contains other files
        directory.rmdir()


def _is_of_run(name: str) -> bool:
    return name in _OF_RUN or _RANK_FILE.match(name) is not None


def remove_tensorboard(directory: Path) -> None:
    """Delete only the files that ddpprof has written to `directory` for TensorBoard."""
    if not own_files.is_folder(directory):
        return
    own_files.remove_left_parts(directory)
    for name in os.listdir(directory):
        if _TENSORBOARD_RUN.match(name):
            _remove_files(directory / name, _TENSORBOARD_FILE.search)
    with suppress(OSError):  # the folder contains other files
        directory.rmdir()
