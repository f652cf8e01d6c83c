"""Render the HTML page of a report: job and verdict, findings, step, timeline, and the other topics."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import Any

from ddpprof.layout import PARTS, Bars, Line, Section, clean, in_ms
from ddpprof.render.html import Page, PagePart, definitions, render_page
from ddpprof.render.html.charts import (
    Block,
    bars_chart,
    blocks_html,
    bucket_chart,
    collective_chart,
    column_name,
    ranks_chart,
    slowdown_chart,
    whole_run_chart,
)
from ddpprof.render.html.timeline import timeline_json
from ddpprof.render.json import render_json
from ddpprof.render.sections import Topic, topics
from ddpprof.render.sections.overview import (
    change_nothing,
    finding_texts,
    first_changes,
    first_words,
    sentence_after,
    verdict,
)
from ddpprof.report import Report, StepReport
from ddpprof.topics.failure import failure_lines
from ddpprof.topics.steps.timeline import Timeline
from ddpprof.topics.steps.view import bar_parts_ns, of_device, typical_step, worth_seeing

_CHARTS: Mapping[str, Callable[[Report], Iterable[Block]]] = {
    "step": ranks_chart,
    "buckets": bucket_chart,
    "collectives": collective_chart,
    "slowdown": slowdown_chart,
    "whole-run": whole_run_chart,
}
"""topic → function that makes the charts at the beginning of the topic"""

_NO_TIMELINE = "There is no timeline, because this page was made from a JSON report. A timeline needs the run itself."


def report_page(report: Report, timeline: Timeline | None = None) -> str:
    """Return a complete HTML file. `timeline`: ``None`` if only the report is available. Raises `DdpprofError`."""
    said = {topic.name: topic for topic in topics(report)}
    numbers = steps_json(report)
    drawn = None if timeline is None else _timeline_json(report, timeline)
    data = {"report": render_json(report).encode(), "steps": numbers, "timeline": drawn}
    parts = []
    for topic in sorted(said.values(), key=lambda topic: topic.name != "findings"):
        if topic.name == "job":
            continue
        parts.append(_part(topic, report, has_choice=numbers is not None))
        if topic.name == "step" and numbers is not None:
            parts.append(PagePart("timeline", "Timeline", _timeline(report, timeline, drawn is not None)))
    job = said["job"].sections
    return render_page(
        Page(
            title=report.job.name,
            head=_head(report, job),
            parts=[*parts, definitions()],
            data={name: content for name, content in data.items() if content is not None},
        )
    )


_OF_TILES = (
    "step: the median of steps without the profiler, if there are any. All other numbers are means over ranks and "
    "profiled steps, as in the tables."
)


def _head(report: Report, job: Iterable[Section]) -> str:
    came = verdict(report)
    tiles = "".join(
        f'<li><span class="what">{escape(number.what)}</span><span class="value">{escape(number.value)}</span></li>'
        for number in came.numbers
    )
    note = f'<p class="note">{_OF_TILES}</p>' if len(came.numbers) > 1 else ""
    failed = tuple(failure_lines(report.failure, report)) if report.failure is not None else ()
    job = [section for section in job if section not in failed]
    lines = [section for section in job if isinstance(section, Line) and not section.is_warning]
    rest = [section for section in job if section not in lines]
    said = f"{escape(came.text)} {_leads(report)}".strip()
    return (
        f"{blocks_html(failed, 'failure')}{blocks_html(lines, 'job')}"
        f'<p class="verdict" id="verdict">{said}</p>'
        f'<ul class="tiles">{tiles}</ul>{note}{blocks_html(rest, "job-notes", level=2)}'
    )


def _leads(report: Report) -> str:
    """Return the first changes with links to their findings, or a sentence saying that nothing needs to be changed."""
    first = first_changes(report)
    if not first:
        return escape(change_nothing(report))
    num_others = sum(bool(one.advice) for one, _ in finding_texts(report)) - len(first)
    said = " ".join(
        f'{first_words(one)}: <a href="#finding-{text.number}">{escape(text.title)}</a>.'
        f"{escape(sentence_after(report, one))}"
        for text, one in first
    )
    return f'{said} (<a href="#findings">{num_others} more</a>)' if num_others else said


def _part(topic: Topic, report: Report, *, has_choice: bool) -> PagePart:
    makes = _CHARTS.get(topic.name)
    charts = blocks_html(makes(report) if makes is not None else (), f"{topic.name}-chart")
    if topic.name != "step" or not has_choice:
        return PagePart(topic.name, topic.title, charts + blocks_html(topic.sections, topic.name))
    controls = f'<div class="controls needs-script">{_choosers("chosen-ranks")}</div>'
    blocks: list[Block] = [bars_chart(one, kind="steps") if isinstance(one, Bars) else one for one in topic.sections]
    return PagePart(topic.name, topic.title, charts + controls + blocks_html(blocks, topic.name))


def _choosers(ranks: str) -> str:
    """Return controls that select a step and ranks. `ranks`: id of the input for ranks."""
    return (
        f'<div><label for="step-of-{ranks}">Step</label><select id="step-of-{ranks}" data-choose="step"></select></div>'
        f'<div><label for="{ranks}">Ranks</label><input id="{ranks}" data-choose="{ranks}" autocomplete="off" '
        f'spellcheck="false" aria-describedby="{ranks}-problem"></div>'
        f'<p class="problem" id="{ranks}-problem" role="alert"></p>'
    )


_ZOOMS = (
    ("in", "+", "Zoom in"),
    ("out", "\N{MINUS SIGN}", "Zoom out"),
    ("left", "\N{LEFTWARDS ARROW}", "Move left"),
    ("right", "\N{RIGHTWARDS ARROW}", "Move right"),
    ("all", "All", "Show the whole step"),
)


def _timeline(report: Report, timeline: Timeline | None, is_drawn: bool) -> str:
    if timeline is None or not is_drawn:
        return f'<p class="note">{_NO_TIMELINE if timeline is None else "No trace contains these steps."}</p>'
    zooms = "".join(
        f'<button type="button" data-zoom="{name}" aria-label="{label}" title="{label}">{sign}</button>'
        for name, sign, label in _ZOOMS
    )
    columns = "".join(f'<th scope="col" class="number">{column_name(name)}</th>' for name in ("rank", *COLUMNS))
    return (
        f'<div class="controls needs-script">{_choosers("drawn-ranks")}'
        f'<div class="group" role="group" aria-label="Zoom">{zooms}</div></div>'
        '<div class="plot needs-script" id="timeline-plot" tabindex="0" role="group" aria-label="Timeline. Plus and '
        'minus zoom, arrows move, 0 shows the whole step. The table below contains its numbers."></div>'
        f'<p class="note">{_how_to_read(report, timeline)}</p>'
        f'<h3 class="needs-script" id="timeline-numbers-title">The step in numbers, ms{of_device(report)}</h3>'
        '<div class="scroll needs-script" role="region" tabindex="0" aria-labelledby="timeline-numbers-title">'
        f'<table id="timeline-numbers"><thead><tr>{columns}</tr></thead><tbody></tbody></table></div>'
        '<noscript><p class="note">The timeline needs JavaScript.</p></noscript>'
    )


_KEYS = (
    "Drag to zoom, double-click to show the whole step. On the keyboard, use + \N{MINUS SIGN} \N{LEFTWARDS ARROW} "
    "\N{RIGHTWARDS ARROW} 0. To zoom with the mouse wheel, hold Ctrl. The address of the page contains the selected "
    "step and ranks, so you can share the view."
)
_LANES = (
    "Exposed: communication without concurrent computation. Trailing: gradients still in transit after the backward "
    "pass. The device is idle where the lane of the step is empty. Colors are paler where gaps are too narrow to be "
    "visible."
)


_ON_ACCELERATORS = (
    "The lanes show when the device is busy; times are on the host's clock. Buckets are held back until the host "
    "launches them, and queued until the device starts them."
)


def _how_to_read(report: Report, timeline: Timeline) -> str:
    words = [_KEYS, _LANES, *([_ON_ACCELERATORS] if report.times else [])]
    if len(timeline.ranks) > 1 and timeline.clock_error_ns is not None:
        words.append(f"All ranks are on one clock, accurate to ±{in_ms(timeline.clock_error_ns)}.")
    apart = [str(rank.rank) for rank in timeline.ranks if not rank.on_common_clock]
    if len(timeline.ranks) > 1 and apart:
        named = ", ".join(apart[:16])
        words.append(f"Times of these ranks are on the clocks of their hosts, and cannot be compared: {named}.")
    return escape(clean(" ".join(words), most=900))


def _timeline_json(report: Report, timeline: Timeline) -> bytes | None:
    step = typical_step(report)
    return None if step is None else timeline_json(timeline, step, {rank.rank: rank.host for rank in report.ranks})


_MAX_TIMELINES = 4
"""maximum number of ranks that the timeline shows when the page is opened"""

COLUMNS: Mapping[str, Callable[[StepReport], int | None]] = {
    "compute": lambda step: step.compute_ns,
    "comm": lambda step: step.comm_ns,
    "overlap": lambda step: step.overlap_ns,
    "exposed": lambda step: step.exposed_ns,
    "trailing": lambda step: step.trailing_ns,
}
"""name → measure of a step; the page shows these measures in addition to the parts of the step"""


def steps_data(report: Report) -> dict[str, Any] | None:
    """Return the measures of each rank and step, in ns; ``None`` if no step was profiled."""
    typical = typical_step(report)
    if typical is None:
        return None
    numbers = sorted({step.step for rank in report.ranks for step in rank.measured_steps})
    return {
        "parts": PARTS,
        "columns": tuple(COLUMNS),
        "ranks": [rank.rank for rank in report.ranks],
        "shown": worth_seeing(report),
        "drawn": worth_seeing(report, _MAX_TIMELINES),
        "typical": typical,
        "steps": {number: _rows(report, number) for number in numbers},
    }


def _rows(report: Report, number: int) -> list[list[int | None] | None]:
    found = ({step.step: step for step in rank.measured_steps}.get(number) for rank in report.ranks)
    return [None if step is None or step.parts is None else _row(step) for step in found]


def _row(step: StepReport) -> list[int | None]:
    assert step.parts is not None
    return [*bar_parts_ns(step.parts), *(time_ns(step) for time_ns in COLUMNS.values())]


def steps_json(report: Report) -> bytes | None:
    data = steps_data(report)
    return None if data is None else json.dumps(data, separators=(",", ":")).encode()
