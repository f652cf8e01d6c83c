"""Summaries of a report or a comparison as one JSON object of at most 4 kB, for scripts and agents.

A summary contains the verdict, the first findings with their changes as data, and the commands that measure these
changes. `render/json.py` writes the complete report. Times are in ns.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from ddpprof.comparison import Comparison, SettingChange
from ddpprof.comparison.gate import ConditionVerdict, GateResult
from ddpprof.engine.finding import Change, Finding
from ddpprof.layout import Line, clean
from ddpprof.model.json_files import Measured
from ddpprof.render.sections.overview import change_sentence, longer_recording, verdict
from ddpprof.report import Report
from ddpprof.topics.steps.view import mean_parts
from ddpprof.topics.whole_run import whole_run_line

MOST_BYTES = 4096
BRIEF_FORMAT = 1
_LONGEST = 400
"""maximum number of characters in a title or a command"""
_LONGEST_ADVICE = 600
_MOST_FINDINGS = 20
"""maximum number of findings; more findings would not fit into `MOST_BYTES`"""


class BriefFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finding that exceeds the noise, is worth trying, or needs a longer run. Times are in ns per step."""

    number: int
    """number of the finding, as used by the option ``--finding`` of other commands"""
    rule: str
    title: str
    advice: str
    gain_ns: int | None = None
    """predicted gain or, without `low_ns`, the largest possible gain; omitted if the finding is not about time"""
    low_ns: int | None = None
    high_ns: int | None = None
    """upper end of the 95 % interval of the predicted gain; `low_ns` is its lower end"""
    is_correctness: bool = False
    may_be_meant: bool = False
    is_worth_trying: bool = False
    """True if the run cannot predict the gain; the command in `confirm` measures it"""
    change: Change | None = None
    """the change as data; omitted if the script's author must make the change by hand"""
    confirm: str | None = None
    """command that measures the gain of the change"""
    decide: str | None = None
    """command that records enough steps to show whether the finding is due to chance; given only if this run is too
    short
    """
    measured: Measured | None = None
    """gain measured by `ddpprof try`"""


class Brief(msgspec.Struct, frozen=True, omit_defaults=True):
    """Summary of a report."""

    format: int
    ddpprof: str
    run: str
    verdict: str
    step_ns: int | None = None
    parts: Mapping[str, int] = {}
    """part of the step → mean time in the profiled steps of the first rank, in ns"""
    findings: tuple[BriefFinding, ...] = ()
    """the first findings, in order of priority"""
    num_more: int = 0
    """number of findings that exceed the noise but are not in `findings`"""
    num_noise: int = 0
    """number of findings that may be due to chance"""
    everything: str = ""
    """command that writes the whole report"""


class BriefChange(msgspec.Struct, frozen=True):
    """One measure in run A and in run B, in ns per step."""

    metric: str
    a_ns: int | None
    b_ns: int | None
    change_ns: int | None
    is_beyond_noise: bool | None
    """whether the change exceeds the noise; ``None`` if there are too few runs to decide"""


class BriefCondition(msgspec.Struct, frozen=True):
    """A condition of ``--fail-on``, and its outcome."""

    limit: str
    outcome: GateResult


class BriefComparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """Summary of a comparison. Changes are B minus A, so positive means slower."""

    format: int
    ddpprof: str
    a: str
    b: str
    changes: tuple[BriefChange, ...] = ()
    """the step time, and all other measures whose changes exceed the noise"""
    conditions: tuple[BriefCondition, ...] = ()
    settings: tuple[SettingChange, ...] = ()
    """settings that differ between the jobs"""
    num_left_out: int = 0
    """number of changes and settings that are left out because of the size limit"""
    missing: tuple[str, ...] = ()


def brief_report(report: Report, paths: Sequence[str]) -> Brief:
    """Return a summary with as many findings as fit. `paths`: paths of the run."""
    numbered = list(enumerate(report.findings, 1))
    beyond = [(number, one) for number, one in numbered if one.has_advice or one.longer_recording is not None]
    run = shlex.join(paths)
    made = Brief(
        format=BRIEF_FORMAT,
        ddpprof=report.ddpprof,
        run=clean(run, most=_LONGEST),
        verdict=clean(" ".join(_verdict(report)), most=_LONGEST_ADVICE),
        step_ns=report.step_ns,
        parts=mean_parts(report),
        num_noise=len(report.findings) - len(beyond),
        everything=f"ddpprof report {clean(run, most=_LONGEST)} --format json",
    )
    can_run = bool(report.job.recorded_with) and len(paths) == 1 and report.failure is None and len(run) <= _LONGEST
    texts = [_finding(number, one, report, run if can_run else None) for number, one in beyond[:_MOST_FINDINGS]]
    whole = _filled(made, texts, len(beyond))
    return whole if whole.findings else _filled(msgspec.structs.replace(made, parts={}), texts, len(beyond))


