"""What to change, most time first; and what was seen but may be noise."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from ddpprof.findings import Finding
from ddpprof.layout import FindingList, FindingText, Section, clean, count, ms
from ddpprof.report import Report
from ddpprof.report.side_streets import file_of
from ddpprof.short_training import DEFAULT_STEPS, STEP_OPTIONS, options_for


def finding_list(report: Report) -> Iterable[Section]:
    texts = [_text(number, finding) for number, finding in enumerate(report.findings, 1)]
    beyond = [text for text, finding in zip(texts, report.findings, strict=True) if not finding.is_noise]
    yield FindingList("Findings", tuple(beyond), _otherwise(report, has_noise=bool(texts)))
    if len(beyond) < len(texts):
        yield FindingList("Not beyond noise", tuple(texts[len(beyond) :]), "")


def _text(number: int, finding: Finding) -> FindingText:
    """What may be noise is an observation: nothing is advised."""
    advice = "" if finding.is_noise else clean(finding.advice, most=800)
    return FindingText(number, clean(finding.title), _gain(finding), clean(finding.evidence, most=800), advice)


def _otherwise(report: Report, has_noise: bool) -> str:
    """Say why there are no findings. `has_noise`: there are some, but chance may have made them."""
    if report.failure is not None:
        return _FAILED
    is_of_ranks = file_of(report) is None
    if is_of_ranks and not report.job.modules:
        return _NOT_RECORDED
    if is_of_ranks and not any(rank.steps for rank in report.ranks):
        return _not_profiled(report)
    if has_noise:
        return _ALL_NOISE
    return _NOTHING if report.bound is None else _NOTHING_OF_DDP


def _not_profiled(report: Report) -> str:
    number = report.job.num_steps
    if number is None or number >= DEFAULT_STEPS:
        return _NOT_PROFILED
    words = shlex.join(_without_step_options(report.job.recorded_with)) or "train.py"
    options = options_for(number)
    with_options = "" if options is None else f" Or record what {number} tell: ddpprof trace {options} {clean(words)}"
    return (
        f"{_NOT_PROFILED} The training took {count(number, 'step')}, and the default options want {DEFAULT_STEPS}: let "
        f"it take more.{with_options}"
    )


def _without_step_options(words: Sequence[str]) -> list[str]:
    """Return the words of a command without the options that say which steps to record."""
    left, kept = iter(words), []
    for word in left:
        name, is_joined, _ = word.partition("=")
        if name not in STEP_OPTIONS:
            kept.append(word)
        elif not is_joined:
            next(left, None)
    return kept


_ALL_NOISE = "None that is beyond noise."
_FAILED = "None in the steps that were recorded before the job failed."
_NOTHING = "Nothing to gain: no rule found more than 1% of the step to recover."
_NOTHING_OF_DDP = "No rule found a setting that would recover more than 1% of the step."
_NOT_PROFILED = (
    "None without profiled steps: only they tell how much communication nothing hides, which most rules need."
)
_NOT_RECORDED = (
    "None from these traces: most rules need what only ddpprof records (buckets, parameters, data loaders). "
    "Record it with: ddpprof trace train.py"
)


def _gain(finding: Finding) -> str:
    if finding.predicted is not None:
        one = finding.predicted
        saves = "may save" if finding.is_noise or one.low_ns <= 0 else "saves"
        return f"{saves} {ms(one.gain_ns)} ms ({ms(one.low_ns)} – {ms(one.high_ns)}) per step, predicted"
    if finding.gain_ns is not None:
        return f"up to {ms(finding.gain_ns)} ms per step"
    return "correctness" if finding.is_correctness else "gain not measured"
