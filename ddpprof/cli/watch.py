"""`ddpprof watch`: run a job and watch all its steps, without recording any step in detail."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddpprof.cli.job import JobCommand, add_job_options, add_out_options, parse_job, run_recorded
from ddpprof.cli.saying import say

if TYPE_CHECKING:
    from ddpprof.record.launch import JobEnd


def add_watch_options(parser: argparse.ArgumentParser) -> None:
    add_out_options(parser)
    add_job_options(parser)
    parser.set_defaults(run_words=run_watch)


def run_watch(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    from ddpprof.record.settings import Settings

    job = parse_job(parser, arguments, "watch")
    return run_recorded(
        job,
        job.out,
        Settings.to_watch(str(job.out)),
        "watch",
        lambda inside, end: _after(job, inside, end),
    ).exit_code


def _after(job: JobCommand, inside: bool, end: JobEnd) -> None:
    """Print why the job failed, if it did, and the command that shows the run.

    `inside`: whether this process is itself a rank.
    """
    from ddpprof import rundir
    from ddpprof.cli.trace import has_run_to_tell_of
    from ddpprof.monitor.examination import examine, hung_at_last
    from ddpprof.topics.hang_words import verdict_lines

    out = job.out
    if not has_run_to_tell_of(job, out, inside, end, rundir.ranks_in):
        return
    hung = hung_at_last(rundir.last_attempt(out)) is not None
    is_told = end.was_stopped or end.exit_code == 0 or hung
    verdict = None if is_told else examine(rundir.last_attempt(out)).verdict
    for line in () if verdict is None else verdict_lines(verdict):
        say(f"ddpprof: {line}", file=sys.stderr)
    why = f". Find out why it hung with: ddpprof diagnose {out}" if hung else ""
    say(f"\nddpprof: the run is in {out}. See it with: ddpprof report {out}{why}", file=sys.stderr, flush=True)
