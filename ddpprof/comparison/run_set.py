"""One side of a comparison: runs of one job, recorded one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from statistics import median

from ddpprof.layout import count
from ddpprof.report import Report
from ddpprof.words import utf8_text


@dataclass(frozen=True, slots=True)
class RunSet:
    reports: tuple[Report, ...]
    """one or more reports"""
    folder: str | None = None
    """folder in which ``ddpprof trace --repeat`` keeps the runs, and to which more runs can be added"""

    @property
    def name(self) -> str:
        if self.folder is not None:
            return f"{utf8_text(PurePath(self.folder).name)} ({count(len(self.reports), 'run')})"
        names = list(dict.fromkeys(report.job.name for report in self.reports))
        shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        return shown if len(self.reports) == 1 else f"{shown} ({len(self.reports)} runs)"

    @property
    def typical(self) -> Report:
        """Run with the median step, or the one next to it. Its buckets and kernels represent those of all runs."""
        ordered = sorted(self.reports, key=_usual_step_ns)
        return ordered[(len(ordered) - 1) // 2]

    @property
    def missing(self) -> tuple[str, ...]:
        """What reports lack, each item once, with the number of runs that lack it unless all do."""
        counts = Counter(text for report in self.reports for text in report.missing)
        all_of_them = len(self.reports)
        said = [text if n == all_of_them else f"{text} ({n} of {all_of_them} runs)" for text, n in counts.items()]
        mixed = ", ".join(differing_facts(self.reports))
        return (*said, *([f"its runs are not runs of the same job: they differ in {mixed}"] if mixed else []))


def _usual_step_ns(report: Report) -> float:
    steps_ns = [step.duration_ns for rank in report.ranks for step in rank.measured_steps]
    steps_ns += [step.duration_ns for rank in report.ranks for step in rank.light_steps]
    return median(steps_ns) if steps_ns else 0.0


def differing_facts(reports: Sequence[Report]) -> list[str]:
    """Return the names of the facts in which runs differ, in order.

    If a run has no information about its DDP modules, facts that only some runs have are not a difference.
    """
    facts = [facts_of(report) for report in reports]
    names = dict.fromkeys(name for of_run in facts for name in of_run)
    are_all_known = all(report.job.modules for report in reports)
    compared = [name for name in names if are_all_known or all(name in of_run for of_run in facts)]
    return [name for name in compared if len({of_run.get(name) for of_run in facts}) > 1]


def facts_of(report: Report) -> Mapping[str, str]:
    """Return what the run says about its job: world size, versions, settings of DDP."""
    job = report.job
    facts = {
        "command": " ".join(job.command),
        "ranks": str(job.world_size if job.world_size is not None else job.num_ranks_read),
        "hosts": str(len(job.hosts)) if job.hosts else None,
        "device": job.device,
        "backend": job.backend,
        "torch": job.torch,
    }
    for index, module in enumerate(job.modules):
        of_module = f"module {index}: " if len(job.modules) > 1 else ""
        facts[f"{of_module}model"] = module.name
        facts[f"{of_module}parameters"] = f"{module.num_parameters} ({module.parameter_bytes} bytes)"
        facts[f"{of_module}buckets"] = str(module.num_buckets)
        facts[f"{of_module}comm hook"] = module.comm_hook
        facts |= {f"{of_module}{setting}": value for setting, value in module.settings.items()}
    return {name: value for name, value in facts.items() if value}
