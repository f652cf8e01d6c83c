"""`ddpprof doctor`: check whether ddpprof works on this machine, and write the results to a file for bug reports."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof.cli.arguments import count, presets
from ddpprof.cli.saying import CHOICES, add_json_option, progress, say
from ddpprof.errors import DdpprofError, did_you_mean, writing
from ddpprof.files import local

if TYPE_CHECKING:
    from ddpprof.doctor.checks import CheckResult

_HOW_LONG = "This takes about half a minute, or longer with several GPUs or on a busy machine."
_WIDTH = 21
"""width of the column of names, in characters"""


def add_doctor_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--gpus",
        type=count,
        metavar="N",
        help="use N GPUs, and fail if PyTorch finds fewer (default: all GPUs that PyTorch finds)",
    )
    add("--only", type=_names, default=(), metavar="NAME,…", help="run only these checks")
    add(
        "--out",
        type=local,
        default="doctor.json",
        metavar="FILE",
        help="file to write the results to, without user and host names (%(default)s)",
    )
    add_json_option(parser)
    parser.set_defaults(run=run_doctor)


def _names(text: str) -> tuple[str, ...]:
    from ddpprof.doctor import NAMES

    words = tuple(word.strip() for word in text.split(","))
    for word in words:
        if word not in NAMES:
            raise argparse.ArgumentTypeError(
                f"there is no check {word}.{did_you_mean(word, NAMES)} Choose from: {', '.join(NAMES)}"
            )
    return words


def run_doctor(options: argparse.Namespace) -> int:
    """Run the checks. Return the exit code, which is 1 if a check fails."""
    from ddpprof.doctor import document, examine
    from ddpprof.doctor.checks import CheckStatus
    from ddpprof.record import launch
    from ddpprof.rundir import write_json

    launch.refuse_without_torch()
    out: Path = options.out
    if not out.absolute().parent.is_dir():
        raise DdpprofError(f"cannot write {out}: there is no folder {out.parent}.")
    outcomes: list[CheckResult] = []
    began, setup = time.monotonic(), None
    if not options.only:
        for name, preset in presets().items():
            say(f"option {name} = {preset.value}, from {preset.source}")
        progress(_HOW_LONG)
    for found in examine(out.absolute().parent, options.gpus, options.only, _show_progress):
        _show_progress("")
        for outcome in found:
            if outcome.setup != setup:
                say(f"\n{outcome.setup}:")
                setup = outcome.setup
            _show(outcome)
        outcomes += found
    counts = Counter(one.verdict for one in outcomes)
    with writing(out):
        write_json(out, document(outcomes))
    seconds = time.monotonic() - began
    passed, failed, skipped = (counts[status] for status in (CheckStatus.PASS, CheckStatus.FAIL, CheckStatus.SKIP))
    say(f"\n{passed} passed, {failed} failed, {skipped} skipped, in {seconds:.0f} s.")
    say(f"Wrote {out}." + (" Attach it to a bug report." if counts[CheckStatus.FAIL] else ""))
    if CHOICES.prints_json:
        sys.stdout.write(out.read_text(encoding="utf-8"))
    return 1 if counts[CheckStatus.FAIL] else 0


def _show(outcome: CheckResult) -> None:
    if outcome.expected is None:
        say(f"{outcome.verdict}  {outcome.name:{_WIDTH}}{outcome.reason}", flush=True)
        return
    say(f"{outcome.verdict}  {outcome.name:{_WIDTH}}found {outcome.found}; expected {outcome.expected}", flush=True)
    if outcome.reason is not None:
        say(f"      {'':{_WIDTH}}{outcome.reason}", flush=True)


def _show_progress(text: str) -> None:
    """Show on a terminal which check is running. The next call overwrites the line."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