def _verdict(report: Report) -> Iterator[str]:
    """Yield the sentences of the verdict, and the largest slowdown of the run, if it is notable."""
    yield verdict(report).text
    for line in whole_run_line(report.whole_run, report.step_ns):
        if isinstance(line, Line) and line.is_warning:
            yield line.text
    yield from filter(None, [change_sentence(report)])


def _filled(brief: Brief, findings: Sequence[BriefFinding], number: int) -> Brief:
    """Return the summary with as many of the findings as fit. `number`: total number of findings."""
    for num_kept in range(len(findings), 0, -1):
        if _fits(made := _with(brief, findings[:num_kept], number)):
            return made
    return _with(brief, (), number)


def _with(brief: Brief, findings: Sequence[BriefFinding], number: int) -> Brief:
    return msgspec.structs.replace(brief, findings=tuple(findings), num_more=number - len(findings))


def _finding(number: int, one: Finding, report: Report, run: str | None) -> BriefFinding:
    predicted, is_decided = one.predicted, one.longer_recording is None
    return BriefFinding(
        number=number,
        rule=one.rule,
        title=clean(one.title, most=_LONGEST),
        advice=clean(one.advice, most=_LONGEST_ADVICE),
        gain_ns=one.expected_ns,
        low_ns=None if predicted is None else predicted.low_ns,
        high_ns=None if predicted is None else predicted.high_ns,
        is_correctness=one.is_correctness,
        may_be_meant=one.may_be_meant,
        is_worth_trying=one.is_worth_trying or one.has_unknown_gain,
        change=None if one.change is None else replace(one.change, code=clean(one.change.code, most=_LONGEST)),
        confirm=_confirm(number, one, report, run) if run is not None and is_decided else None,
        decide=None if is_decided else clean(longer_recording(report, one), most=_LONGEST),
        measured=one.measured,
    )


def _confirm(number: int, one: Finding, report: Report, run: str) -> str | None:
    """Return the command that measures the gain of a finding, or ``None`` if the finding is not about time."""
    if one.change is not None:
        lossy = " --allow-lossy" if one.change.is_lossy else ""
        return f"ddpprof try {run} --finding {number}{lossy}"
    scripts = [word for word in report.job.recorded_with if word.endswith(".py")]
    old = f"{shlex.quote(scripts[-1])}=" if len(scripts) > 1 else ""
    is_measurable = one.gain_ns is not None and not one.is_left_out_of_trials
    return None if not is_measurable else f"ddpprof try {run} --finding {number} --script {old}CHANGED.py"


def _fits(brief: Brief | BriefComparison) -> bool:
    written = msgspec.json.format(msgspec.json.encode(brief), indent=2)  # as in `render_json`, which adds a newline
    return len(written) < MOST_BYTES


def brief_comparison(comparison: Comparison, verdicts: Sequence[ConditionVerdict]) -> BriefComparison:
    """Return a summary with as many changes and settings as fit."""
    changed = [one for index, one in enumerate(comparison.metrics) if not index or one.is_beyond_noise]
    changes = [
        BriefChange(
            one.metric,
            one.a_ns,
            one.b_ns,
            None if one.difference is None else round(one.difference.shift_ns),
            one.is_beyond_noise,
        )
        for one in changed
    ]
    settings = [SettingChange(*(clean(text, most=80) for text in (s.name, s.a, s.b))) for s in comparison.settings]
    made = BriefComparison(
        format=BRIEF_FORMAT,
        ddpprof=comparison.ddpprof,
        a=clean(comparison.a, most=_LONGEST),
        b=clean(comparison.b, most=_LONGEST),
        conditions=tuple(BriefCondition(clean(one.condition.text, most=80), one.outcome) for one in verdicts[:10]),
        missing=tuple(clean(text, most=160) for text in comparison.missing[:3]),
    )
    kept = len(changes) + len(settings)
    while True:
        shown = msgspec.structs.replace(
            made,
            changes=tuple(changes[:kept]),
            settings=tuple(settings[: max(0, kept - len(changes))]),
            num_left_out=len(changes) + len(settings) - kept,
        )
        if not kept or _fits(shown):
            return shown
        kept -= 1
