"""`ddpprof trace`, `watch` and `demo`: run a job with recording enabled, then print its report.

`ddpprof watch` watches all steps of the job, without recording any step in detail. `ddpprof demo` traces the example
training scripts that are part of ddpprof.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ddpprof.cli.arguments import add_profiler_options, count, numbers, positive, seconds
from ddpprof.cli.job import JobCommand, add_job_options, add_out_options, parse_job, run_recorded
from ddpprof.cli.saying import CHOICES, say
from ddpprof.files import local
from ddpprof.ranks_and_steps import MOST

if TYPE_CHECKING:
    from ddpprof.model.hang import Verdict
    from ddpprof.pipeline.analysis import Analysis
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
        "kept, and new runs get the next numbers. Compare such folders with: ddpprof compare",
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
        help="stop profiling once the memory of the process has grown by this many MiB (%(default)s)",
    )
    add(
        "--baseline-steps",
        type=count,
        default=Settings.baseline_steps,
        metavar="N",
        help="after the profiled steps, profile N steps without gradient communication, and run N more without the "
        "profiler, to measure how much communication slows computation and to improve predictions. The model is then "
        "invalid, so torch.save writes nothing in these steps, and the job ends with exit code 0 (%(default)s)",
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
        help="write NCCL's log to DIR/nccl, and include in the report the networks, transports, channels and "
        "algorithms that NCCL selected. NCCL variables that you have set are kept",
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
            say(f"ddpprof: run {number} of {options.repeat} has been recorded", file=sys.stderr, flush=True)
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
    return run_recorded(job, out, settings, "trace", lambda inside, end: _after_trace(job, out, inside, end))


def _after_trace(job: JobCommand, out: Path, inside: bool, end: JobEnd) -> None:
    """Print the report, or the reason why there is no report. `inside`: whether this process is a rank."""
    from ddpprof import rundir

    if _has_run_to_tell_of(job, out, inside, end):
        _judge_failure(rundir.last_attempt(out), end)
        _print_run(out, summary_only=end.signal is not None)


def _has_run_to_tell_of(job: JobCommand, out: Path, inside: bool, end: JobEnd) -> bool:
    """Return True if this process should report on the run. Otherwise, print where the run is, or why it is missing."""
    from ddpprof import rundir
    from ddpprof.record.launch import is_first_rank

    if inside:
        if is_first_rank():
            say(f"ddpprof: view the run with: ddpprof report {out}", file=sys.stderr)
        return False
    attempts = rundir.attempts_in(out) if rundir.is_run(out) else {}
    if not any(rundir.ranks_in(path) for path in attempts.values()):
        failed = end.exit_code != 0 and not end.was_stopped
        known = end.was_reached or failed
        why = nothing_recorded([out], job.name, failed, job.is_one_node) if known else _NOT_REACHED
        _say_how_it_failed(out)
        say(why, file=sys.stderr)
        return False
    return True


def _say_how_it_failed(out: Path) -> None:
    """If a rank failed before the run was created, print its number."""
    from ddpprof.monitor.hang_detector import examine
    from ddpprof.topics.hang_words import verdict_lines

    verdict = examine(out).verdict if out.is_dir() else None
    for line in () if verdict is None else verdict_lines(verdict):
        say(f"ddpprof: {line}", file=sys.stderr)


def report_stream() -> TextIO:
    """Return the stream for the report after the job.

    If stdout goes to a file or program, this is stderr, so that stdout contains only the job's output.
    """
    return sys.stdout if sys.stdout.isatty() else sys.stderr


def _print_run(out: Path, summary_only: bool) -> None:
    from ddpprof.cli.report import screen
    from ddpprof.layout import count as number_of
    from ddpprof.pipeline.analysis import analysed
    from ddpprof.render.terminal import render_terminal

    file = report_stream()
    with analysed(out) as analysis:
        report = analysis.report
        if not summary_only:
            say(file=file)
            render_terminal(screen(report, [str(out)], analysis), file)
        _write_for_tensorboard(out, analysis)
    steps = max((len(rank.steps) + len(rank.light_steps) for rank in report.ranks), default=0)
    say(f"\nWrote {out} ({number_of(len(report.ranks), 'rank')}, {number_of(steps, 'step')}).", file=file, flush=True)


def _write_for_tensorboard(out: Path, analysis: Analysis) -> None:
    """Write the log directory for ``tensorboard --logdir OUT``, if TensorBoard is installed."""
    from importlib.util import find_spec

    from ddpprof.cli.tensorboard import write_log_directory
    from ddpprof.own_files import make_folder
    from ddpprof.rundir import TENSORBOARD_DIRECTORY

    if find_spec("tensorboard") is None:
        return
    try:
        make_folder(out / TENSORBOARD_DIRECTORY)
        write_log_directory(out / TENSORBOARD_DIRECTORY, analysis.report, analysis.drawings())
    except Exception as error:  # noqa: BLE001 (these files are optional)
        say(f"ddpprof: cannot write the files for TensorBoard: {error}", file=sys.stderr)


_NOT_REACHED = (
    "ddpprof: nothing was recorded: no Python process of the job loaded ddpprof. The job must pass PYTHONPATH on to "
    "its Python processes and must not start them with python -I, -E or -S. Alternatively, use `with "
    "ddpprof.profile(…):` in the script."
)


def nothing_recorded(attempted: Sequence[Path], name: str, failed: bool = False, is_one_node: bool = True) -> str:
    """Return a message that explains why nothing was recorded.

    A run is created in the first forward pass of a DDP module.
    """
    from ddpprof import rundir

    if failed and not any(map(rundir.is_run, attempted)):
        why = "the job failed, and had trained no DistributedDataParallel module"
    elif failed:
        why = "the job failed during its first steps, which are not recorded"
    elif any(map(rundir.is_run, attempted)):
        why = (
            "training with DistributedDataParallel ended within the first steps, which are not recorded (--skip-first)"
        )
    elif not is_one_node:
        return (
            f"ddpprof: {attempted[0]} is empty. If all nodes share a file system, the ranks record into the --out "
            "directory of rank 0's node. Look there, and pass the same --out on every node."
        )
    else:
        why = (
            f"{name} either ended before its first training step, trained no DistributedDataParallel module, or could "
            "not be recorded (a message above then says why). `ddpprof report` can also read torch.profiler traces "
            "from any training script"
        )
    return f"ddpprof: nothing was recorded: {why}."


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
        lambda inside, end: _after_watch(job, inside, end),
    ).exit_code


def _after_watch(job: JobCommand, inside: bool, end: JobEnd) -> None:
    """Print why the job failed, if it did, and the command that shows the run.

    `inside`: whether this process is itself a rank.
    """
    from ddpprof import rundir
    from ddpprof.monitor.hang_detector import hung_at_last
    from ddpprof.topics.hang_words import verdict_lines

    out = job.out
    if not _has_run_to_tell_of(job, out, inside, end):
        return
    verdict = _judge_failure(rundir.last_attempt(out), end)
    for line in () if verdict is None else verdict_lines(verdict):
        say(f"ddpprof: {line}", file=sys.stderr)
    hung = hung_at_last(rundir.last_attempt(out)) is not None
    why = f". To find out why it hung, run: ddpprof diagnose {out}" if hung else ""
    say(f"\nddpprof: the run is in {out}. View it with: ddpprof report {out}{why}", file=sys.stderr, flush=True)


def _judge_failure(directory: Path, end: JobEnd) -> Verdict | None:
    """Return the verdict on a job that has just failed, and write it for the report.

    Returns ``None`` if the job did not fail, or if the launcher has already reported a verdict.
    """
    from ddpprof.monitor.hang_detector import examine, hung_at_last
    from ddpprof.monitor.pulse_files import read_verdict, write_verdict

    told = read_verdict(directory)
    is_told = told is not None and told.is_of_failed_job
    if end.was_stopped or end.exit_code == 0 or is_told or hung_at_last(directory) is not None:
        return None
    verdict = examine(directory).verdict
    if verdict is not None and verdict.has_failed:
        with suppress(OSError):
            write_verdict(directory, verdict)
    return verdict


_TRAININGS = (("convnet",), ("transformer", "--read-ms", "3"))


def add_demo_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=local, default=Path("runs"), metavar="DIR", help="folder for the runs (default: runs)"
    )
    parser.set_defaults(run=run_demo)


def run_demo(options: argparse.Namespace) -> int:
    from ddpprof.cli import main

    for name, *words in _TRAININGS:
        run = ["--force", "--out", str(options.out / f"demo-{name}")]
        command = ["trace", *run, "-m", f"ddpprof.demo.train_{name}", *words]
        print(f"$ ddpprof {' '.join(command)}", flush=True)
        code = main(command)
        if code:
            return code
    return 0
