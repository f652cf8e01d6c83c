"""Create the run directory. On hosts that cannot access it, create a directory with a part of the run.

The leading rank writes ``run.json`` into the run directory. The other ranks get the ``run_id`` from the job's store. If
hosts share no file system, a rank that does not find ``run.json`` writes one for the ranks of its host, and prints how
to join the parts.

torchrun restarts all ranks when a rank fails, or when nodes join or leave. The first attempt that reaches a DDP forward
pass records into the run directory, and later attempts record into subfolders.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import structs

from ddpprof import own_files, ranks_and_steps, rundir
from ddpprof.errors import RunExists
from ddpprof.linux_files import stat_of
from ddpprof.model.json_files import RunFile, TorchrunJob
from ddpprof.record.settings import Settings
from ddpprof.redaction import words_without_secrets
from ddpprof.version import __version__

_RUN_ID, _RESTARTS = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"
_NO_ID = ("", "none")
"""values of torchrun's run ID if the user has not chosen a run ID"""


def agent_of_this_process() -> str | None:
    """Return an identifier of the torchrun process that started this process, if any.

    It is the same in all attempts.
    """
    run_id = os.environ.get(_RUN_ID)
    return None if run_id is None else f"{run_id}@{socket.gethostname()}:{os.getppid()}"


def torchrun_job(settings: Settings) -> TorchrunJob | None:
    """Return the job's identity, stored in ``run.json`` to recognize later attempts.

    Returns ``None`` if torchrun did not start the job.
    """
    run_id, restarts = os.environ.get(_RUN_ID), os.environ.get(_RESTARTS, "")
    if run_id is None:
        return None
    return TorchrunJob(
        agent=settings.agent or agent_of_this_process(),
        run_id=None if run_id in _NO_ID else run_id,
        restarts=int(restarts) if restarts.isdecimal() else None,
        host=socket.gethostname(),
        pid=os.getpid(),
    )


def next_attempt(directory: Path, settings: Settings) -> int:
    """Return the number of this attempt; 0 if `directory` contains no earlier attempt of this job."""
    if not rundir.is_run(directory):
        return 0
    last = list(rundir.attempts_in(directory))[-1]
    path = directory / rundir.attempt_directory(last)
    return last + 1 if _is_of_this_job(path, torchrun_job(settings), settings) else 0


def is_restart(directory: Path, settings: Settings) -> bool:
    """Return True if torchrun has restarted the job. Raising an error would then end a running job."""
    return os.environ.get(_RESTARTS) not in (None, "", "0") or next_attempt(directory, settings) > 0


def _is_of_this_job(directory: Path, mine: TorchrunJob | None, settings: Settings) -> bool:
    about = rundir.read_json(directory / rundir.RUN_FILE, RunFile)
    if mine is None or about is None or about.elastic is None:
        return False
    found = about.elastic
    if found.host == mine.host and found.pid in _this_and_ancestors():
        return False  # another recording of the same process, or of one of its ancestors
    if found.agent == mine.agent:
        return True
    # Rank 0 may have moved to another node. An ID chosen by the user may also belong to an earlier job.
    created, began = about.created_unix_s, settings.launched_unix_s
    is_later = created is not None and began is not None and created >= began
    return is_later and mine.run_id is not None and found.run_id == mine.run_id


def _this_and_ancestors() -> list[int]:
    found = [os.getpid(), os.getppid()]
    while found[-1] > 1 and (stat := stat_of(Path(f"/proc/{found[-1]}"))) is not None:
        found.append(stat.parent)
    return found


_NOT_SHOWN = ("out", "command", "launched_unix_s", "agent")
_PATIENCE_S = 1.0
"""seconds after which a network file system is assumed to show what another host has written"""


def open_run(settings: Settings, run_id: str, world_size: int) -> Path:
    """Create the run directory, or an attempt's folder in it, with its ``run.json``. The leading rank calls this.

    Raises ``OSError`` and ``RunExists``.
    """
    directory = Path(settings.out).absolute()
    own_files.make_named_folder(directory)
    attempt = next_attempt(directory, settings)
    if attempt:
        directory /= rundir.attempt_directory(attempt)
        own_files.make_folder(directory)
    else:
        _refuse_second_job(directory, settings.launched_unix_s)
        refuse_earlier_run(directory, settings.force)
        rundir.remove_run(directory, _exits_of_this_job(directory, settings.launched_unix_s))
    about = _about_whole_run(settings, run_id, world_size)
    _write(directory, structs.replace(about, attempt=attempt, elastic=torchrun_job(settings)))
    return directory


