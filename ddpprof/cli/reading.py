"""Options for reading runs, and functions that read runs and show a progress bar."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from ddpprof.cli.arguments import numbers, positive
from ddpprof.cli.saying import CHOICES
from ddpprof.errors import DdpprofError, NotARun
from ddpprof.files import Location
from ddpprof.signals import handled_signals

if TYPE_CHECKING:
    from ddpprof.comparison import RunSet
    from ddpprof.engine.finding import Finding
    from ddpprof.pipeline.analysis import Analysis
    from ddpprof.pipeline.entry import ReadProgress
    from ddpprof.predict.network import Network
    from ddpprof.ranks_and_steps import Numbers
    from ddpprof.report import Report

_SILENT_S = 0.5
"""a progress bar is shown if reading takes longer than this many seconds"""
_SILENT_BYTES = 8_000_000
_DRAW_EVERY_S = 0.1


def last_attempt_of(run: Path) -> Path:
    """Return the directory of the last attempt of a job, which may still be running.

    Raises `DdpprofError` if there is no run.
    """
    from ddpprof import rundir
    from ddpprof.monitor.overview import refuse_starting

    refuse_starting(run)
    if not run.exists():
        raise DdpprofError(f"{run} does not exist. Give the --out directory of ddpprof watch or trace.")
    if not rundir.is_run(run):
        raise DdpprofError(
            f"{run} is not a run: it has no {rundir.RUN_FILE}. Give the --out directory of ddpprof watch or trace."
        )
    return rundir.last_attempt(run)


def add_choosing_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--only-ranks", type=numbers, metavar="N-M", help="read only these ranks, such as 0-7,64")
    add(
        "--sample",
        type=positive,
        metavar="N",
        help="read at most N ranks: ranks that are late according to light recording, and an evenly spaced selection "
        "of the other ranks",
    )


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--jobs",
        type=positive,
        metavar="N",
        help="number of reader processes (default: as many as cores and memory allow)",
    )
    add("--no-cache", action="store_true", help="do not use cached summaries of traces")
    add(
        "--scheduler",
        metavar="tcp://HOST:PORT",
        help="read on the Dask cluster with this scheduler address or scheduler file (.json); its workers must be able "
        "to read the files",
    )
    add(
        "--max-trace-gb",
        type=positive,
        metavar="GB",
        help="refuse traces with more than this many GB of JSON (default: 64)",
    )
    add(
        "--max-events",
        type=positive,
        metavar="N",
        help="refuse traces with more events than this (default: 500 million)",
    )
    add("--max-files", type=positive, metavar="N", help="refuse folders with more files than this (default: 20,000)")


@contextmanager
def analysed_run(path: Location, options: argparse.Namespace) -> Iterator[Analysis]:
    """Analyze the run with the options of `add_reading_options`. Raises `DdpprofError`."""
    if _written_report(path) is not None:
        raise DdpprofError(f"{path} is a report, and a report does not contain the steps. Give the run instead.")
    with _analysed_run(path, options, None) as analysis:
        yield analysis


@contextmanager
def _analysed_run(path: Location, options: argparse.Namespace, only_steps: Numbers | None) -> Iterator[Analysis]:
    from ddpprof.load.file_bytes import Limits, give_back_large_arrays
    from ddpprof.pipeline.analysis import AnalysisOptions, analysed

    give_back_large_arrays()
    _refuse_experiment(path)
    choice = AnalysisOptions(
        ranks=getattr(options, "only_ranks", None),
        steps=only_steps,
        sample=getattr(options, "sample", None),
        use_cache=not options.no_cache,
        jobs=options.jobs,
        scheduler=options.scheduler,
        limits=Limits.chosen(options.max_trace_gb, options.max_events, options.max_files),
        further_parts=tuple(getattr(options, "further_parts", ())),
        link_bits_per_s=getattr(options, "link_speed", None),
    )
    with sigterm_as_exit(), _progress() as watch, analysed(path, choice, watch) as analysis:
        yield analysis


@contextmanager
def read_report_or_run(path: Location, options: argparse.Namespace) -> Iterator[tuple[Report, Analysis | None]]:
    """Yield the report and, unless the report was read from JSON, the analysis of the run. Raises `DdpprofError`."""
    written = _written_report(path)
    if written is not None:
        yield written, None
        return
    with ExitStack() as stack:
        try:
            analysis = stack.enter_context(_analysed_run(path, options, getattr(options, "only_steps", None)))
        except OSError as error:
            raise DdpprofError(f"cannot read {path}: {error.strerror}.") from error
        yield analysis.report, analysis


def finding_of(report: Report, path: Location, number: int) -> Finding:
    """Return the finding with this number, counted from 1. Raises `DdpprofError` if there is none."""
    if not 1 <= number <= len(report.findings):
        raise DdpprofError(f"{path} has {len(report.findings)} findings, but no finding {number}.")
    return report.findings[number - 1]


def refuse_missing(path: Location) -> None:
    """Raise `NotARun` if a local path does not exist. Call this before heavy imports."""
    if isinstance(path, Path) and not os.path.lexists(path) and path.name != "attempt-0":
        from ddpprof.monitor.overview import refuse_starting

        refuse_starting(path)
        raise NotARun(f"{path} does not exist. Record a run with: ddpprof trace --out {path} train.py")


def _written_report(path: Location) -> Report | None:
    """Return the report in a JSON file; ``None`` if the path is not a JSON report. Raises `DdpprofError`."""
    refuse_missing(path)
    from ddpprof.render.json import read_report

    try:
        return read_report(path) if path.is_file() else None
    except OSError as error:
        raise DdpprofError(f"cannot read {path}: {error.strerror}.") from error


def read_run_set(paths: Sequence[Location], options: argparse.Namespace, folder: Location | None = None) -> RunSet:
    """Read the runs of one job; each is a run, traces or a JSON report. Raises `DdpprofError`."""
    from ddpprof.comparison import RunSet

    reports = []
    for path in paths:
        with read_report_or_run(path, options) as (report, _):
            reports.append(report)
    return RunSet(tuple(reports), None if folder is None else str(folder))


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Raise `SystemExit` on SIGTERM and SIGHUP, unless they are ignored (nohup), so that ``finally`` blocks run."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    ends = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    with handled_signals(ends, end):
        yield


def measured_network(path: Location | None) -> Network | None:
    """Read the output of `ddpprof netbench` as a network for predictions. Raises `DdpprofError`."""
    from ddpprof.load.record import load_netbench
    from ddpprof.predict.network import network_of_bench

    if path is None:
        return None
    bench = load_netbench(path)
    if bench.collective != "all_reduce":
        raise DdpprofError(f"{path} contains measurements of {bench.collective}, but DDP uses all_reduce.")
    network = network_of_bench(bench)
    if network is None:
        raise DdpprofError(
            f"{path} does not show how times depend on the message size. Measure at least three sizes that are far "
            "apart."
        )
    return network


def _refuse_experiment(path: Location) -> None:
    """Raise `DdpprofError` if the path is an experiment."""
    from ddpprof.experiments.plan import is_experiment

    if is_experiment(path):
        raise DdpprofError(f"{path} is an experiment. Give one of its trials, such as {path / 'trial-0-0'}.")


@contextmanager
def _progress() -> Iterator[Callable[[ReadProgress], None]]:
    """Show a progress bar on stderr if it is a terminal that can redraw a line."""
    if CHOICES.is_quiet or not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        yield lambda _step: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from ddpprof.layout import clean
    from ddpprof.render.terminal import console_on

    columns = (
        TextColumn("reading {task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[ranks]}"),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    console = console_on(sys.stderr)
    bar = Progress(*columns, console=console, transient=True, auto_refresh=False)  # auto-refresh would start a thread
    began, due = time.monotonic(), 0.0
    tasks: list[TaskID] = []

    def watch(step: ReadProgress) -> None:
        nonlocal due
        if step.num_done == step.num_ranks:
            bar.stop()
            return
        now = time.monotonic()
        if not tasks:
            if now - began < _SILENT_S and step.all_bytes < _SILENT_BYTES:
                return
            tasks.append(bar.add_task("", ranks="", total=None))
            bar.start()
        bar.update(
            tasks[0],
            description=clean(step.path.name, most=40),
            ranks=f"{step.num_done}/{step.num_ranks}",
            completed=step.done_bytes,
            total=step.all_bytes or None,
        )
        if now >= due:
            bar.refresh()
            due = now + _DRAW_EVERY_S

    try:
        yield watch
    finally:
        bar.stop()
