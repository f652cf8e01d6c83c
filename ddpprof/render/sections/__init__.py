"""The content, order and words of a report. Terminal, Markdown and pages draw these sections.

attempts.py          attempts of a job that torchrun restarted, and what changed between them
bound.py             what bounds a step with exposed communication, and what would help besides the findings
buckets.py           gradient buckets: when each was ready, sent and finished, and what is in it
collectives.py       collectives by size, with the link's rate
comparison.py        two jobs compared: how they differ, what became slower, and whether that is noise
cost.py              the cost of DDP itself, and of ddpprof
devices.py           one process with several accelerators: how much each works
experiments.py       the content, order and words of an experiment's report
failure.py           how the job failed; this comes before anything else
first_screen.py      the first screen: what ran, the verdict, one typical step, what to change, and where to read on
findings.py          findings in their order, and then those that may be noise
job.py               what ran, and what the report lacks
lanes.py             one step in the order of events: what each rank does, and which bucket is in transit
memory.py            memory per rank and device
netbench.py          speed of collectives by size, like the table of nccl-tests; times in µs as there
outside.py           collectives that the script calls itself, outside DDP
overhead.py          the measured overhead of DDP, and what explains it, in words
overlap_slowdown.py  how much communication slows concurrent computation, kernel by kernel
ranks.py             ranks compared: who is late, who waits for whom, and what their clocks show
repeated.py          runs of one job compared: their steps, and how many of them have each finding
scaling.py           weak and strong scaling, and where the lost time goes, in words
spread.py            how far many ranks differ in one step; there are too many bars to look at
steps.py             where the time of a step goes, how much communication is hidden, and which step and ranks are shown
sweep.py             step times over the varied quantity, models and crossovers, in words
tuning.py            the results of tuning, in words
verdict.py           the whole report in a sentence and a few numbers
whole_run.py         the whole run: steps over time, the longest steps, and how each rank stands
whatif.py            predictions of the step under other settings, in words
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ddpprof import side_street
from ddpprof.layout import Section
from ddpprof.render.sections.attempts import attempt_table
from ddpprof.render.sections.bound import bound_lines
from ddpprof.render.sections.buckets import bucket_tables
from ddpprof.render.sections.collectives import collective_table
from ddpprof.render.sections.cost import recording_cost_line, unusual_steps_line, wrapper_table
from ddpprof.render.sections.devices import device_table
from ddpprof.render.sections.failure import failure_lines
from ddpprof.render.sections.findings import finding_list, is_all_noise
from ddpprof.render.sections.job import job_lines, missing_lines
from ddpprof.render.sections.lanes import step_lanes
from ddpprof.render.sections.memory import memory_table
from ddpprof.render.sections.outside import outside_table
from ddpprof.render.sections.overlap_slowdown import slowdown_section
from ddpprof.render.sections.ranks import straggler_table, waiting_table
from ddpprof.render.sections.spread import spread_table
from ddpprof.render.sections.steps import idle_table, overlap_table, step_bars, typical_step
from ddpprof.render.sections.whole_run import whole_run_tables
from ddpprof.report import Report
from ddpprof.report.side_streets import sections_of_streets
from ddpprof.report.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Topic:
    """Sections about one topic, as a page groups them."""

    name: str
    """lower-case name, as in a link"""
    title: str
    sections: tuple[Section, ...]


_Maker = Callable[[Report], Iterable[Section]]


def _of_side_streets(topic: side_street.Topic) -> _Maker:
    return lambda report: sections_of_streets(report, topic)


_TOPICS: Sequence[tuple[str, str, tuple[_Maker, ...]]] = (
    (
        "job",
        "The job",
        (failure_lines, attempt_table, job_lines, _of_side_streets("job"), unusual_steps_line, missing_lines),
    ),
    (
        "step",
        "Where the time of a step goes",
        (step_bars, spread_table, overlap_table, idle_table, _of_side_streets("step"), device_table),
    ),
    ("buckets", "Buckets", (bucket_tables,)),
    ("collectives", "Collectives", (collective_table, outside_table, _of_side_streets("collectives"))),
    ("ranks", "Ranks compared", (straggler_table, waiting_table)),
    ("slowdown", "Slowdown by communication", (slowdown_section,)),
    ("whole-run", "The whole run", (whole_run_tables,)),
    ("cost", "What DDP and the recording cost", (wrapper_table, memory_table, recording_cost_line)),
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
    """Return the sections of all topics or one, with a drawing of the step that the bars show."""
    found: list[Section] = []
    for topic in topics(report):
        if only not in (None, topic.name):
            continue
        number = typical_step(report) if topic.name == "step" and timeline is not None else None
        found += step_lanes(timeline, number) if timeline is not None and number is not None else ()
        found += topic.sections
    return tuple(found)
