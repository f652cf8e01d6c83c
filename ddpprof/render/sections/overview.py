"""Sections with the verdict and the findings of a report, and the first screen."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ddpprof.engine.finding import Finding
from ddpprof.layout import (
    Bars,
    Commands,
    FindingList,
    FindingText,
    Line,
    Remarks,
    Section,
    clean,
    count,
    in_ms,
    mean_of,
    percent,
    range_in_ms,
)
from ddpprof.model.backends import is_accelerator, sends_unchanged
from ddpprof.model.json_files import Measured
from ddpprof.model.whole_run import PauseKind
from ddpprof.ranks_and_steps import STEP_OPTIONS, default_steps, options_for
from ddpprof.render.sections.job import job_lines, missing_lines
from ddpprof.report import Report
from ddpprof.report.topics import file_of, sections_of_topics
from ddpprof.topics.attempts import attempt_table
from ddpprof.topics.bound import BoundBy, bound_remarks
from ddpprof.topics.failure import failure_lines, failure_sentence, hang_line, has_failed_or_hung
from ddpprof.topics.steps.measure import StepReport
from ddpprof.topics.steps.timeline import Timeline, typical_lanes
from ddpprof.topics.steps.view import left_out, mean_parts, recording_cost_line, step_bars, unusual_steps_line
from ddpprof.topics.whole_run import whole_run_line

FINDINGS = "Findings"
IN_VAIN = "Tried without success"
NOT_BEYOND_NOISE = "Not beyond noise"
WORTH_TRYING = "Worth trying: the gain cannot be predicted from this run; measure it with ddpprof try"


def finding_list(report: Report) -> Iterator[Section]:
    texts = finding_texts(report)
    beyond = [text for text, finding in texts if not finding.is_noise]
    yield from beyond_noise(report, beyond)
    if not beyond and report.failure is None and (computation := _own_computation(report)):
        yield Line(computation.strip())
    if uncertain := tuple(text for text, finding in texts if finding.is_worth_trying):
        yield FindingList(WORTH_TRYING, uncertain, "")
    if in_vain := tuple(text for text, finding in texts if finding.gives_nothing):
        yield FindingList(IN_VAIN, in_vain, "")
    if noise := tuple(text for text, finding in texts if not (finding.has_advice or finding.gives_nothing)):
        yield FindingList(NOT_BEYOND_NOISE, noise, "")


def beyond_noise(report: Report, texts: Sequence[FindingText]) -> Iterator[Section]:
    """Yield the findings that exceed the noise, and a line if most rules could not be applied."""
    yield FindingList(FINDINGS, tuple(texts), _otherwise(report))
    if texts and _lacks_profiled_steps(report):
        yield Line(_not_profiled(report, "No further findings"))


def is_all_noise(report: Report) -> bool:
    """Return whether there are findings, but none exceeds the noise."""
    return bool(report.findings) and all(finding.is_noise for finding in report.findings)


def finding_texts(report: Report) -> list[tuple[FindingText, Finding]]:
    """Return the texts of the findings, numbered in order."""
    return [(_text(number, finding), finding) for number, finding in enumerate(report.findings, 1)]


def first_changes(report: Report) -> list[tuple[FindingText, Finding]]:
    """Return the finding to act on first. If it is about correctness, the first finding with a gain follows.

    The list is empty if no finding is certain enough. If the job failed or hung, only correctness is worth acting on.
    """
    certain = [one for one in finding_texts(report) if one[0].advice and not (one[1].is_noise or one[1].is_guess)]
    if has_failed_or_hung(report):
        return [one for one in certain[:1] if one[1].is_correctness]
    if not certain or not certain[0][1].is_correctness:
        return certain[:1]
    gains = [one for one in certain if one[1].expected_ns is not None]
    return [certain[0], *gains[:1]]


def change_sentence(report: Report) -> str:
    """Return the end of the verdict: what to change first, or that nothing needs to be changed."""
    first = first_changes(report)
    said = (f"{first_words(one)}: {text.title}.{sentence_after(report, one)}" for text, one in first)
    return " ".join(said) or change_nothing(report)


def first_words(finding: Finding) -> str:
    """Return the words that introduce the first finding."""
    if finding.may_be_meant:
        return "Check whether this is intended"
    if finding.is_correctness:
        return "Correctness"
    return "Worth trying" if finding.has_unknown_gain or not finding.is_trusted else "First fix"


def sentence_after(report: Report, finding: Finding) -> str:
    """Return the sentence that follows the title of the first finding; empty if there is nothing to add.

    The sentence states the gain of the finding. If the gain is unknown, the sentence names another finding for which
    this run is too short, or says that no finding about the step time exceeds the noise.
    """
    if finding.expected_ns is None:
        gains = [one for one in report.findings if one.expected_ns is not None and not one.is_noise]
        if not finding.is_correctness or not all(one.is_guess for one in gains):
            return f" {_undecided(report)}".rstrip()
        no_time = "" if gains else " No finding about the step time exceeds the noise."
        return f" {_undecided(report)}".rstrip() or f"{no_time}{_own_computation(report)}"
    if finding.measured is not None and finding.is_decided:
        return f" ddpprof try measured {measured_gain(finding.measured)}."
    if finding.predicted is not None:
        return f" Changing this {_predicted_gain(finding)}."
    is_said = finding.gain_ns is not None and in_ms(finding.gain_ns) in finding.title
    return "" if is_said else f" This costs {_gain(finding)}."


def change_nothing(report: Report) -> str:
    """Return a sentence that says why there is nothing to change; empty if the job failed."""
    if has_failed_or_hung(report):
        return ""
    for number, finding in enumerate(report.findings, 1):
        if finding.is_worth_trying:
            what = finding.change.code if finding.change is not None else finding.title
            rounds, allow = ("rounds gradients, and ", " --allow-lossy") if finding.is_lossy else ("", "")
            return (
                f"Worth trying: {clean(what)}, which {rounds}may save {in_ms(finding.expected_ns)} per step. The gain "
                f"cannot be predicted from this run. Measure it with ddpprof try --finding {number}{allow}."
            )
    if undecided := _undecided(report):
        return f"Change nothing yet. {undecided}"
    if any(not one.is_noise for one in report.findings):
        return (
            "Change nothing yet: the gain of a change cannot be predicted from this run. Use ddpprof tune to "
            "measure it."
        )
    if file_of(report) is None and not (report.job.modules or report.data_parallel):
        return f"{_ENDED_AT_START[0].upper()}{_ENDED_AT_START[1:]}" if report.job.recorded_with else _TRACES_CANNOT_TELL
    if _lacks_profiled_steps(report):
        return "Change nothing yet: this run has no profiled steps, which most rules need."
    why = _ALL_NOISE if report.findings or report.data_parallel else _otherwise(report)
    return f"{why}{_own_computation(report)}"


def _own_computation(report: Report) -> str:
    """Return a sentence if most of the step is computation: a step without findings may still be slow."""
    parts = mean_parts(report)
    computing_ns = sum(parts.get(name, 0) for name in _COMPUTATION)
    if not parts or computing_ns <= sum(parts.values()) / 2:
        return ""
    share = percent(computing_ns / sum(parts.values()))
    longest = [f"{clean(one.short)} ({in_ms(one.step_ns)})" for one in report.script_lines[:_MOST_SCRIPT_LINES]]
    lines = f" The longest-running lines of a profiled step are {', '.join(longest)}." if longest else ""
    mostly = "" if report.on_accelerator else _longest_operators(report)
    return (
        f" {share} of the step is computation of the model and the optimizer{mostly}, whose efficiency ddpprof does "
        f"not judge.{lines} ddpprof timeline shows its operators."
    )


def _longest_operators(report: Report) -> str:
    """Return a clause that names the operators with the longest total time."""
    total_ns: Counter[str] = Counter()
    for one in report.kernels:
        total_ns[one.kernel.name.removeprefix(_NODE)] += one.total_ns
    names = [clean(name, most=50) for name, _ in total_ns.most_common(_MOST_OPERATORS)]
    return f" (mostly {', '.join(names)})" if names else ""


_NODE = "autograd::engine::evaluate_function: "
_MOST_OPERATORS = 3
_MOST_SCRIPT_LINES = 3
_COMPUTATION = ("forward_ns", "backward_ns", "optimizer_ns")


def _undecided(report: Report) -> str:
    """Return a sentence about a finding that needs a longer run; empty if there is no such finding."""
    undecided = next((one for one in report.findings if one.longer_recording is not None), None)
    if undecided is None:
        return ""
    return (
        f"{clean(undecided.title)} ({_gain(undecided)}), but this run is too short to tell whether this is due to "
        f"chance: {clean(longer_recording(report, undecided), most=_LONGEST_LINE)}"
    )


_TRACES_CANNOT_TELL = (
    "Change nothing yet: traces alone do not show which DDP setting would shorten the step, because they do not "
    "contain DDP's buckets and options. Use ddpprof trace to record them."
)


def _text(number: int, finding: Finding) -> FindingText:
    """Return the text of a finding, without advice if it may be noise."""
    advice = clean(finding.advice, most=800) if finding.has_advice else ""
    title, evidence = clean(finding.title), clean(finding.evidence, most=800)
    return FindingText(number, title, _gain(finding), evidence, advice, finding.is_noise)


def _otherwise(report: Report) -> str:
    """Return a sentence that says why no finding exceeds the noise."""
    if report.failure is not None:
        return _FAILED
    if file_of(report) is None and not report.job.modules:
        return f"No findings: {_ENDED_AT_START}" if report.job.recorded_with else _NOT_RECORDED
    if _lacks_profiled_steps(report):
        return _not_profiled(report, "No findings")
    if report.findings:
        return _ALL_NOISE
    if report.bound is None:
        return _NOTHING
    is_predicted = report.bound.by is BoundBy.WAITING or report.bound.would_help
    return _NOTHING_OF_DDP if is_predicted else f"{_NOTHING_OF_DDP} {_NOT_PREDICTED}"


def _lacks_profiled_steps(report: Report) -> bool:
    """Return whether the run was recorded by ddpprof, did not fail, and has no profiled steps."""
    was_recorded = file_of(report) is None and report.failure is None and report.job.modules
    return bool(was_recorded) and not any(rank.steps for rank in report.ranks)


def _not_profiled(report: Report, how_many: str) -> str:
    need = f"{how_many}: most rules need the exposed communication, which only profiled steps show."
    if report.job.only_watched:
        return f"{need} Use ddpprof capture to profile steps of a running job, or ddpprof trace for a new one."
    number, on_accelerator = report.job.num_steps, is_accelerator(report.job.device)
    enough = default_steps(on_accelerator)
    if number is None or number >= enough:
        return need
    words = shlex.join(without_step_options(report.job.trace_words))
    options = options_for(number, on_accelerator)
    with_options = (
        "" if options is None else (f" Or record with {number} steps: ddpprof trace {options} {clean(words)}")
    )
    return (
        f"{need} Training ran for {count(number, 'step')}, but the default options need {enough}: train for more "
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


def longer_recording(report: Report, finding: Finding) -> str:
    """Return the command that records long enough to show whether the finding is noise."""
    words = shlex.join(without_step_options(report.job.trace_words))
    return f"ddpprof trace {finding.longer_recording} {words}"


_ALL_NOISE = "No finding exceeds the noise."
_FAILED = "No findings in the steps recorded before the failure."
_NOTHING = "No rule found a change that saves more than 1% of the step."
_NOTHING_OF_DDP = "No rule found a setting that saves more than 1% of the step."
_NOT_PREDICTED = (
    "Other bucket sizes may save time, but this step cannot be replayed to predict how much. Use ddpprof tune to "
    "measure them."
)
_ENDED_AT_START = "the job ended during the first steps, before the recording began."
_NOT_RECORDED = (
    "These traces have no findings: most rules need data that only ddpprof records (buckets, parameters, data "
    "loaders). Record it with: ddpprof trace train.py"
)


def measured_gain(measured: Measured) -> str:
    """Return the measured gain with its interval."""
    gain = f"{in_ms(measured.gain_ns)} per step"
    if measured.low_ns is None or measured.high_ns is None:
        return gain
    return f"{gain} {range_in_ms(measured.low_ns, measured.high_ns)}"


def _predicted_gain(finding: Finding) -> str:
    one = finding.predicted
    assert one is not None
    saves = "may save" if finding.is_noise or one.low_ns <= 0 else "is predicted to save"
    return f"{saves} {in_ms(one.gain_ns)} per step {range_in_ms(one.low_ns, one.high_ns)}"


def _gain(finding: Finding) -> str:
    measured = finding.measured
    if measured is None:
        return _expected(finding)
    if measured.gain_ns is None:
        return "tried: the job failed"
    result = f"{measured_gain(measured)}, {measured.outcome.value}"
    return f"measured: {result}" if finding.is_decided else f"{_expected(finding)}; measured: {result}"


def _expected(finding: Finding) -> str:
    if finding.predicted is not None:
        return _predicted_gain(finding).removeprefix("is ")
    if finding.gain_ns is not None:
        return f"up to {in_ms(finding.gain_ns)} per step"
    return "correctness" if finding.is_correctness else "gain not measured"


@dataclass(frozen=True, slots=True)
class Number:
    """A number in the verdict, with its unit."""

    what: str
    value: str


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """Verdict on the steps of a run, with the most important numbers."""

    text: str
    numbers: tuple[Number, ...]


def verdict(report: Report) -> StepVerdict:
    """Return the verdict. Its numbers are means over ranks and steps, as in the tables."""
    of_steps = verdict_of_steps(report)
    if report.failure is None:
        return of_steps
    return StepVerdict(f"{failure_sentence(report.failure, report)} {of_steps.text}", of_steps.numbers)


def verdict_of_steps(report: Report) -> StepVerdict:
    """Return the verdict, without the sentence that says how the job failed."""
    steps = [step for rank in report.ranks_together for step in report.averaged(rank)]
    if not steps:
        return _of_light_steps(report)
    step_ns, comm_ns = report.step_ns, mean_of(steps, lambda s: s.comm_ns) or 0
    exposed_ns, trailing_ns = mean_of(steps, lambda s: s.exposed_ns) or 0, mean_of(steps, lambda s: s.trailing_ns)
    profiled_ns = report.profiled_step_ns or 0
    exposed_ns = min(exposed_ns, profiled_ns)  # communication of the last step may end after the step
    numbers = [Number("step", in_ms(step_ns))]
    if not any(step.num_comm_kernels for step in steps):
        return StepVerdict(f"{_step_takes(report, step_ns)}, without communication.", tuple(numbers))
    share = exposed_ns / profiled_ns if profiled_ns else None
    numbers += [
        Number("communication", in_ms(comm_ns)),
        Number("hidden", percent(1 - exposed_ns / comm_ns if comm_ns else None)),
        Number("exposed", in_ms(exposed_ns)),
        Number("trailing", in_ms(trailing_ns)),
    ]
    exposed = f"xposed communication {'takes' if report.failure is None else 'took'} {in_ms(exposed_ns)}"
    text = f"{_step_takes(report, step_ns)}. "
    if step_ns == profiled_ns:
        text += f"E{exposed}, {percent(share)} of the step."
    else:
        text += f"In the profiled steps, e{exposed} of {in_ms(profiled_ns)} ({percent(share)})."
    idle = _IDLE_OF_DEVICE if is_accelerator(report.job.device) else _IDLE_OF_HOST
    text += _larger_cost(report, steps, exposed_ns, profiled_ns, idle)
    text += _left_out(report, len({step.step for step in steps}))
    return StepVerdict(text, tuple(numbers))


_IDLE_OF_DEVICE = "idle time of the accelerator"
_IDLE_OF_HOST = "time between operations, for example in Python code"


def _larger_cost(report: Report, steps: Sequence[StepReport], exposed_ns: float, profiled_ns: float, idle: str) -> str:
    """Return a sentence that names the largest cost, if it is not communication, the model or the optimizer.

    The time that the profiler adds to a step is mostly idle time, so it is subtracted from the idle time.
    """
    parts = [step.parts for step in steps if step.parts is not None]
    costs = {
        "waiting for data": mean_of(parts, lambda one: one.data_ns) or 0,
        idle: (mean_of(parts, lambda one: one.idle_ns) or 0) - report.profiler_ns,
        _OUTSIDE: mean_of(parts, lambda one: one.other_ns) or 0,
        "copying data": mean_of(parts, lambda one: one.copy_ns) or 0,
    }
    name, largest_ns = max(costs.items(), key=lambda one: one[1])
    if largest_ns <= max(exposed_ns, _WORTH_NAMING * profiled_ns):
        return ""
    line = _idle_line(report) if name == idle else ""
    return f" The largest cost is {name}: {in_ms(largest_ns)}, {percent(largest_ns / profiled_ns)}.{line}"


def _idle_line(report: Report) -> str:
    """Return a sentence that names the line of the script at which most of the time between operations passes."""
    longest = max(report.script_lines, key=lambda one: one.idle_share, default=None)
    if longest is None or longest.idle_share <= _MOST_OF_IDLE:
        return ""
    return f" Most of this time passes at {clean(longest.short)}."


_OUTSIDE = "computation outside DDP's passes and the optimizer, for example of another model"
_MOST_OF_IDLE = 0.5
_WORTH_NAMING = 0.05
"""the largest cost is named only if it takes at least this share of the step"""


def _left_out(report: Report, num_usual: int) -> str:
    """Return a sentence about the excluded steps, if there are several or if they take most of the time.

    A single long step may be due to the machine.
    """
    ratios = sorted(left_out(report).values())
    if len(ratios) < 2 and sum(ratios) <= num_usual:
        return ""
    low, high = f"{ratios[0]:.1f}", f"{ratios[-1]:.1f}"
    times = low if low == high else f"{low} to {high}"
    some = f"{len(ratios)} of {len(ratios) + num_usual} profiled steps"
    pauses = report.whole_run.pauses if report.whole_run is not None else ()
    may_evaluate = any(one.kind in (PauseKind.EVALUATION, PauseKind.SAVE) for one in pauses)
    why = ", mostly because of communication" if not may_evaluate and _are_longer_for_communication(report) else ""
    return f" These numbers exclude {some}, which took {times} times as long as the other steps{why}."


def _are_longer_for_communication(report: Report) -> bool:
    """Return whether the excluded steps spend most of their extra time in communication."""
    steps = [step for rank in report.ranks_together for step in rank.measured_steps]
    usual = [step for step in steps if step.step in report.usual_steps]
    others = [step for step in steps if step.step not in report.usual_steps and step.is_whole]
    longer_ns, exposed_ns = (
        (mean_of(others, of) or 0) - (mean_of(usual, of) or 0)
        for of in (lambda step: step.duration_ns, lambda step: step.exposed_ns)
    )
    return exposed_ns > longer_ns / 2


def _of_light_steps(report: Report) -> StepVerdict:
    step_ns = report.step_ns
    if step_ns is None:
        is_bare = report.ranks and report.failure is None and report.job.num_steps is None and file_of(report) is None
        return StepVerdict(_NO_STEPS if is_bare else "No step was recorded completely.", ())
    unknown = " The steps were timed, but not profiled. Profiled steps would show how the time is spent."
    if any(rank.light_steps for rank in report.ranks):
        only = " Only profiled steps show how much of the step is communication."
        unknown = "" if file_of(report) is not None else only
    return StepVerdict(f"{_step_takes(report, step_ns)}.{unknown}", (Number("step", in_ms(step_ns)),))


_NO_STEPS = (
    "The traces have no steps, so the step time is unknown. Profile with torch.profiler.schedule(…) and call "
    "profiler.step() after each step, or use ddpprof trace."
)


def _step_takes(report: Report, step_ns: int | None) -> str:
    said = "A step takes" if report.failure is None else "Before the failure a step took"
    return f"{said} {in_ms(step_ns)}"


MAX_RANKS = 4
"""maximum number of ranks in the timeline of a step"""
_MOST_FINDINGS = 3
_MOST_REMARKS = 6
_MOST_LINES = 3
"""maximum number of lines about modules, and of lines with notes"""
_LONGEST_COMMAND = 60
_LONGEST_LINE = 400


def first_screen(
    report: Report, paths: Sequence[str], timeline: Timeline | None = None, *, can_replay: bool = True
) -> tuple[Section, ...]:
    """Return the sections of the first screen, about 40 lines.

    `paths`: paths of the run, as given by the user. `timeline`: contains the typical step. `can_replay`: whether
    ``ddpprof whatif`` can read the input, which must not be a JSON report.
    """
    return tuple(
        section
        for part in (
            failure_lines(report.failure, report) if report.failure is not None else (),
            hang_line(report),
            _at_most(_MOST_LINES + 1, job_lines(report, _LONGEST_COMMAND), "modules", paths),
            sections_of_topics(report, "job"),
            _verdict(report),
            whole_run_line(report.whole_run, report.step_ns),
            attempt_table(report.attempts, report) if report.attempts else (),
            _at_most(_MOST_LINES, (*unusual_steps_line(report), *missing_lines(report)), "notes", paths),
            _step(report, timeline),
            _findings(report),
            _remarks(report),
            recording_cost_line(report),
            _next(report, paths, can_replay),
        )
        for section in part
    )


def _at_most(most: int, lines: Iterable[Section], what: str, paths: Sequence[str]) -> Iterator[Section]:
    found = list(lines)
    yield from found[:most]
    if len(found) > most:
        yield Line(f"{len(found) - most} more {what}: {_report(paths)} --section job")


def _verdict(report: Report) -> Iterator[Section]:
    yield Line(f"{verdict_of_steps(report).text} {change_sentence(report)}".strip(), is_headline=True)


def _step(report: Report, timeline: Timeline | None) -> Iterable[Section]:
    """Return the lanes of the typical step or, if no step was profiled, bars and sections about the step time."""
    return typical_lanes(timeline, report) or (*_bars(report), *sections_of_topics(report, "step"))


def _bars(report: Report) -> Iterator[Section]:
    for section in step_bars(report):
        if isinstance(section, Bars):
            yield replace(section, bars=section.bars[: 2 * MAX_RANKS])


def _findings(report: Report) -> Iterator[Section]:
    beyond = [text for text, finding in finding_texts(report) if not finding.is_noise][:_MOST_FINDINGS]
    yield from beyond_noise(report, [replace(text, evidence="") for text in beyond])


def _remarks(report: Report) -> Iterator[Section]:
    """Yield further findings, in one sentence each."""
    numbered = list(enumerate(report.findings, 1))
    beyond = [one for one in numbered if not one[1].is_noise][_MOST_FINDINGS:]
    also = (*_in_short(beyond), *bound_remarks(report))
    if also:
        yield Remarks("Also found", also)
    if uncertain := [one for one in numbered if one[1].is_worth_trying]:
        yield Remarks(WORTH_TRYING, tuple(_in_short(uncertain)))
    if in_vain := [one for one in numbered if one[1].gives_nothing]:
        yield Remarks(IN_VAIN, tuple(_in_short(in_vain)))
    if noise := [one for one in numbered if not (one[1].has_advice or one[1].gives_nothing)]:
        yield Remarks(NOT_BEYOND_NOISE, tuple(_in_short(noise)))


def _in_short(findings: Sequence[tuple[int, Finding]]) -> Iterator[str]:
    for number, finding in findings[:_MOST_REMARKS]:
        yield f"{clean(finding.title)} [finding {number}, {_gain(finding)}]"
    if len(findings) > _MOST_REMARKS:
        yield f"{len(findings) - _MOST_REMARKS} more: --section findings"


def _next(report: Report, paths: Sequence[str], can_replay: bool) -> Iterator[Section]:
    run = shlex.join(paths)
    commands = [
        ("every table", f"{_report(paths)} --full"),
        ("a page with charts", f"{_report(paths)} --out report.html"),
    ]
    if len(paths) == 1 and not first_changes(report) and _own_computation(report) and report.job.modules:
        commands.append(("its operators", f"ddpprof timeline {run}"))
    is_replayed = any(finding.predicted for finding in report.findings) or (report.bound and report.bound.would_help)
    if is_replayed and can_replay and len(paths) == 1:
        commands.append(("other settings", f"ddpprof whatif {run}"))
    if left := _left_to_try(report, paths):
        is_known = any(not one.is_noise for one in left)
        lossy = " --allow-lossy" if left[0].is_lossy else ""
        commands.append(
            (_to_try(report, left[0]) if is_known else "measure uncertain gains", f"ddpprof try {run}{lossy}")
        )
    elif (edit := _to_edit(report, paths)) is not None:
        commands.append(("measure your fix", f"ddpprof try {run} --finding {edit} --script CHANGED.py"))
    if report.failure is None and len(paths) == 1:
        if (words := _words_of_sweep(report)) is not None:
            commands += [
                (what, clean(f"ddpprof sweep --vary {setting} {words}", most=_LONGEST_LINE))
                for what, setting in _worth_varying(report)
            ]
        for when, folder in (("before a change", "BEFORE"), ("after the change", "AFTER")):
            repeat = report.job.trace_command("--repeat 6", f"--out {folder}")
            commands.append((when, clean(repeat, most=_LONGEST_LINE)))
        commands.append(("compare the two", "ddpprof compare BEFORE AFTER"))
    commands.append(("meaning of a term", "ddpprof explain exposed"))
    yield Commands("Next", tuple(commands))


def _to_try(report: Report, finding: Finding) -> str:
    """Return the label of the command that tries a finding, which is not always the first finding."""
    first = first_changes(report)
    number = report.findings.index(finding) + 1
    return "try the first fix" if first and first[-1][0].number == number else f"try finding {number}"


def _can_try(report: Report, paths: Sequence[str]) -> bool:
    """Return whether `ddpprof try` can run the job again."""
    job = report.job
    return len(paths) == 1 and bool(job.recorded_with) and job.one_command_starts_it and report.failure is None


def _left_to_try(report: Report, paths: Sequence[str]) -> list[Finding]:
    """Return the findings with a change that `ddpprof try` can apply and has not tried yet."""
    if not _can_try(report, paths):
        return []
    return [one for one in report.findings if one.change is not None and not one.is_decided and one.has_advice]


def _to_edit(report: Report, paths: Sequence[str]) -> int | None:
    """Return the number of the first finding with a gain if its change must be made in the script, else ``None``."""
    first = first_changes(report)
    if not _can_try(report, paths) or not first:
        return None
    text, finding = first[-1]
    is_edit = finding.expected_ns is not None and finding.change is None and not finding.is_left_out_of_trials
    return text.number if is_edit and not finding.is_decided else None


_SMALLEST_CAP_MIB = 5


def _worth_varying(report: Report) -> Iterator[tuple[str, str]]:
    """Yield settings whose effect must be measured: what to measure, and the setting with its values."""
    if any(not sends_unchanged(module.comm_hook) for module in report.job.modules):
        yield "measure the hook", "comm_hook=True,False"
    if any(module.parameter_bytes > _SMALLEST_CAP_MIB * 2**20 for module in report.job.modules):
        yield "measure a setting", f"bucket_cap_mb={_SMALLEST_CAP_MIB},25"


def _words_of_sweep(report: Report) -> str | None:
    """Return the command of the job for a sweep; ``None`` if only options of ``ddpprof trace`` can start the job."""
    words = without_step_options(report.job.recorded_with)
    takes_number = bool(words) and words[0].startswith("--nproc")
    starts = words[1 if "=" in words[0] else 2 :] if takes_number else words
    if len(report.job.hosts) != 1 or not starts or starts[0].startswith("-"):
        return None
    return shlex.join(words)


def _report(paths: Sequence[str]) -> str:
    return f"ddpprof report {shlex.join(paths)}"
