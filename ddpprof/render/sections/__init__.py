"""The topics of a report and their sections, which are rendered in a terminal, as Markdown and as HTML pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ddpprof.engine.topic import Chapter
from ddpprof.layout import Section
from ddpprof.render.sections.job import job_lines, missing_lines
from ddpprof.render.sections.overview import finding_list, is_all_noise
from ddpprof.report import Report
from ddpprof.report.topics import sections_of_topics


@dataclass(frozen=True, slots=True)
class Topic:
    """Sections about one topic of the report."""

    name: str
    """name in lower case, used in links and for ``--section``"""
    title: str
    sections: tuple[Section, ...]


_TOPICS: Sequence[tuple[str, str, tuple[Chapter | Callable[[Report], Iterable[Section]], ...]]] = (
    ("job", "The job", ("ending", job_lines, "job", "notes", missing_lines)),
    ("step", "Where the time of a step goes", ("times", "step", "devices")),
    ("buckets", "Buckets", ("buckets",)),
    ("collectives", "Collectives", ("collectives",)),
    ("ranks", "Ranks compared", ("ranks",)),
    ("slowdown", "Slowdown by communication", ("slowdown",)),
    ("whole-run", "The whole run", ("whole-run",)),
    ("cost", "Overhead of DDP and of the recording", ("cost", "recording")),
    ("findings", "What to change", (finding_list, "findings")),
)
"""name, title and contents of each topic; each of the contents is a chapter or a function of the report"""


def topics(report: Report) -> tuple[Topic, ...]:
    """Return the topics of a report that have sections."""
    found = (
        Topic(name, _ALL_NOISE if name == "findings" and is_all_noise(report) else title, made)
        for name, title, parts in _TOPICS
        if (made := tuple(section for part in parts for section in _made(report, part)))
    )
    return tuple(found)


def _made(report: Report, part: Chapter | Callable[[Report], Iterable[Section]]) -> Iterable[Section]:
    return sections_of_topics(report, part) if isinstance(part, str) else part(report)


_ALL_NOISE = "Nothing to change beyond noise"


TOPICS = tuple(name for name, _, _ in _TOPICS)


def sections(report: Report, drawn_step: Iterable[Section] = (), only: str | None = None) -> tuple[Section, ...]:
    """Return the sections of all topics, or only of topic `only`.

    `drawn_step`: sections to place before the step topic.
    """
    found: list[Section] = []
    for topic in topics(report):
        if only in (None, topic.name):
            found += (*(drawn_step if topic.name == "step" else ()), *topic.sections)
    return tuple(found)
