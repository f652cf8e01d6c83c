"""`ddpprof report` and `ddpprof compare`: read, measure, print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ddpprof.cli.arguments import numbers
from ddpprof.cli.output import add_output_options, chosen_form, show, write
from ddpprof.cli.reading import add_choosing_options, add_reading_options, analysed_run
from ddpprof.errors import DdpprofError
from ddpprof.location import Location, location

if TYPE_CHECKING:
    from ddpprof.fleet.analysis import Analysis
    from ddpprof.render.sections.layout import Section
    from ddpprof.report import Report
    from ddpprof.report.experiments import ExperimentReport


def add_report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        type=location,
        help="a run, traces of torch.profiler, a Horovod timeline, an experiment, or a CSV table of times",
    )
    add_output_options(parser)
    add_choosing_options(parser)
    parser.add_argument(
        "--steps",
        type=numbers,
        dest="measured_steps",
        metavar="N-M",
        help="measure only steps with these numbers, as in 15-17,19",
    )
    add_reading_options(parser)
    parser.set_defaults(run=run_report)


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    what = "what to compare with: a run, traces, or a JSON report"
    parser.add_argument("a", type=location, metavar="RUN_A", help=what)
    parser.add_argument("b", type=location, metavar="RUN_B", help="likewise")
    parser.add_argument(
        "--fail-on",
        metavar="LIMITS",
        help="exit with 1 where a measure of RUN_B is larger by more than its limit, and by more than noise; "
        "say 'step>5%%,exposed>2ms'. Measures: step, compute, comm, overlap, exposed, trailing, forward, backward, "
        "optimizer, data, other, idle, wrapper; units: %%, s, ms, us",
    )
    add_output_options(parser)
    add_reading_options(parser)
    parser.set_defaults(run=run_compare)


def run_report(options: argparse.Namespace) -> int:
    from ddpprof.experiment.plan import is_experiment
    from ddpprof.render.json import render_json

    if is_experiment(options.path) or options.path.suffix == ".csv":
        _refuse_choice(options, "an experiment, whose trials are runs")
        return _report_on_experiment(options)
    with _read(options.path, options) as (report, analysis):
        if analysis is None:
            _refuse_choice(options, "a report that was written before")
        if chosen_form(options) == "json":
            write(options, render_json(report))
        elif chosen_form(options) == "html":
            write(options, _page(report, analysis))
        else:
            show(options, report.job.name, shown_sections(report, analysis))
    return 0


def _refuse_choice(options: argparse.Namespace, what: str) -> None:
    """Raises `DdpprofError`."""
    given = {"--ranks": options.ranks, "--sample": options.sample, "--steps": options.measured_steps}
    for name, value in given.items():
        if value is not None:
            raise DdpprofError(f"{name} chooses from a run or from traces, and {options.path} is {what}.")


def shown_sections(report: Report, analysis: Analysis | None) -> tuple[Section, ...]:
    """What a terminal shows: with one step as it went on, where more than a report is known."""
    from ddpprof.render.sections import sections
    from ddpprof.render.sections.chosen import typical_step, worth_seeing
    from ddpprof.render.sections.lanes import MAX_RANKS

    number = typical_step(report)
    if analysis is None or number is None:
        return sections(report)
    return sections(report, analysis.timeline([number], worth_seeing(report, MAX_RANKS)))


def _page(report: Report, analysis: Analysis | None) -> str:
    from ddpprof.render.html.report_page import report_page
    from ddpprof.render.sections.chosen import worth_seeing

    return report_page(report, analysis.timeline(ranks=worth_seeing(report)) if analysis is not None else None)


def _report_on_experiment(options: argparse.Namespace) -> int:
    from ddpprof.render.json import render_json
    from ddpprof.render.plot import can_plot, plot
    from ddpprof.render.sections.experiments import experiment_sections
    from ddpprof.render.sections.layout import Picture

    report = read_experiment(options.path)
    if chosen_form(options) == "json":
        write(options, render_json(report))
        return 0
    if chosen_form(options) == "html":
        from ddpprof.render.html.result_pages import experiment_page

        write(options, experiment_page(options.path.name, report))
        return 0
    shown = list(experiment_sections(report))
    if options.out is not None and can_plot(report):
        picture = options.out.with_suffix(".plot.png")  # report.png may be the user's own
        plot(report, picture)
        shown.append(Picture(picture.name, "step times"))
    show(options, options.path.name, shown)
    return 0


def read_experiment(path: Location) -> ExperimentReport:
    """An experiment's directory, or a table of times that were measured elsewhere. Raises `DdpprofError`."""
    from ddpprof.cli.tuned import read_tuning
    from ddpprof.experiment.plan import Kind, is_experiment, read_end, read_plan
    from ddpprof.load.run import load_run
    from ddpprof.load.times_table import load_times
    from ddpprof.report.experiments import build_experiment, sweep_of_table
    from ddpprof.report.trials import TrialResult, trial_result

    if not is_experiment(path):
        return sweep_of_table(load_times(path))
    experiment, results = read_plan(path), []
    if experiment.kind is Kind.TUNE:
        return read_tuning(path).report()
    for trial in experiment.trials():
        ended = read_end(path / trial.name)
        if ended is not None and ended.problem is not None:
            results.append(TrialResult(trial, problem=ended.problem))
        elif ended is not None:
            results.append(trial_result(trial, load_run(path / trial.name)))
    report = build_experiment(experiment, results)
    if report is None:
        problem = next((result.problem for result in results if result.problem), "no variant has been run to its end")
        raise DdpprofError(f"{path} has nothing to compare yet: {problem}")
    return report


def run_compare(options: argparse.Namespace) -> int:
    from ddpprof.comparison.compare import compare
    from ddpprof.comparison.gate import judge, parse_conditions
    from ddpprof.render.json import ComparisonFile, render_json
    from ddpprof.render.sections.comparison import comparison_sections

    conditions = parse_conditions(options.fail_on) if options.fail_on is not None else ()
    with _read(options.a, options) as (a, _), _read(options.b, options) as (b, _):
        comparison = compare(a, b)
    verdicts = judge(comparison, conditions)
    if chosen_form(options) == "json":
        write(options, render_json(ComparisonFile(comparison, verdicts)))
    elif chosen_form(options) == "html":
        from ddpprof.render.html.result_pages import comparison_page

        write(options, comparison_page(comparison, verdicts))
    else:
        show(options, f"{comparison.a} and {comparison.b}", comparison_sections(comparison, verdicts))
    failed = [verdict for verdict in verdicts if verdict.failed]
    if options.out is not None or chosen_form(options) == "json":  # else they have just been shown
        for verdict in failed:
            print(f"ddpprof: {verdict.condition.text}: {verdict.because}", file=sys.stderr)
    return 1 if failed else 0


@contextmanager
def _read(path: Location, options: argparse.Namespace) -> Iterator[tuple[Report, Analysis | None]]:
    """Of a run, or traces; of a report that was written as JSON there is no more. Raises `DdpprofError`."""
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