def _exits_of_this_job(directory: Path, launched_unix_s: float | None) -> tuple[str, ...]:
    """Return the name of the file with the ends of processes if a rank of this job has already written to it.

    The rank has failed before it had a DDP module.
    """
    with suppress(OSError):
        if launched_unix_s is not None and (directory / rundir.EXITS_FILE).stat().st_mtime >= launched_unix_s:
            return (rundir.EXITS_FILE,)
    return ()


def open_capture(directory: Path, settings: Settings, run_id: str, world_size: int) -> None:
    """Create the folder of a capture with its ``run.json``. The leading rank calls this. Raises ``OSError``."""
    own_files.make_folder(directory)
    rundir.remove_run(directory)
    _write(directory, _about_whole_run(settings, run_id, world_size))


def keep_part(
    directory: Path, settings: Settings, run_id: str, world_size: int, leader: int, warn: Callable[[str], None]
) -> bool:
    """Make `directory` a part of the run, unless rank `leader` created it. Return True if it is a part.

    `warn`: called with instructions on how to join the parts. Raises ``OSError``, and ``RunExists`` if `directory`
    contains an earlier run on this host.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while (there := _run_in(directory)) != run_id:
        if there is not None and time.monotonic() > deadline:
            raise RunExists(f"{directory} contains an earlier run on this host. Remove it, or choose another --out.")
        if time.monotonic() > deadline:
            own_files.make_folder(directory)  # queries the server, in case this host has cached an empty folder
            if _run_in(directory) is None:
                about = _about_run(settings, run_id, world_size)
                _write(directory, structs.replace(about, settings={"profiler": settings.profiler}, is_part=True))
                warn(_how_to_join(directory, leader))
                return True
        time.sleep(0.05)
    return False


def _run_in(directory: Path) -> str | None:
    """Return the ``run_id`` of the run in `directory`.

    The directory is listed, so that a network file system refreshes its cache.
    """
    with suppress(OSError, ValueError, AttributeError):
        if rundir.RUN_FILE in os.listdir(directory):
            return str(json.loads((directory / rundir.RUN_FILE).read_bytes()).get("run_id"))
    return None


def _how_to_join(directory: Path, leader: int) -> str:
    host = socket.gethostname()
    copied = f"{directory}-{host}"
    return (
        f"{host} cannot access the run directory of rank {leader}, so the files of the ranks on {host} stay there. On "
        f"rank {leader}'s host, run: rsync -a {host}:{directory}/ {copied}/ && ddpprof report {directory} {copied}"
    )


def _about_whole_run(settings: Settings, run_id: str, world_size: int) -> RunFile:
    shown = {key: value for key, value in dataclasses.asdict(settings).items() if key not in _NOT_SHOWN}
    shown["recorded_with"] = words_without_secrets(settings.recorded_with)
    return structs.replace(_about_run(settings, run_id, world_size), settings=shown)


def _about_run(settings: Settings, run_id: str, world_size: int) -> RunFile:
    """Return the fields that are the same in every ``run.json`` of a run and its parts."""
    return RunFile(
        format=rundir.FORMAT,
        run_id=run_id,
        ddpprof=__version__,
        created_unix_s=time.time(),
        command=words_without_secrets(settings.command),
        world_size=world_size,
        profiled_ranks=ranks_and_steps.rule(world_size, settings.profile_ranks) if settings.profiler else None,
    )


def _write(directory: Path, about: RunFile) -> None:
    rundir.write_json(directory / rundir.RUN_FILE, msgspec.to_builtins(about))


def refuse_earlier_run(directory: Path, force: bool) -> None:
    """Raise ``RunExists`` if `directory` contains a run, unless `force` is set."""
    if directory.is_dir() and (rundir.is_run(directory) or rundir.ranks_in(directory)) and not force:
        raise RunExists(
            f"{directory} contains an earlier run. Choose another --out, or use --force to replace the run."
        )


def _refuse_second_job(directory: Path, launched_unix_s: float | None) -> None:
    """Raise ``RunExists`` if the command launched at `launched_unix_s` has already recorded a job into `directory`."""
    first = rundir.read_json(directory / rundir.RUN_FILE, RunFile) if rundir.is_run(directory) else None
    if first is None or first.created_unix_s is None or launched_unix_s is None:
        return
    if first.created_unix_s >= launched_unix_s:
        raise RunExists(
            f"the command starts more than one training job. Only the first job is recorded, in {directory}."
        )
