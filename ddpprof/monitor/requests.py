"""Requests to a running job, through the socket in its run directory."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from ddpprof import own_files, rundir
from ddpprof.errors import DdpprofError
from ddpprof.model.capture import CaptureAnswer, CaptureRequest
from ddpprof.model.pulse import Ended
from ddpprof.monitor.pulse_files import is_gone, read_head


def ask(directory: Path, request: CaptureRequest) -> Iterator[CaptureAnswer]:
    """Send a request to the job that writes into `directory`, and yield its answers as they come.

    Raises `DdpprofError` if no job takes requests there, or the request is refused. If the job dies, answers end.
    """
    with closing(_connect(directory)) as job, suppress(ConnectionError):
        job.sendall(msgspec.json.encode(request) + b"\n")
        with job.makefile("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                answer = msgspec.json.decode(line, type=CaptureAnswer)
                if answer.refused is not None:
                    raise DdpprofError(answer.refused)
                yield answer


def _connect(directory: Path) -> socket.socket:
    path = directory / rundir.CONTROL_SOCKET
    job = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with own_files.short_path(path) as short:
            job.connect(short)
    except PermissionError as error:
        job.close()
        raise DdpprofError(f"the job in {directory} belongs to another user.") from error
    except OSError as error:
        job.close()
        if _is_over(directory):
            why = f"the job in {directory} is over. See its whole run with: ddpprof report {directory}"
        else:
            why = (
                f"no job takes requests in {directory}. It must run under ddpprof trace or watch, be past its first "
                "steps, and be asked on the machine of the lowest rank that trains."
            )
        raise DdpprofError(why) from error
    return job


def _is_over(directory: Path) -> bool:
    """Return whether no rank of the job trains any more, as far as their pulses tell."""
    try:
        heads = [read_head(directory, rank, 1) for rank in rundir.pulses_in(directory)]
    except (OSError, DdpprofError):
        return False
    return bool(heads) and all(head.state.ended != Ended.NOT_YET or is_gone(head.identity) for head in heads)
