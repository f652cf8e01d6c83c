"""The first screen of a report: what ran, the verdict, one typical step, what to change, and where to read on."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ddpprof.engine.finding import Finding
from ddpprof.layout import Bars, Commands, Line, Remark, Remarks, Section, clean
from ddpprof.render.sections.attempts import attempt_table
from ddpprof.render.sections.bound import bound_remarks
from ddpprof.render.sections.cost import recording_cost_line, unusual_steps_line
from ddpprof.render.sections.failure import failure_lines
from ddpprof.render.sections.findings import (
    NOT_BEYOND_NOISE,
    beyond_noise,
    change_sentence,
    finding_texts,
    short_gain,
    without_step_options,
)
from ddpprof.render.sections.job import job_lines, missing_lines
from ddpprof.render.sections.lanes import step_lanes
from ddpprof.render.sections.steps import step_bars, typical_step
from ddpprof.render.sections.verdict import verdict_of_steps
from ddpprof.render.sections.whole_run import hang_line, whole_run_line
from ddpprof.report import Report
from ddpprof.report.timeline import Timeline
from ddpprof.report.topics import sections_of_topics

MAX_RANKS = 4
"""number of ranks in the drawing of a step"""
_MOST_FINDINGS = 3
_MOST_REMARKS = 6
_MOST_LINES = 3
"""number of modules, and of notes"""
_LONGEST_COMMAND = 60
_LONGEST_LINE = 400


def first_screen(
    report: Report, paths: Sequence[str], timeline: Timeline | None = None, *, can_replay: bool = True
) -> tuple[Section, ...]:
    """Return about 40 lines.

    `paths`: the parts of the run, as a user gives them; `timeline`: with the typical step; `can_replay`: whether
    ``ddpprof whatif`` reads what is there, which it does not if that is a report in JSON.
    """
    return tuple(
        section
        for part in (
            failure_lines(report),
            hang_line(report),
            _at_most(_MOST_LINES + 1, job_lines(report, _LONGEST_COMMAND), "modules", paths),
            sections_of_topics(report, "job"),
            _verdict(report),
            whole_run_line(report),
            attempt_table(report),
            _at_most(_MOST_LINES, (*unusual_steps_line(report), *missing_lines(report)), "notes", paths),
            _step(report, timeline),
            _findings(report),
            _remarks(report),
            recording_cost_line(report),
            _next(report, paths, can_replay),
        )
        for section in part
    )


def _at_most(most: int, lines: Iterable[Section], what: str, paths: Sequence[str]) -> Iterator[Section]:
    found = list(lines)
    yield from found[:most]
    if len(found) > most:
        yield Line(f"{len(found) - most} more {what}: {_report(paths)} --section job")


def _verdict(report: Report) -> Iterator[Section]:
    yield Line(f"{verdict_of_steps(report).text} {change_sentence(report)}".strip(), is_headline=True)


def _step(report: Report, timeline: Timeline | None) -> Iterable[Section]:
    """Draw the typical step; if none was profiled, what is known of the time of a step."""
    number = typical_step(report)
    lanes = () if timeline is None or number is None else tuple(step_lanes(timeline, number))
    return lanes or (*_bars(report), *sections_of_topics(report, "step"))


def _bars(report: Report) -> Iterator[Section]:
    for section in step_bars(report):
        if isinstance(section, Bars):
            yield replace(section, bars=section.bars[: 2 * MAX_RANKS])


def _findings(report: Report) -> Iterator[Section]:
    beyond = [text for text, finding in finding_texts(report) if not finding.is_noise][:_MOST_FINDINGS]
    yield from beyond_noise(report, [replace(text, evidence="") for text in beyond])


def _remarks(report: Report) -> Iterator[Section]:
    """List what else was found, in one line each."""
    beyond = [finding for finding in report.findings if not finding.is_noise][_MOST_FINDINGS:]
    noise = [finding for finding in report.findings if finding.is_noise]
    also = (*_in_short(beyond), *bound_remarks(report))
    if also:
        yield Remarks("Also found", also)
    if noise:
        yield Remarks(NOT_BEYOND_NOISE, tuple(_in_short(noise)))


def _in_short(findings: Sequence[Finding]) -> Iterator[Remark]:
    for finding in findings[:_MOST_REMARKS]:
        yield Remark(clean(finding.title), short_gain(finding))
    if len(findings) > _MOST_REMARKS:
        yield Remark(f"{len(findings) - _MOST_REMARKS} more: --section findings", "")


def _next(report: Report, paths: Sequence[str], can_replay: bool) -> Iterator[Section]:
    run = shlex.join(paths)
    commands = [
        ("every table", f"{_report(paths)} --full"),
        ("a page with charts", f"{_report(paths)} --out report.html"),
    ]
    is_replayed = any(finding.predicted for finding in report.findings) or (report.bound and report.bound.would_help)
    if is_replayed and can_replay and len(paths) == 1:
        commands.append(("other settings", f"ddpprof whatif {run}"))
    if report.failure is None and len(paths) == 1:
        if (words := _words_of_sweep(report)) is not None:
            sweep = f"ddpprof sweep --vary bucket_cap_mb=5,25 {words}"
            commands.append(("measure a setting", clean(sweep, most=_LONGEST_LINE)))
        for when, folder in (("before a change", "BEFORE"), ("after the change", "AFTER")):
            repeat = report.job.trace_command("--repeat 5", f"--out {folder}")
            commands.append((when, clean(repeat, most=_LONGEST_LINE)))
        commands.append(("compare the two", "ddpprof compare BEFORE AFTER"))
    commands.append(("what words mean", "ddpprof explain exposed"))
    yield Commands("Next", tuple(commands))


def _words_of_sweep(report: Report) -> str | None:
    """Return the words that run the job in a sweep; ``None`` if only options of ``ddpprof trace`` can start it."""
    words = without_step_options(report.job.recorded_with)
    takes_number = bool(words) and words[0].startswith("--nproc")
    starts = words[1 if "=" in words[0] else 2 :] if takes_number else words
    if len(report.job.hosts) != 1 or not report.job.modules or not starts or starts[0].startswith("-"):
        return None
    return shlex.join(words)


def _report(paths: Sequence[str]) -> str:
    return f"ddpprof report {shlex.join(paths)}"
