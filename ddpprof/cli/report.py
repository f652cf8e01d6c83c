"""`ddpprof report`: analyze a run and print the report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddpprof.cli.arguments import add_link_speed, numbers
from ddpprof.cli.output import add_output_options, check_output, chosen_form, deliver, show, write
from ddpprof.cli.reading import (
    add_choosing_options,
    add_reading_options,
    read_report_or_run,
    read_run_set,
    refuse_missing,
)
from ddpprof.cli.saying import say
from ddpprof.errors import DdpprofError
from ddpprof.files import Location, location

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddpprof.layout import Section
    from ddpprof.pipeline.analysis import Analysis
    from ddpprof.report import Report
    from ddpprof.topics.steps.timeline import Timeline


TOPICS = ("job", "step", "buckets", "collectives", "ranks", "slowdown", "whole-run", "cost", "findings")
"""names of the sections of a report; the sections are defined in `render.sections`, which is imported only when
needed
"""
_OF_SECTIONS = ("terminal", "markdown")
"""formats that can show a single section"""
_WHOLE = {"json": "JSON always contains", "html": "an HTML page always contains", "tables": "tables always contain"}
"""formats that always contain the whole report; the values are clauses for an error message"""


def add_report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        type=location,
        help="a run, a folder with the runs of one job, torch.profiler traces, a Horovod timeline, an experiment, "
        "or a CSV table of times",
    )
    parser.add_argument(
        "further_parts",
        nargs="*",
        default=[],
        type=location,
        metavar="part",
        help="further parts of the run, if its hosts do not share a file system",
    )
    add_output_options(parser, has_tables=True)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--full", action="store_true", help="print every table instead of the first screen")
    shown.add_argument(
        "--brief", action="store_true", help="print one JSON object of at most 4 kB: the verdict and what to change"
    )
    shown.add_argument("--section", choices=TOPICS, metavar="NAME", help=f"print one part: {', '.join(TOPICS)}")
    add_choosing_options(parser)
    parser.add_argument(
        "--only-steps", type=numbers, metavar="N-M", help="report only on steps with these numbers, such as 15-17,19"
    )
    add_link_speed(parser)
    add_reading_options(parser)
    parser.set_defaults(run=run_report)


def run_report(options: argparse.Namespace) -> int:
    check_output(options)
    from ddpprof.experiments.plan import is_experiment
    from ddpprof.rundir import repeated_runs_in

    if options.further_parts:
        _refuse_files([options.path, *options.further_parts])
        return _report_on_run(options)
    if is_experiment(options.path) or options.path.suffix == ".csv":
        what = "an experiment (its trials are runs)" if is_experiment(options.path) else "a table of times"
        _refuse_choice(options, what)
        _refuse_parts(options, what)
        return _report_on_experiment(options)
    repeated = repeated_runs_in(options.path)
    if repeated:
        _refuse_parts(options, "a folder of several runs")
        return _report_on_runs(options, list(repeated.values()))
    return _report_on_run(options)


def _report_on_run(options: argparse.Namespace) -> int:
    refuse_missing(options.path)
    from ddpprof.render.json import render_json

    if options.brief and chosen_form(options) not in ("terminal", "json"):
        raise DdpprofError("--brief prints JSON. Remove --format, or use --out NAME.json.")
    if options.section is not None and chosen_form(options) in _WHOLE:
        raise DdpprofError(
            f"--section prints a part of the report, but {_WHOLE[chosen_form(options)]} the whole report."
        )
    if chosen_form(options) == "tables":
        return _report_as_tables(options)
    with read_report_or_run(options.path, options) as (report, analysis):
        if analysis is None:
            _refuse_choice(options, "an existing report")
        if options.brief:
            from ddpprof.render.brief import brief_report  # imports comparisons

            paths = [str(options.path), *map(str, options.further_parts)]
            write(options, render_json(brief_report(report, paths)))
        elif chosen_form(options) == "json":
            write(options, render_json(report))
        elif chosen_form(options) == "html":
            write(options, _page(report, analysis))
        else:
            show(options, report.job.name, _chosen_sections(options, report, analysis))
    return 0


def _report_as_tables(options: argparse.Namespace) -> int:
    from ddpprof.cli.output import write_tables
    from ddpprof.report.topics import require_arrow

    require_arrow()
    with read_report_or_run(options.path, options) as (report, analysis):
        if analysis is None:
            _refuse_choice(options, "an existing report")
        write_tables(report, options.out)
    return 0


def _refuse_parts(options: argparse.Namespace, what: str) -> None:
    """Raise `DdpprofError` if an option requires a single run. `what`: describes the path in the message."""
    if options.brief:
        raise DdpprofError(f"--brief summarizes the report on one run, but {options.path} is {what}.")
    if options.section is not None:
        raise DdpprofError(f"--section prints a part of the report on one run, but {options.path} is {what}.")
    if chosen_form(options) == "tables":
        raise DdpprofError(f"tables can be written for one run only, but {options.path} is {what}.")


def _refuse_files(paths: Sequence[Location]) -> None:
    """Raise `DdpprofError` if one of the paths is a file."""
    for path in paths:
        if path.is_file():
            raise DdpprofError(
                f"{path} is a file. If you give several paths, each must be a folder with a part of the run. To "
                f"read several traces, give their folder."
            )


def _refuse_choice(options: argparse.Namespace, what: str) -> None:
    """Raise `DdpprofError` if an option selects ranks or steps. `what`: describes the path in the message."""
    given = {"--only-ranks": options.only_ranks, "--sample": options.sample, "--only-steps": options.only_steps}
    for name, value in given.items():
        if value is not None:
            raise DdpprofError(f"{name} needs a run or traces, but {options.path} is {what}.")


def _report_on_runs(options: argparse.Namespace, runs: Sequence[Location]) -> int:
    from ddpprof.comparison.repeated import report_on_runs
    from ddpprof.render.sections.comparison import repeated_sections

    found = report_on_runs(read_run_set(runs, options, folder=options.path), [run.name for run in runs])
    deliver(options, found.name, found, repeated_sections(found))
    if options.out is None and chosen_form(options) in _OF_SECTIONS:
        say(f"\nView one run with: ddpprof report {runs[0]}")
    return 0


def _chosen_sections(options: argparse.Namespace, report: Report, analysis: Analysis | None) -> Iterable[Section]:
    """Return the selected section or, by default, the first screen for a terminal and all sections for a file."""
    from ddpprof.render.sections import sections
    from ddpprof.topics.steps.timeline import MAX_RANKS, typical_lanes

    if not options.full and options.section is None and options.out is None and chosen_form(options) == "terminal":
        return screen(report, [str(options.path), *map(str, options.further_parts)], analysis)
    drawn = typical_lanes(_typical_step(report, analysis, MAX_RANKS), report)
    chosen = sections(report, drawn, options.section)
    return chosen or [_nothing_of(options.section)]


def screen(report: Report, paths: Sequence[str], analysis: Analysis | None) -> tuple[Section, ...]:
    """Return the first screen of a report. If an analysis is given, the screen includes a drawing of a typical step.

    `paths`: the parts of the run.
    """
    from ddpprof.render.sections.overview import MAX_RANKS, first_screen

    timeline = _typical_step(report, analysis, MAX_RANKS)
    return first_screen(report, paths, timeline, can_replay=analysis is not None)


def _typical_step(report: Report, analysis: Analysis | None, most_ranks: int) -> Timeline | None:
    from ddpprof.topics.steps.view import typical_step, worth_seeing

    number = typical_step(report)
    if analysis is None or number is None:
        return None
    return analysis.timeline([number], worth_seeing(report, most_ranks))


def _nothing_of(section: str) -> Section:
    from ddpprof.layout import Line

    return Line(f"This report has no data for the section {section!r}.")


def _page(report: Report, analysis: Analysis | None) -> str:
    from ddpprof.render.html.report_page import report_page
    from ddpprof.topics.steps.view import worth_seeing

    return report_page(report, analysis.timeline(ranks=worth_seeing(report)) if analysis is not None else None)


def _report_on_experiment(options: argparse.Namespace) -> int:
    from ddpprof.experiments.results import read_experiment
    from ddpprof.render.sections.experiments import experiment_sections

    report = read_experiment(options.path)
    deliver(options, options.path.name, report, experiment_sections(report))
    return 0
