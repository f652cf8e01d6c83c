"""What to change, most time first."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.findings import Finding
from ddpprof.render.sections.layout import FindingList, FindingText, Section, clean, ms
from ddpprof.report import Report


def finding_list(report: Report) -> Iterable[Section]:
    texts = tuple(
        FindingText(
            number,
            clean(f.title),
            _gain(f),
            clean(f.evidence, most=800),
            clean(f.advice, most=800),
        )
        for number, f in enumerate(report.findings, 1)
    )
    profiled = any(rank.steps for rank in report.ranks)
    if report.horovod is not None:
        otherwise = _NOTHING
    else:
        otherwise = _NOT_RECORDED if not report.job.modules else _NOTHING if profiled else _NOT_PROFILED
    yield FindingList("Findings", texts, otherwise)


_NOTHING = "Nothing to gain: no rule found more than 1% of the step to recover."
_NOT_PROFILED = (
    "None from light recording: how much communication nothing hides, and most rules with it, needs profiled steps. "
    "Train for more steps, or skip fewer before them: ddpprof trace --skip-first 1 --cost-steps 2 train.py"
)
_NOT_RECORDED = (
    "None from these traces: most rules need what only ddpprof records (buckets, parameters, data loaders). "
    "Record it with: ddpprof trace train.py"
)


def _gain(finding: Finding) -> str:
    if finding.predicted is not None:
        one = finding.predicted
        saves = "saves" if one.low_ns > 0 else "may save"
        return f"{saves} {ms(one.gain_ns)} ms ({ms(one.low_ns)} – {ms(one.high_ns)}) per step, predicted"
    if finding.gain_ns is not None:
        return f"up to {ms(finding.gain_ns)} ms per step"
    return "correctness" if finding.is_correctness else "gain not measured"
