"""Reading a run, which of it and by whom, and showing on a terminal how far that is."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from ddpprof.cli.arguments import numbers, positive
from ddpprof.errors import DdpprofError
from ddpprof.files import Location

if TYPE_CHECKING:
    from ddpprof.comparison.run_set import RunSet
    from ddpprof.load.limits import Limits
    from ddpprof.pipeline.analysis import Analysis
    from ddpprof.pipeline.progress import Step
    from ddpprof.predict.network import Network
    from ddpprof.report import Report

_SILENT_S = 0.5
"""What is read faster needs no bar."""
_SILENT_BYTES = 8_000_000
_DRAW_EVERY_S = 0.1


def add_choosing_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--ranks", type=numbers, metavar="N-M", help="read only these ranks, as in 0-7,64")
    add(
        "--sample",
        type=positive,
        metavar="N",
        help="read at most N ranks: those that are late by the light record, and others evenly chosen",
    )


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--jobs", type=positive, metavar="N", help="processes that read (default: as cores and memory allow)")
    add("--no-cache", action="store_true", help="read everything anew, and keep no summaries of it")
    add(
        "--scheduler",
        metavar="tcp://HOST:PORT",
        help="let a Dask cluster read, whose workers see the files; also a scheduler file (.json)",
    )
    add("--max-trace-gb", type=positive, metavar="GB", help="refuse traces whose JSON is larger (default: 64)")
    add("--max-events", type=positive, metavar="N", help="refuse traces of more events (default: 500 million)")
    add("--max-files", type=positive, metavar="N", help="refuse folders of more files (default: 20,000)")


@contextmanager
def analysed_run(path: Location, options: argparse.Namespace) -> Iterator[Analysis]:
    """As `add_reading_options` chose. Raises `DdpprofError`."""
    from ddpprof.load.free_memory import give_back_large_arrays
    from ddpprof.pipeline.analysis import Choice, analysed

    give_back_large_arrays()
    _refuse_experiment(path)
    choice = Choice(
        ranks=getattr(options, "ranks", None),
        steps=getattr(options, "measured_steps", None),
        sample=getattr(options, "sample", None),
        use_cache=not options.no_cache,
        jobs=options.jobs,
        scheduler=options.scheduler,
        limits=chosen_limits(options),
        further_parts=tuple(getattr(options, "further_parts", ())),
    )
    with _sigterm_as_exit(), _progress() as watch, analysed(path, choice, watch) as analysis:
        yield analysis


@contextmanager
def read_report_or_run(path: Location, options: argparse.Namespace) -> Iterator[tuple[Report, Analysis | None]]:
    """Yield the report, and the analysis of a run or of traces; a JSON report has none. Raises `DdpprofError`."""
    from ddpprof.render.json import read_report

    with ExitStack() as stack:
        try:
            written = read_report(path) if path.is_file() else None
            analysis = stack.enter_context(analysed_run(path, options)) if written is None else None
        except OSError as error:
            raise DdpprofError(f"cannot read {path}: {error.strerror}.") from error
        if written is not None:
            yield written, None
        elif analysis is not None:
            yield analysis.report, analysis


def read_run_set(paths: Sequence[Location], options: argparse.Namespace, folder: Location | None = None) -> RunSet:
    """Read runs of one job, each as a run, traces or a written report. Raises `DdpprofError`."""
    from ddpprof.comparison.run_set import RunSet

    reports = []
    for path in paths:
        with read_report_or_run(path, options) as (report, _):
            reports.append(report)
    return RunSet(tuple(reports), None if folder is None else str(folder))


def chosen_limits(options: argparse.Namespace) -> Limits:
    from ddpprof.load.limits import Limits

    return Limits.chosen(options.max_trace_gb, options.max_events, options.max_files)


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """So that whoever reads is ended, too; not where it is ignored, as SIGHUP is under nohup."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    ends = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    before = {number: signal.signal(number, end) for number in ends}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def measured_network(path: Location | None) -> Network | None:
    """What `ddpprof netbench` wrote, as predictions need it. Raises `DdpprofError`."""
    from ddpprof.load.netbench import load_netbench
    from ddpprof.predict.network import network_of_bench

    if path is None:
        return None
    bench = load_netbench(path)
    if bench.collective != "all_reduce":
        raise DdpprofError(f"{path} tells of {bench.collective}, and DDP needs all_reduce.")
    network = network_of_bench(bench)
    if network is None:
        raise DdpprofError(f"{path} has too few sizes: measure at least three.")
    return network


def _refuse_experiment(path: Location) -> None:
    """Raises `DdpprofError`."""
    from ddpprof.experiments.plan import is_experiment

    if is_experiment(path):
        raise DdpprofError(f"{path} is an experiment. Its trials are runs: {path / 'trial-0-0'}, for one.")


@contextmanager
def _progress() -> Iterator[Callable[[Step], None]]:
    """A bar on stderr; nothing where that is no terminal, or one that cannot redraw a line."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        yield lambda _step: None
        return
    from rich.console import Console
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

    columns = (
        TextColumn("reading {task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[ranks]}"),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    console = Console(stderr=True, no_color=bool(os.environ.get("NO_COLOR")))
    bar = Progress(*columns, console=console, transient=True, auto_refresh=False)  # which would take a thread
    began, due = time.monotonic(), 0.0
    tasks: list[TaskID] = []

    def watch(step: Step) -> None:
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
