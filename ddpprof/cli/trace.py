"""`ddpprof trace`: run a job with recording enabled, then print its report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof.cli.after_trace import after_trace, nothing_recorded, report_stream
from ddpprof.cli.arguments import add_profiler_options, count, numbers, positive, seconds
from ddpprof.cli.job import JobCommand, add_job_options, add_out_options, parse_job, run_recorded
from ddpprof.cli.saying import CHOICES, say
from ddpprof.ranks_and_steps import MOST

if TYPE_CHECKING:
    from ddpprof.record.launch import JobEnd


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    from ddpprof.record.settings import Settings

    add = parser.add_argument
    add_out_options(parser)
    add(
        "--repeat",
        type=positive,
        metavar="N",
        help="run the job N times, one after another, and store the runs as DIR/run-1 to DIR/run-N; existing runs are "
        "kept, and new ones are numbered after them. Compare such folders with: ddpprof compare",
    )
    add(
        "--skip-first",
        type=count,
        default=Settings.skip_first,
        metavar="N",
        help="do not record the first N steps (%(default)s)",
    )
    add(
        "--cost-steps",
        type=count,
        default=Settings.cost_steps,
        metavar="N",
        help="then train for N steps, half of them without recording, to measure the overhead of ddpprof (%(default)s)",
    )
    add(
        "--warmup",
        type=count,
        default=Settings.warmup,
        metavar="N",
        help="then let the profiler warm up for N steps (%(default)s)",
    )
    add("--steps", type=positive, default=Settings.steps, metavar="N", help="then profile N steps (%(default)s)")
    add(
        "--most-seconds",
        type=seconds,
        default=Settings.most_seconds,
        metavar="S",
        help="stop profiling after S seconds, even if N steps are not complete (%(default)g)",
    )
    add(
        "--most-memory",
        type=positive,
        default=Settings.most_bytes >> 20,
        metavar="MIB",
        help="stop profiling once the process has grown by this many MiB (%(default)s)",
    )
    add(
        "--baseline-steps",
        type=count,
        default=Settings.baseline_steps,
        metavar="N",
        help="then profile N steps without gradient communication, and run N more without the profiler, to measure "
        "how much communication slows down computation and to improve predictions. Afterwards, the model is invalid: "
        "the job ends with exit code 0, and torch.save writes nothing during these steps (%(default)s)",
    )
    add("--stop-after", action="store_true", help="end the job with exit code 0 once the steps are recorded")
    add(
        "--profile-ranks",
        type=numbers,
        metavar="N",
        help=f"profile only these ranks, such as 0-7,64 (default: all ranks or, in a job with more than {MOST}, an "
        "evenly spaced selection). Light recording covers all ranks",
    )
    add_profiler_options(parser)
    add(
        "--nccl-log",
        action="store_true",
        help="let NCCL log the networks, transports, channels and algorithms that it selects to DIR/nccl, and include "
        "them in the report. NCCL variables that you have set are kept",
    )
    add("--no-pulse", action="store_true", help="do not watch the job after the recorded steps")
    add_job_options(parser)
    parser.set_defaults(run_words=run_trace)


def run_trace(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    job = parse_job(parser, arguments, "trace")
    if job.options.baseline_steps and job.options.no_profiler:
        parser.error("--baseline-steps needs the profiler: remove --no-profiler")
    if job.options.repeat is not None:
        return _trace_repeatedly(parser, job)
    return _trace(job, job.out).exit_code


def _trace_repeatedly(parser: argparse.ArgumentParser, job: JobCommand) -> int:
    """Run the job repeatedly. Stop after the first run that fails, and return its exit code."""
    from ddpprof import rundir
    from ddpprof.layout import count as number_of
    from ddpprof.record import launch

    out, options = job.out, job.options
    if launch.inside_job():
        parser.error("--repeat starts the job itself, so it cannot be used under a launcher")
    if rundir.is_run(out):
        parser.error(f"{out} is itself a run. Choose another folder for repeated runs: --out {out}s")
    there = rundir.repeated_runs_in(out)
    first = 1 if options.force else max(there, default=0) + 1
    CHOICES.is_quiet, is_quiet = True, CHOICES.is_quiet
    numbered = [out / rundir.repeated_directory(number) for number in range(first, first + options.repeat)]
    for number, directory in enumerate(numbered, 1):
        outcome = _trace(job, directory)
        if outcome.exit_code or outcome.interrupted:
            return outcome.exit_code
        if not is_quiet:
            say(f"ddpprof: run {number} of {options.repeat} is recorded", file=sys.stderr, flush=True)
    kept = len(rundir.repeated_runs_in(out))
    if not kept:
        say(nothing_recorded(numbered, job.name), file=sys.stderr)
    elif not is_quiet:
        say(
            f"\nWrote {out} ({number_of(kept, 'run')}). View them with: ddpprof report {out}",
            file=report_stream(),
            flush=True,
        )
    return 0


def _trace(job: JobCommand, out: Path) -> JobEnd:
    from ddpprof.record.settings import Settings

    options = job.options
    settings = Settings(
        out=str(out),
        skip_first=options.skip_first,
        cost_steps=options.cost_steps,
        warmup=options.warmup,
        steps=options.steps,
        profile_ranks=options.profile_ranks.spans if options.profile_ranks else (),
        most_seconds=options.most_seconds,
        most_bytes=options.most_memory << 20,
        profiler=not options.no_profiler,
        baseline_steps=options.baseline_steps,
        alone_steps=options.baseline_steps,
        record_shapes=options.record_shapes
        or options.baseline_steps > 0,  # shapes distinguish kernels with the same name
        with_stack=options.with_stack,
        profile_memory=options.profile_memory,
        stop_after=options.stop_after or options.baseline_steps > 0,
        nccl_log=options.nccl_log,
        pulse=not options.no_pulse,
    )
    return run_recorded(job, out, settings, "trace", lambda inside, end: after_trace(job, out, inside, end))
