"""The report of a file of another tool."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from ddpprof import __version__
from ddpprof.engine.topic import View
from ddpprof.model import OtherFile, Run
from ddpprof.report.topics import TOPICS, find_all
from ddpprof.report.tree import REPORT_FORMAT, AcrossRanks, Job, LightStepReport, RankReport, Report
from ddpprof.topics.ranks.arrivals import WAITING
from ddpprof.words import utf8_text


def report_of_file(run: Run, file: OtherFile) -> Report:
    """Build the report: the same tree, with as much as such a file says."""
    readers = ((topic, topic.of_file(file)) for topic in TOPICS if topic.of_file is not None)
    topic, told = next((topic, told) for topic, told in readers if told is not None)
    light = tuple(LightStepReport(step, "timeline", ns, None) for step, ns in told.steps_ns.items())
    view = View(
        world_size=run.world_size,
        step_ns=round(median(told.steps_ns.values())) if told.steps_ns else None,
        backend=told.backend,
        shown={**told.shown, topic.name: told.measured},
    )
    waiting = view[WAITING] or ()
    across = AcrossRanks(num_matched=0, clock=None, waiting=waiting, collectives=(), stragglers=None, late_gradients=())
    report = Report(
        format=REPORT_FORMAT,
        ddpprof=__version__,
        job=Job(
            name=utf8_text(run.name),
            command=run.command,
            world_size=run.world_size,
            num_ranks_read=1,
            hosts=(),
            device=None,
            backend=told.backend,
            torch=None,
            modules=(),
        ),
        missing=(*run.missing, *told.missing),
        ranks=(
            RankReport(rank=0, host=None, ended=None, whole=None, steps=(), light_steps=light, recording_cost=None),
        ),
        buckets=(),
        findings=find_all(view),
        across=across if waiting else None,
    )
    return replace(report, **{topic.name: told.measured})
