"""`ddpprof capture`: profile the next steps of a running job on all ranks."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from ddpprof.cli.arguments import add_profiler_options, positive
from ddpprof.cli.reading import last_attempt_of
from ddpprof.cli.saying import say
from ddpprof.files import local

_WHEN = re.compile(r"step\s*>\s*(\d+(?:\.\d+)?)x")


def add_capture_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_directory", type=local, metavar="RUN", help="run directory of the running job")
    add("--steps", type=positive, default=5, metavar="N", help="profile N steps (%(default)s)")
    add(
        "--when",
        type=_factor,
        metavar="'step>1.2x'",
        help="start profiling when steps take this many times as long as usual",
    )
    add_profiler_options(parser)
    parser.set_defaults(run=run_capture)


def _factor(text: str) -> float:
    match = _WHEN.fullmatch(text.strip())
    if match is None or float(match[1]) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a condition such as 'step>1.2x'")
    return float(match[1])


def run_capture(options: argparse.Namespace) -> int:
    from ddpprof.errors import DdpprofError
    from ddpprof.model.json_files import CaptureRequest
    from ddpprof.monitor.requests import ask

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
