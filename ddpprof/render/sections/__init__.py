"""The content, order and words of a report. Terminal, Markdown and pages draw these sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ddpprof.engine.topic import Chapter
from ddpprof.layout import Section
from ddpprof.render.sections.bound import bound_lines
from ddpprof.render.sections.buckets import bucket_tables
from ddpprof.render.sections.collectives import collective_table
from ddpprof.render.sections.cost import recording_cost_line, slowdown_section, unusual_steps_line, wrapper_table
from ddpprof.render.sections.failure import failure_lines
from ddpprof.render.sections.job import attempt_table, job_lines, missing_lines
from ddpprof.render.sections.lanes import step_lanes
from ddpprof.render.sections.overview import finding_list, is_all_noise
from ddpprof.render.sections.ranks import straggler_table, waiting_table
from ddpprof.render.sections.steps import device_table, idle_table, overlap_table, spread_table, step_bars, typical_step
from ddpprof.render.sections.whole_run import whole_run_tables
from ddpprof.report import Report
from ddpprof.report.timeline import Timeline
from ddpprof.report.topics import sections_of_topics


@dataclass(frozen=True, slots=True)
class Topic:
    """Sections about one topic, as a page groups them."""

    name: str
    """lower-case name, as in a link"""
    title: str
    sections: tuple[Section, ...]


_Maker = Callable[[Report], Iterable[Section]]


def _of_topics(chapter: Chapter) -> _Maker:
    return lambda report: sections_of_topics(report, chapter)


_TOPICS: Sequence[tuple[str, str, tuple[_Maker, ...]]] = (
    (
        "job",
        "The job",
        (failure_lines, attempt_table, job_lines, _of_topics("job"), unusual_steps_line, missing_lines),
    ),
    (
        "step",
        "Where the time of a step goes",
        (step_bars, spread_table, overlap_table, idle_table, _of_topics("step"), device_table),
    ),
    ("buckets", "Buckets", (bucket_tables,)),
    ("collectives", "Collectives", (collective_table, _of_topics("collectives"))),
    ("ranks", "Ranks compared", (straggler_table, waiting_table)),
    ("slowdown", "Slowdown by communication", (slowdown_section,)),
    ("whole-run", "The whole run", (whole_run_tables,)),
    ("cost", "What DDP and the recording cost", (wrapper_table, _of_topics("cost"), recording_cost_line)),
    ("findings", "What to change", (finding_list, bound_lines)),
)


def topics(report: Report) -> tuple[Topic, ...]:
    """Return all topics of a report, without empty sections and topics."""
    found = (
        Topic(name, _ALL_NOISE if name == "findings" and is_all_noise(report) else title, made)
        for name, title, makers in _TOPICS
        if (made := tuple(section for make in makers for section in make(report)))
    )
    return tuple(found)


_ALL_NOISE = "Nothing to change beyond noise"


TOPICS = tuple(name for name, _, _ in _TOPICS)


def sections(report: Report, timeline: Timeline | None = None, only: str | None = None) -> tuple[Section, ...]:
    """Return the sections of all topics, or of one topic, with a drawing of the step that the bars show."""
    found: list[Section] = []
    for topic in topics(report):
        if only not in (None, topic.name):
            continue
        number = typical_step(report) if topic.name == "step" and timeline is not None else None
        found += step_lanes(timeline, number) if timeline is not None and number is not None else ()
        found += topic.sections
    return tuple(found)
