"""What `ddpprof trace` prints and writes after the job has ended."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ddpprof.cli.saying import say

if TYPE_CHECKING:
    from ddpprof.cli.job import JobCommand
    from ddpprof.files import Location
    from ddpprof.pipeline.analysis import Analysis
    from ddpprof.record.launch import JobEnd


def after_trace(job: JobCommand, out: Path, inside: bool, end: JobEnd) -> None:
    """Print the report, or why there is none. `inside`: whether this process is a rank."""
    from ddpprof import rundir

    if has_run_to_tell_of(job, out, inside, end, rundir.ranks_in):
        _print_run(out, summary_only=end.signal is not None)


def has_run_to_tell_of(
    job: JobCommand, out: Path, inside: bool, end: JobEnd, ranks_in: Callable[[Location], list[int]]
) -> bool:
    """Return True if this process should report on the run. Otherwise, print where the run is, or why there is none.

    `ranks_in`: returns the ranks in a run directory that have data recorded by the command.
    """
    from ddpprof import rundir
    from ddpprof.record.launch import is_first_rank

    if inside:
        if is_first_rank():
            say(f"ddpprof: view the run with: ddpprof report {out}", file=sys.stderr)
        return False
    attempts = rundir.attempts_in(out) if rundir.is_run(out) else {}
    if not any(ranks_in(path) for path in attempts.values()):
        failed = end.exit_code != 0 and not end.was_stopped
        known = end.was_reached or failed
        why = nothing_recorded([out], job.name, failed, job.is_one_node) if known else _NOT_REACHED
        _say_how_it_failed(out)
        say(why, file=sys.stderr)
        return False
    return True


def _say_how_it_failed(out: Path) -> None:
    """Print which rank failed before the run was created, if any."""
    from ddpprof.monitor.examination import examine
    from ddpprof.topics.hang_words import verdict_lines

    verdict = examine(out).verdict if out.is_dir() else None
    for line in () if verdict is None else verdict_lines(verdict):
        say(f"ddpprof: {line}", file=sys.stderr)


def report_stream() -> TextIO:
    """Return the stream for the report after the job.

    It is stderr if stdout goes to a file or program, which then receives only the job's output.
    """
    return sys.stdout if sys.stdout.isatty() else sys.stderr


def _print_run(out: Path, summary_only: bool) -> None:
    from ddpprof.cli.report import screen
    from ddpprof.layout import count
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
    say(f"\nWrote {out} ({count(len(report.ranks), 'rank')}, {count(steps, 'step')}).", file=file, flush=True)


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
    """Return why nothing was recorded. The first forward pass of a DDP module creates a run."""
    from ddpprof import rundir

    if failed and not any(map(rundir.is_run, attempted)):
        why = "the job failed before it trained a DistributedDataParallel module"
    elif failed:
        why = "the job failed during its first steps, which are not recorded (--skip-first)"
    elif any(map(rundir.is_run, attempted)):
        why = (
            "no DistributedDataParallel module trained for longer than the first steps, which are not recorded "
            "(--skip-first)"
        )
    elif not is_one_node:
        return (
            f"ddpprof: {attempted[0]} is empty. If all nodes share a file system, the ranks record into the --out "
            "directory of rank 0's node. Look there, and pass the same --out on every node."
        )
    else:
        why = (
            f"{name} either trained no DistributedDataParallel module, or could not be recorded (see the messages "
            "above). `ddpprof report` can also read torch.profiler traces from any training script"
        )
    return f"ddpprof: nothing was recorded: {why}."
