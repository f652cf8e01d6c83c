"""Summarize the runs of one job recorded with ``ddpprof trace --repeat``: their variation and common findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddpprof.comparison import RunSet, medians_ns
from ddpprof.engine.finding import Finding
from ddpprof.report import Report
from ddpprof.version import __version__

REPEATED_FORMAT = 1
"""version of the JSON document; increased if a field is removed or changes its meaning, but not if a field is added"""


@dataclass(frozen=True, slots=True)
class RepeatedRun:
    name: str
    num_steps: int
    step_ns: int | None
    """median step time of the run"""


@dataclass(frozen=True, slots=True)
class RepeatedFinding:
    """A finding that occurs in one or more runs. Stragglers on different ranks are different findings."""

    rule: str
    title: str
    """title of the finding in the first run that has it"""
    num_runs: int
    num_runs_beyond_noise: int


@dataclass(frozen=True, slots=True)
class RepeatedReport:
    format: int
    ddpprof: str
    name: str
    runs: tuple[RepeatedRun, ...]
    findings: tuple[RepeatedFinding, ...]
    """findings, in descending order of the number of runs in which they exceed the noise"""
    missing: tuple[str, ...]

    @property
    def spread(self) -> float | None:
        """Difference between the step times of the slowest and the fastest run, as a fraction of the fastest."""
        steps_ns = [run.step_ns for run in self.runs if run.step_ns]
        return max(steps_ns) / min(steps_ns) - 1 if len(steps_ns) > 1 else None


def report_on_runs(runs: RunSet, names: Sequence[str]) -> RepeatedReport:
    """Return a report on several runs. `names`: names of the runs."""
    return RepeatedReport(
        format=REPEATED_FORMAT,
        ddpprof=__version__,
        name=runs.name,
        runs=tuple(_run(name, report) for name, report in zip(names, runs.reports, strict=True)),
        findings=_findings(runs.reports),
        missing=runs.missing,
    )


def _run(name: str, report: Report) -> RepeatedRun:
    profiled = {step.step for rank in report.ranks for step in rank.measured_steps}
    light = {step.step for rank in report.ranks for step in rank.light_steps}
    return RepeatedRun(name, len(profiled or light), medians_ns(report).get("step"))


def _findings(reports: Iterable[Report]) -> tuple[RepeatedFinding, ...]:
    found: dict[str, list[Finding]] = {}
    for report in reports:
        of_run = {_what(finding): finding for finding in reversed(report.findings)}  # keeps the first of each kind
        for finding in reversed(of_run.values()):
            found.setdefault(_what(finding), []).append(finding)
    repeated = [
        RepeatedFinding(same[0].rule, same[0].title, len(same), sum(not one.is_noise for one in same))
        for same in found.values()
    ]
    return tuple(sorted(repeated, key=lambda one: (-one.num_runs_beyond_noise, -one.num_runs)))


_OF_A_RANK = ("straggler", "slow-rank")
"""rules whose findings about different ranks count as different findings"""


def _what(finding: Finding) -> str:
    rank = re.search(r"rank \d+", finding.title) if finding.rule in _OF_A_RANK else None
    return f"{finding.rule} {rank.group()}" if rank else finding.rule
