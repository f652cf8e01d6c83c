"""Which runs are attempts of one job? torchrun restarts all ranks when one fails, or when nodes come and go.

The first attempt that reaches a DDP forward records into the run directory, and later ones into subfolders.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from ddpprof import rundir
from ddpprof.linux_files import stat_of
from ddpprof.model.run_file import RunFile, TorchrunJob
from ddpprof.record.settings import Settings

_RUN_ID, _RESTARTS = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"
_NO_ID = ("", "none")
"""run ids that torchrun gives by default to every job"""


def agent_of_this_process() -> str | None:
    """Return torchrun's process that started this one, if any; it lives through all attempts of its node."""
    run_id = os.environ.get(_RUN_ID)
    return None if run_id is None else f"{run_id}@{socket.gethostname()}:{os.getppid()}"


def describe(settings: Settings) -> TorchrunJob | None:
    """Return the job's identity for ``run.json``, by which a later attempt recognises it; ``None`` without torchrun."""
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
    """Return the number of this attempt; 0 if `directory` holds no attempt of its job."""
    if not rundir.is_run(directory):
        return 0
    last = list(rundir.attempts_in(directory))[-1]
    path = directory / rundir.attempt_directory(last)
    return last + 1 if _is_of_this_job(path, describe(settings), settings) else 0


def is_restart(directory: Path, settings: Settings) -> bool:
    """Return whether torchrun has started the job before; refusing to record would end what an earlier one began."""
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
    # Rank 0 has moved to another node. An id chosen by the user may also belong to an earlier job.
    created, began = about.created_unix_s, settings.launched_unix_s
    is_later = created is not None and began is not None and created >= began
    return is_later and mine.run_id is not None and found.run_id == mine.run_id


def _this_and_ancestors() -> list[int]:
    found = [os.getpid(), os.getppid()]
    while found[-1] > 1 and (stat := stat_of(Path(f"/proc/{found[-1]}"))) is not None:
        found.append(stat.parent)
    return found
