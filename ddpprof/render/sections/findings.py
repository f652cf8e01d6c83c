"""Findings in the order of `findings.find`, and then those that may be noise."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ddpprof.engine.finding import Finding
from ddpprof.layout import FindingList, FindingText, Line, Section, clean, count, ms
from ddpprof.model.backends import is_accelerator
from ddpprof.report import Report
from ddpprof.report.topics import file_of
from ddpprof.step_options import STEP_OPTIONS, default_steps, options_for

FINDINGS = "Findings"
NOT_BEYOND_NOISE = "Not beyond noise"


def finding_list(report: Report) -> Iterator[Section]:
    texts = finding_texts(report)
    yield from beyond_noise(report, [text for text, finding in texts if not finding.is_noise])
    noise = tuple(text for text, finding in texts if finding.is_noise)
    if noise:
        yield FindingList(NOT_BEYOND_NOISE, noise, "")


def beyond_noise(report: Report, texts: Sequence[FindingText]) -> Iterator[Section]:
    """Show findings that are no noise, and say why there are none, or no more."""
    yield FindingList(FINDINGS, tuple(texts), _otherwise(report))
    if texts and _lacks_profiled_steps(report):
        yield Line(_not_profiled(report, "no more"))


def is_all_noise(report: Report) -> bool:
    """Return whether there are findings, but none beyond noise."""
    return bool(report.findings) and all(finding.is_noise for finding in report.findings)


def finding_texts(report: Report) -> list[tuple[FindingText, Finding]]:
    """Return the findings in words, numbered in their order."""
    return [(_text(number, finding), finding) for number, finding in enumerate(report.findings, 1)]


def first_change(report: Report) -> tuple[FindingText, Finding] | None:
    """Return what to change first; ``None`` if no finding is certain enough, as one without the prediction it needs."""
    return next(((text, one) for text, one in finding_texts(report) if text.advice and not one.is_guess), None)


def change_sentence(report: Report) -> str:
    """Say what to change first, or to change nothing: the end of every verdict."""
    first = first_change(report)
    if first is not None:
        text, finding = first
        return f"{first_words(finding)}: {text.title}{gain_after_title(text, finding)}."
    return change_nothing(report)


def first_words(finding: Finding) -> str:
    """Return what to do about the first finding."""
    return "Check whether this is intended" if finding.may_be_meant else "First fix"


def gain_after_title(text: FindingText, finding: Finding) -> str:
    """Return the gain as it follows the title in a sentence; nothing if there is none, or it is not known."""
    return "" if finding.expected_ns is None else f", {text.gain}"


def change_nothing(report: Report) -> str:
    """Say why there is nothing to change, for certain or as far as the run can tell; nothing if the job failed."""
    if report.failure is not None:
        return ""
    if any(not one.is_noise for one in report.findings):
        return "Change nothing yet: this run cannot predict what a change gives. ddpprof tune measures it."
    if file_of(report) is None and not (report.job.modules or report.data_parallel):
        return _TRACES_CANNOT_TELL
    if _lacks_profiled_steps(report):
        return "Change nothing yet: most rules need steps that ddpprof profiled."
    if report.findings or report.data_parallel:
        return "Change nothing: no finding is beyond noise."
    return f"Change nothing: {_otherwise(report)}"


_TRACES_CANNOT_TELL = (
    "Change nothing yet: traces alone cannot tell which DDP setting would shorten the step. They lack DDP's buckets "
    "and options, which ddpprof trace records."
)


def _text(number: int, finding: Finding) -> FindingText:
    """Return the text of a finding, without advice if it may be noise."""
    advice = "" if finding.is_noise else clean(finding.advice, most=800)
    title, evidence = clean(finding.title), clean(finding.evidence, most=800)
    return FindingText(number, title, _gain(finding), evidence, advice, finding.is_noise)


def _otherwise(report: Report) -> str:
    """Say why there are no findings beyond noise."""
    if report.failure is not None:
        return _FAILED
    if file_of(report) is None and not report.job.modules:
        return _NOT_RECORDED
    if _lacks_profiled_steps(report):
        return _not_profiled(report, "none")
    if report.findings:
        return _ALL_NOISE
    return _NOTHING if report.bound is None else _NOTHING_OF_DDP


def _lacks_profiled_steps(report: Report) -> bool:
    """Return whether ddpprof recorded the run, which did not fail, but none of the profiled steps."""
    was_recorded = file_of(report) is None and report.failure is None and report.job.modules
    return bool(was_recorded) and not any(rank.steps for rank in report.ranks)


def _not_profiled(report: Report, how_many: str) -> str:
    need = (
        f"There are {how_many} without profiled steps: most rules need the exposed communication, which only they show."
    )
    if report.job.only_watched:
        return f"{need} ddpprof capture profiles steps of a job that runs, and ddpprof trace those of a new one."
    number, on_accelerator = report.job.num_steps, is_accelerator(report.job.device)
    enough = default_steps(on_accelerator)
    if number is None or number >= enough:
        return need
    words = shlex.join(without_step_options(report.job.recorded_with)) or "train.py"
    options = options_for(number, on_accelerator)
    with_options = "" if options is None else f" Or make do with {number} steps: ddpprof trace {options} {clean(words)}"
    return (
        f"{need} The training took {count(number, 'step')}, but the default options need {enough}: let it take more "
        f"steps.{with_options}"
    )


def without_step_options(words: Sequence[str]) -> list[str]:
    """Return the words of a command without the options that select the recorded steps."""
    left, kept = iter(words), []
    for word in left:
        name, is_joined, _ = word.partition("=")
        if name not in STEP_OPTIONS:
            kept.append(word)
        elif not is_joined:
            next(left, None)
    return kept


_ALL_NOISE = "No finding is beyond noise."
_FAILED = "No findings in the steps recorded before the failure."
_NOTHING = "There is nothing to gain: no rule found more than 1% of the step to recover."
_NOTHING_OF_DDP = "No rule found a setting that would recover more than 1% of the step."
_NOT_RECORDED = (
    "There are none from these traces: most rules need data that only ddpprof records (buckets, parameters, data "
    "loaders). Record them with: ddpprof trace train.py"
)


def short_gain(finding: Finding) -> str:
    """Return the gain in a few words."""
    if finding.predicted is not None:
        one = finding.predicted
        return f"{ms(one.gain_ns)} ms ({ms(one.low_ns)} – {ms(one.high_ns)})"
    return _gain(finding).removesuffix(" per step")


def _gain(finding: Finding) -> str:
    if finding.predicted is not None:
        saves = "may save" if finding.is_noise or finding.predicted.low_ns <= 0 else "saves"
        return f"{saves} {short_gain(finding)} per step, predicted"
    if finding.gain_ns is not None:
        return f"up to {ms(finding.gain_ns)} ms per step"
    return "correctness" if finding.is_correctness else "gain not measured"
