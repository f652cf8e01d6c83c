"""Requests to a running job, through the socket in its run directory."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from ddpprof import own_files, rundir
from ddpprof.errors import DdpprofError
from ddpprof.model.json_files import CaptureAnswer, CaptureRequest
from ddpprof.model.pulse import Ended
from ddpprof.monitor.pulse_files import is_gone, read_head

_MOST_BYTES = 65_536
"""maximum size of an answer, which is one line"""
FIRST_ANSWER_S = 180.0
"""time limit for the first answer; a job refuses a capture if its ranks have not agreed on it after two minutes"""
LATER_ANSWERS_S = 30.0
"""time without an answer after which ddpprof checks whether the job still runs; it may be waiting for a slowdown"""


def ask(directory: Path, request: CaptureRequest) -> Iterator[CaptureAnswer]:
    """Send a request to the job that writes into `directory`, and yield its answers as they arrive.

    Stops if the job dies. Raises `DdpprofError` if no job accepts requests there, the job refuses the request, or an
    answer cannot be read.
    """
    with closing(_connect(directory)) as job, suppress(ConnectionError):
        job.sendall(msgspec.json.encode(request) + b"\n")
        for line in _lines(job, directory):
            try:
                answer = msgspec.json.decode(line, type=CaptureAnswer)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise _no_answer(directory, "sent an answer that ddpprof cannot read") from error
            if answer.refused is not None:
                raise DdpprofError(answer.refused)
            yield answer


def _lines(job: socket.socket, directory: Path) -> Iterator[bytes]:
    """Yield the lines that a job sends until it closes the connection or no longer runs."""
    received, has_answered = b"", False
    while True:
        job.settimeout(LATER_ANSWERS_S if has_answered else FIRST_ANSWER_S)
        try:
            part = job.recv(_MOST_BYTES)
        except TimeoutError:
            if not has_answered:
                raise _no_answer(directory, f"has not answered for {FIRST_ANSWER_S:g} s") from None
            if _is_over(directory):
                return
            continue
        *lines, received = (received + part).split(b"\n")
        yield from lines
        has_answered = has_answered or bool(lines)
        if not part:
            return
        if len(received) > _MOST_BYTES:
            raise _no_answer(directory, "sent an answer that is too long")


def _no_answer(directory: Path, why: str) -> DdpprofError:
    return DdpprofError(
        f"the process that accepts requests in {directory} {why}. Is the job still running? "
        f"See: ddpprof top {directory}"
    )


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
            why = f"the job in {directory} has ended. View the whole run with: ddpprof report {directory}"
        else:
            why = (
                f"no job accepts requests in {directory}. The job must run under ddpprof trace or watch, and be past "
                "its first steps. Run this command on the machine of the lowest training rank."
            )
        raise DdpprofError(why) from error
    return job


def _is_over(directory: Path) -> bool:
    """Return True if, according to the pulses, no rank of the job is training anymore."""
    try:
        heads = [read_head(directory, rank, 1) for rank in rundir.pulses_in(directory)]
    except (OSError, DdpprofError):
        return False
    return bool(heads) and all(head.state.ended != Ended.NOT_YET or is_gone(head.identity) for head in heads)
