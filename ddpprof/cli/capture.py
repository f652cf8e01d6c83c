"""`ddpprof capture`: profile the next steps of a running job on all ranks. The request is sent to the job's socket."""

from __future__ import annotations

import argparse
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof import own_files, rundir
from ddpprof.cli.arguments import add_profiler_options, positive
from ddpprof.cli.reading import last_attempt_of
from ddpprof.cli.saying import say
from ddpprof.errors import DdpprofError
from ddpprof.files import local

if TYPE_CHECKING:
    from ddpprof.model.json_files import CaptureAnswer, CaptureRequest

_WHEN = re.compile(r"step\s*>\s*(\d+(?:\.\d+)?)x")


def add_capture_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_directory", type=local, metavar="RUN", help="run directory of the running job")
    add("--steps", type=positive, default=5, metavar="N", help="profile N steps (%(default)s)")
    add(
        "--when",
        type=_factor,
        metavar="'step>1.2x'",
        help="wait until steps take this many times as long as usual, then profile",
    )
    add_profiler_options(parser)
    parser.set_defaults(run=run_capture)


def _factor(text: str) -> float:
    match = _WHEN.fullmatch(text.strip())
    if match is None or float(match[1]) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a condition such as 'step>1.2x'")
    return float(match[1])


def run_capture(options: argparse.Namespace) -> int:
    from ddpprof.model.json_files import CaptureRequest

    directory = last_attempt_of(options.run_directory)
    request = CaptureRequest(
        steps=options.steps,
        profiler=not options.no_profiler,
        record_shapes=options.record_shapes,
        with_stack=options.with_stack,
        profile_memory=options.profile_memory,
        slower_than=options.when,
    )
    is_told = False
    for answer in ask(directory, request):
        if answer.armed and not is_told:
            say(
                f"ddpprof: waiting until steps take {options.when:g} times as long as usual",
                file=sys.stderr,
                flush=True,
            )
            is_told = True
        if answer.first_step is not None and answer.folder is None:
            last = answer.first_step + options.steps - 1
            say(f"ddpprof: all ranks will profile steps {answer.first_step} to {last}", file=sys.stderr, flush=True)
        if answer.folder is not None:
            folder = directory / Path(answer.folder).name
            say(f"Wrote {folder}. View it with: ddpprof report {folder}")
            return 0
    raise DdpprofError("the job ended before the steps were captured.")


_MOST_BYTES = 65_536
"""maximum size in bytes of an answer, which is a single line"""
FIRST_ANSWER_S = 180.0
"""time limit for the first answer. A job refuses a capture if its ranks have not agreed on it after two minutes"""
LATER_ANSWERS_S = 30.0
"""if no answer arrives for this many seconds, ddpprof checks whether the job still runs; the job may be waiting for a
slow step
"""


def ask(directory: Path, request: CaptureRequest) -> Iterator[CaptureAnswer]:
    """Send a request to the job that writes into `directory`, and yield its answers as they arrive.

    Stops if the job dies. Raises `DdpprofError` if no job in `directory` accepts requests, the job refuses the request,
    or an answer cannot be read.
    """
    import msgspec

    from ddpprof.model.json_files import CaptureAnswer

    with closing(_connect(directory)) as job, suppress(ConnectionError):
        job.sendall(msgspec.json.encode(request) + b"\n")
        for line in _answers(job, directory):
            try:
                answer = msgspec.json.decode(line, type=CaptureAnswer)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise _no_answer(directory, "sent an answer that ddpprof cannot read") from error
            if answer.refused is not None:
                raise DdpprofError(answer.refused)
            yield answer


def _answers(job: socket.socket, directory: Path) -> Iterator[bytes]:
    """Yield the lines that a job sends, until the job closes the connection or no longer runs."""
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
            raise _no_answer(directory, "sent an answer that exceeds the size limit")


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
                f"no job accepts requests in {directory}. The job must run under ddpprof trace or watch, and must "
                f"have finished its first steps. Run this command on the machine of the lowest-numbered "
                f"rank that trains with DDP."
            )
        raise DdpprofError(why) from error
    return job


def _is_over(directory: Path) -> bool:
    """Return True if no rank of the job is still training, according to the pulse files."""
    from ddpprof.model.pulse import Ended
    from ddpprof.monitor.pulse_files import is_gone, read_head

    try:
        heads = [read_head(directory, rank, 1) for rank in rundir.pulses_in(directory)]
    except (OSError, DdpprofError):
        return False
    return bool(heads) and all(head.state.ended != Ended.NOT_YET or is_gone(head.identity) for head in heads)
