"""Report on the whole run: step times over time, slowdowns, the longest steps, and how each rank ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import log
from typing import Any

from ddpprof import rundir
from ddpprof.engine.finding import Change, Finding, loader_change, only_known
from ddpprof.engine.topic import ReportView, Topic, View
from ddpprof.layout import (
    ABSENT,
    MAX_RANKS,
    Line,
    Section,
    Table,
    clean,
    columns,
    count,
    cut_off,
    duration,
    in_ms,
    ms,
    notes,
    percent,
    table_of,
)
from ddpprof.model.whole_run import (
    LEAST_STEPS,
    MemoryGrowth,
    Pause,
    PauseKind,
    RankWholeRun,
    SlowdownCause,
    StepPart,
    StepSlowdown,
    Stretch,
    WholeRun,
    share_of_rises,
)
from ddpprof.statistics import mean_known, median_known
from ddpprof.topics.data import INPUT_SIZES, load_in_advance, training_loaders
from ddpprof.topics.hang_words import verdict_lines
from ddpprof.topics.script_code import longest_line
from ddpprof.words import ranks_in_words

_LEAST_PAUSE_NS = 50_000_000
"""pauses shorter than this are not shown, because they would be shown as 0.0 s"""
_MEANS = "times are means over all steps, including evaluation and checkpoints"
_WORTH_A_ROW = 0.02
"""the slowest rank is named if its own time exceeds the median own time of the other ranks by at least this fraction"""
_ENDS = {
    "finished": "finished",
    "failed": "failed",
    "interrupted": "interrupted",
    "unwatched": "ddpprof stopped recording",
}
_SPECIAL = {
    "recorded": "ddpprof recorded it",
    "saved": "saved a file",
    "evaluated": "evaluated",
    "began an epoch": "began an epoch",
    "compiled": "compiled",
}
_SMALL_GROWTH = 0.02
_MOST_SLOWDOWNS = 10
_NOTABLE = 0.01
"""a slowdown is shown on the first screen if it costs at least this share of the run"""


def whole_run_line(run: WholeRun | None, step_ns: int | None) -> Iterator[Section]:
    """Yield a summary of the whole run for the first screen. `step_ns`: step time that the screen already shows."""
    if run is None or run.steps is None:
        return
    step = _at_first_and_last(run)
    if not step and run.steps.median_ns != step_ns:
        step = f"median step {in_ms(run.steps.median_ns)}"
    pauses = [one for one in run.pauses if one.kind is not PauseKind.RECORDING]
    paused_ns = sum(one.extra_ns for one in pauses)
    mean = f"mean step {in_ms(run.steps.mean_ns)}" if paused_ns > _MUCH * run.duration_ns else ""
    whole = f"Whole run: {count(run.num_steps, 'step')}, {duration(run.duration_ns)}"
    slower = [f"{count(len(run.slowdowns), 'slowdown')} (--section whole-run)"] if run.slowdowns else []
    much = [pause_sentence(one) for one in pauses if one.extra_ns >= _MUCH_OF_CHANCE * run.duration_ns]
    yield Line("; ".join(filter(None, (whole, mean, step, *much, *_growth(run), *slower))))
    largest = max(run.slowdowns, key=lambda one: _took_ns(one, run), default=None)
    if largest is not None and _took_ns(largest, run) >= _NOTABLE * run.duration_ns:
        which = "The slowdown" if len(run.slowdowns) == 1 else "The largest slowdown"
        yield Line(f"{which}: {slowdown_sentence(largest, len(run.ranks))}.", is_warning=True)


def _took_ns(one: StepSlowdown, run: WholeRun) -> int:
    """Return the total time lost to a slowdown, in ns."""
    last_step = run.num_steps - 1 if one.last_step is None else one.last_step
    return (one.after_ns - one.before_ns) * (last_step - one.first_step + 1)


def _at_first_and_last(run: WholeRun) -> str:
    """Return the median step time at the start and at the end of the run, excluding steps that have a `StepFlag`."""
    parts = run.usual_stretches
    if len(parts) < 2 or sum(one.num_steps for one in parts) < LEAST_STEPS * len(parts) / 2:
        return ""
    return f"median step {in_ms(parts[0].median_ns)} at the start, {in_ms(parts[-1].median_ns)} at the end"


def _growth(run: WholeRun) -> list[str]:
    """Return a phrase about the largest memory growth of a process, excluding ddpprof's own memory; empty if small."""
    grown = [
        (one.memory_growth_bytes, one.first_memory_bytes, one.rank)
        for one in run.ranks
        if one.first_memory_bytes and one.memory_growth_bytes is not None
    ]
    if not grown:
        return []
    gained, first, rank = max(grown)
    return [f"the memory of rank {rank} grew by {gained / 1e6:.0f} MB"] if gained > _SMALL_GROWTH * first else []


def whole_run_tables(run: WholeRun, report: ReportView) -> Iterable[Section]:
    if run.hang is not None:
        yield Line(" ".join(verdict_lines(run.hang, is_over=True)), is_warning=True)
    steps = run.steps
    if steps is None:
        yield Line(f"No step was recorded in {duration(run.duration_ns)}.")
    else:
        yield Line(
            f"{count(run.num_steps, 'step')} in {duration(run.duration_ns)}, recorded from step {run.first_step} on. "
            f"Median {in_ms(steps.median_ns)}, longest {in_ms(steps.longest_ns)}."
        )
        yield Line(_shares(run.ranks))
        yield from _events(run)
    if run.shown is not None:
        yield _stretch_table(run.shown, on_accelerator=report.on_accelerator)
        yield _longest_table(run.shown)
    yield _rank_table(run)


def _events(run: WholeRun) -> Iterator[Section]:
    """Yield lines about slowdowns, pauses and captures."""
    largest = sorted(run.slowdowns, key=lambda one: _took_ns(one, run), reverse=True)[:_MOST_SLOWDOWNS]
    for one in sorted(largest, key=lambda one: one.first_step):
        yield Line(f"Slowdown: {slowdown_sentence(one, len(run.ranks))}.", is_warning=True)
    if more := len(run.slowdowns) - len(largest):
        yield Line(f"{count(more, 'smaller slowdown')} {'is' if more == 1 else 'are'} in the JSON report.")
    for pause in (one for one in run.pauses if one.extra_ns >= _LEAST_PAUSE_NS):
        sentence = pause_sentence(pause)
        yield Line(f"Apart from slowdowns: {sentence}." if run.slowdowns else f"{sentence[0].upper()}{sentence[1:]}.")
    if run.captures:
        first, last = run.captures[0], run.captures[-1]
        first_name, last_name = (rundir.capture_directory(number) for number in (first, last))
        names = f"RUN/{first_name}" + ("" if first == last else f" to RUN/{last_name}")
        yield Line(f"{count(len(run.captures), 'capture')}, {names}. View one with: ddpprof report RUN/{first_name}")


def _shares(ranks: Sequence[RankWholeRun]) -> str:
    """Return a sentence with the share of each phase of a step, averaged over the ranks."""
    known = [one.whole for one in ranks if one.whole is not None]
    step_ns = mean_known(one.mean_ns for one in known)
    backward = "backward" if all(one.wait_ns is None for one in known) else "backward without waiting"
    parts = {
        "data": mean_known(one.data_ns for one in known),
        "forward": mean_known(one.forward_ns for one in known),
        backward: mean_known(one.backward_ns - (one.wait_ns or 0) for one in known),
        "optimizer": mean_known(one.optimizer_ns for one in known),
        "waiting for other ranks": mean_known(one.wait_ns for one in known),
    }
    shown = [f"{name} {percent(ns / step_ns if step_ns else None)}" for name, ns in parts.items() if ns is not None]
    return f"An average step: {', '.join(shown)}; the rest is the script's own code."


def _stretch_table(one: RankWholeRun, *, on_accelerator: bool) -> Table:
    first_ns = one.stretches[0].start_ns if one.stretches else 0
    return table_of(
        f"Steps over time, rank {one.rank}",
        one.stretches,
        {
            "after": lambda part: duration(part.start_ns - first_ns),
            "steps": lambda part: f"{part.first_step}-{part.first_step + part.num_steps - 1}",
            "median ms": lambda part: ms(part.median_ns),
            "longest ms": lambda part: ms(part.longest_ns),
            "data ms": lambda part: ms(part.data_ns),
            "forward ms": lambda part: ms(part.forward_ns),
            "backward ms": lambda part: ms(part.backward_ns),
            "optimizer ms": lambda part: ms(part.optimizer_ns),
            "waiting ms": lambda part: ms(part.wait_ns),
        },
        note=notes(
            "median: excludes recorded steps and steps with an evaluation or a checkpoint; phases: means; backward: "
            "includes all waiting",
            "all times are host times: the time to launch the device's work" if on_accelerator else "",
        ),
    )


def _longest_table(one: RankWholeRun) -> Table:
    first_ns = one.stretches[0].start_ns if one.stretches else 0
    return table_of(
        f"Longest recent steps, rank {one.rank}",
        one.longest,
        {
            "step": lambda step: str(step.step),
            "after": lambda step: duration(step.start_ns - first_ns),
            "ms": lambda step: ms(step.length_ns),
            "special": lambda step: ", ".join(_SPECIAL.get(word, clean(word)) for word in step.why) or ABSENT,
        },
        words=("special",),
    )


def _rank_table(run: WholeRun) -> Table:
    """Return a table of the ranks. If there are many, it shows unfinished and slow ranks first."""
    ranks = list(run.ranks)
    if len(ranks) > MAX_RANKS:
        ranks.sort(key=lambda one: (one.ended == "finished", -(one.whole.own_ns if one.whole else 0), one.rank))
    rows = tuple(_rank_row(one) for one in ranks[:MAX_RANKS])
    names = ("rank", "host", "steps", "step ms", "own ms", "data ms", "waiting ms", "MB first", "MB last", "state")
    return Table(
        "Ranks in the whole run",
        columns(*names, words=("host", "state")),
        rows,
        notes(_own_times(run.ranks), _MEANS, cut_off(len(run.ranks))),
    )


def _rank_row(one: RankWholeRun) -> tuple[str, ...]:
    whole = one.whole
    times = (whole.mean_ns, _own_ns(one), whole.data_ns, whole.wait_ns) if whole is not None else (None,) * 4
    memory = (ABSENT if num is None else f"{num / 1e6:.0f}" for num in (one.first_memory_bytes, one.last_memory_bytes))
    return (str(one.rank), clean(one.host, most=40), str(one.num_steps), *map(ms, times), *memory, _stands(one))


def _own_ns(one: RankWholeRun) -> int | None:
    """Return the rank's time per step without waiting for other ranks; ``None`` if its waiting time is unknown."""
    return None if one.whole is None or one.whole.wait_ns is None else one.whole.own_ns


def _stands(one: RankWholeRun) -> str:
    """Return how a rank ended or, if its end was not recorded, its last known activity."""
    if one.ended is not None:
        return _ENDS.get(one.ended, clean(one.ended))
    since = duration(one.last_ns - one.activity_since_ns)
    return f"no end recorded; last seen in step {one.num_steps}: {clean(one.activity)}, for {since}"


def _own_times(ranks: Sequence[RankWholeRun]) -> str:
    """Return a note that explains own time and says whether it differs between ranks."""
    own = {one.rank: own_ns for one in ranks if (own_ns := _own_ns(one)) is not None}
    if len(own) < 2:
        return "own: step time minus waits for other ranks"
    slowest = max(own, key=lambda rank: own[rank])
    usual_ns = median_known(ns for rank, ns in own.items() if rank != slowest) or 0
    if own[slowest] - usual_ns < _WORTH_A_ROW * usual_ns:
        return "own: step time minus waits for other ranks, about the same on all ranks"
    longer, others = (
        in_ms(own[slowest] - usual_ns),
        "the other rank" if len(own) == 2 else "the median of the other ranks",
    )
    return f"own: step time minus waits for other ranks; rank {slowest} takes {longer} longer than {others}"


_NS_PER_S = 1e9
_EVERY_RANK = "every rank"

_DOES = {
    StepPart.DATA: "waiting for batches",
    StepPart.FORWARD: "in forward",
    StepPart.BACKWARD: "in backward",
    StepPart.OPTIMIZER: "in the optimizer",
    StepPart.OTHER: "in the script's own code",
}

_PAUSES = {
    PauseKind.SAVE: "checkpoints",
    PauseKind.EVALUATION: "evaluation",
    PauseKind.EPOCH: "new epochs",
    PauseKind.COMPILATION: "compilation",
    PauseKind.UNKNOWN: "other long steps",
}


def slowdown_sentence(slowdown: StepSlowdown, world_size: int) -> str:
    """Return a sentence about a slowdown, with times of day in the local time zone."""
    return f"{_when(slowdown)} {_how_much(slowdown)}: {_why(slowdown, world_size)}"


def _when(slowdown: StepSlowdown) -> str:
    about = "about " if slowdown.is_coarse else ""
    if slowdown.last_step is None:
        return f"since {about}step {slowdown.first_step:,}{_clock(slowdown.began_ns)}, steps take"
    return (
        f"from {about}step {slowdown.first_step:,}{_clock(slowdown.began_ns)} to step {slowdown.last_step:,}"
        f"{_clock(slowdown.ended_ns)}, steps took"
    )


def _clock(at_ns: int | None) -> str:
    if at_ns is None:
        return ""
    return f" ({datetime.fromtimestamp(at_ns / _NS_PER_S).astimezone():%H:%M:%S})"


def _how_much(slowdown: StepSlowdown) -> str:
    before, after = _length(slowdown.before_ns), _length(slowdown.after_ns)
    was = before[0] if before[1] == after[1] else " ".join(before)
    return f"{slowdown.growth:.0%} longer, {was} → {' '.join(after)}"


def _length(ns: int) -> tuple[str, str]:
    """Return a duration with three significant digits, and its unit."""
    value, unit = (ns / 1e6, "ms") if ns < _NS_PER_S else (ns / _NS_PER_S, "s")
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}", unit


def _why(slowdown: StepSlowdown, world_size: int) -> str:
    ranks, part = slowdown.ranks, slowdown.part
    who, s = _who(ranks, world_size)
    verb, waits = f"take{s}", f"wait{s}"
    where = f" {_DOES[part]}" if part is not None else " in several parts of the step"
    late = ""
    if slowdown.first_gradient_later_ns is not None:
        gradient = "its first gradient comes" if len(ranks) == 1 else "their first gradients come"
        late = f", and {gradient} {' '.join(_length(slowdown.first_gradient_later_ns))} later"
    return {
        SlowdownCause.OWN_TIME: f"{who} {verb} longer{where}{late}",
        SlowdownCause.DATA: f"{who} {waits} longer for batches",
        SlowdownCause.LINK: "all ranks wait longer in collectives, and no rank's own work takes longer",
        SlowdownCause.EVERYBODY: f"{who} {verb} longer{where}",
        SlowdownCause.PROCESSOR: f"{who} {waits} for a free CPU core",
        SlowdownCause.THROTTLED: f"the CPU limit of the control group throttles {who}",
        SlowdownCause.CLOCK: f"the CPU cores of {who} run at a lower clock rate",
        SlowdownCause.THREAD: _waits_for_thread(ranks, world_size),
        SlowdownCause.PAGING: f"the memory of {who} is paged in from disk",
        SlowdownCause.UNKNOWN: "the cause is unknown",
    }[slowdown.cause]


def _waits_for_thread(ranks: Sequence[int], world_size: int) -> str:
    who, _ = _who(ranks, world_size)
    threads, processes = ("thread", "its process") if len(ranks) == 1 else ("threads", "their processes")
    return (
        f"the training {threads} of {who} wait{'s' if len(ranks) == 1 else ''} for another thread of {processes}, "
        "probably one that holds Python's GIL"
    )


def _who(ranks: Sequence[int], world_size: int) -> tuple[str, str]:
    """Return the ranks as the subject of a sentence, and the ending of its verb (``"s"`` or empty)."""
    if len(ranks) == world_size and world_size > 1:
        return _EVERY_RANK, "s"
    return ranks_in_words(ranks), "s" if len(ranks) == 1 else ""


def pause_sentence(pause: Pause) -> str:
    """Return a clause that says how long pauses of one kind took."""
    steps = "step" if pause.num_steps == 1 else "steps"
    took_s = pause.extra_ns / _NS_PER_S
    if pause.kind is PauseKind.RECORDING:
        recorded = f"the {pause.num_steps:,} {steps} that ddpprof recorded"
        return f"{recorded} took {took_s:.1f} s longer than the same number of other steps"
    grows = ""
    if pause.grows_ns is not None:
        first_s, last_s = (ns / _NS_PER_S for ns in pause.grows_ns)
        grows = f", {first_s:.1f} s in the first and {last_s:.1f} s in the last"
    return f"{_PAUSES[pause.kind]} took {took_s:.1f} s in {pause.num_steps:,} {steps}{grows}"


def long_steps(run: WholeRun, view: View) -> Iterator[Finding]:
    """Report evaluations, checkpoints or starts of epochs that take much of the run."""
    watched_steps = run.num_steps - run.first_step
    grows = growth_of(run.usual_stretches) is not None  # the later steps are longer than usual
    for pause in run.pauses:
        share = pause.extra_ns / run.duration_ns if run.duration_ns else 0
        may_be_chance = pause.kind is PauseKind.UNKNOWN and pause.every is None and pause.every_ns is None
        least = _MUCH_OF_CHANCE if may_be_chance else _MUCH
        is_left_out = pause.kind in (PauseKind.RECORDING, PauseKind.COMPILATION) or (may_be_chance and grows)
        if is_left_out or pause.num_steps < _FEW_PAUSES or share < least or watched_steps <= 0:
            continue
        advice, change = _shorter(pause, view)
        yield Finding(
            "long-steps",
            f"{_title(pause, len(run.ranks))} {percent(share)} of the run",
            f"{pause_sentence(pause)} of {watched_steps:,}, in addition to the usual duration of these steps",
            advice,
            pause.extra_ns // watched_steps,
            may_be_meant=pause.kind is not PauseKind.EPOCH,
            is_in_few_steps=True,
            is_left_out_of_trials=pause.kind is PauseKind.SAVE,
            change=change,
            numbers=only_known(
                extra_ns=pause.extra_ns, num_steps=pause.num_steps, num_steps_apart=watched_steps / pause.num_steps
            ),
        )


def _title(pause: Pause, num_ranks: int) -> str:
    if pause.kind is PauseKind.EVALUATION and 0 < len(pause.ranks) < num_ranks:
        return f"Evaluation on {ranks_in_words(pause.ranks)}, for which the other ranks wait, takes"
    if pause.kind is not PauseKind.UNKNOWN:
        return _TITLES[pause.kind]
    which = "Some steps take" if pause.every is None else f"One in {pause.every} steps takes"
    if pause.every_ns is not None:
        which = f"About every {pause.every_ns / 1e9:.2g} s, a step takes"
    if pause.part is None:
        return f"{which} much longer than other steps. The extra time is"
    (who, s), (verb, what) = _who(pause.ranks, num_ranks), _SPENDS[pause.part]
    return f"{which} much longer: {who} {verb}{s} {what}. The extra time is"


def _shorter(pause: Pause, view: View) -> tuple[str, Change | None]:
    """Return advice on making long steps shorter or less frequent, and the change if ddpprof can apply it."""
    if pause.kind is PauseKind.EPOCH and (change := _keep_workers(view)) is not None:
        return f"Keep the DataLoader's workers between epochs: {change.code}.", change
    if pause.kind is PauseKind.SAVE and len(pause.ranks) > 1:
        who = ranks_in_words(pause.ranks).capitalize()
        return (
            f"{who} save files. DDP keeps parameters equal, so rank 0 can save them alone. {_LESS_OFTEN[pause.kind]}",
            None,
        )
    if pause.kind is not PauseKind.UNKNOWN:
        return _LESS_OFTEN[pause.kind], None
    if pause.part is StepPart.DATA:
        return load_in_advance(view)
    if pause.every_ns is not None:
        return f"{_BY_TIMER} {_CAPTURE}", None
    line = longest_line(view)
    if line is not None:
        return (
            f"Do this work less often, or make it faster: {line.short} takes {in_ms(line.idle_ns)} in such a step.",
            None,
        )
    if pause.part is StepPart.OTHER and pause.ranks and len(pause.ranks) < (view.world_size or 1):
        look = f"Look for code that only {ranks_in_words(pause.ranks)} runs, such as evaluation, logging or saving."
        return f"{look} Run it less often or in the background, or share the work among all ranks. {_CAPTURE}", None
    return _CAPTURE, None


def _keep_workers(view: View) -> Change | None:
    """Return the change that keeps the DataLoader's workers between epochs; ``None`` if none are restarted."""
    loaders = training_loaders(one.loaders for one in view.records.values())
    restarted = next((one for one in loaders if one.num_workers and not one.persistent_workers), None)
    return None if restarted is None else loader_change(view.framework, restarted.num_workers, persistent=True)


@dataclass(frozen=True, slots=True)
class Growth:
    """Steps that become longer and longer."""

    first_ns: int
    last_ns: int
    """median step times in the first and in the last range of steps"""
    since_step: int | None
    """number of the step from which on steps grow, approximately; ``None`` if they grow from the start"""
    duration_ns: int
    """time from the first to the last range of steps"""
    num_steps: int
    part: str
    """part of the step that grows most, as text"""
    part_ns: int
    """how much longer this part takes in the last range than in the first, per step"""

    def sentence(self, until: str = "at the end") -> str:
        before, begin = "at the start", "Steps"
        if self.since_step is not None:
            before, begin = "before", f"Since about step {self.since_step:,}, steps"
        return (
            f"{begin} become longer and longer: {in_ms(self.first_ns)} {before}, {in_ms(self.last_ns)} {until}, "
            f"mostly because of {self.part} (+{in_ms(self.part_ns)})"
        )


def growth_of(stretches: Sequence[Stretch], *, from_start: bool = True) -> Growth | None:
    """Return how step times grow over all ranges of steps or, if they do not, over as many of the last as possible.

    Returns ``None`` if step times do not grow, or if there are too few steps. `from_start`: whether the first range is
    the start of the run.
    """
    for begin in range(len(stretches) - max(_LEAST_STRETCHES, len(stretches) // 2) + 1):
        last_ns = stretches[-1].median_ns
        is_longest = all(last_ns >= _MUCH_LONGER * one.median_ns for one in stretches[:begin])
        if is_longest and _do_grow(stretches[begin:]):
            return _growth_over(stretches[begin:], from_start=from_start and begin == 0)
    return None


def _do_grow(stretches: Sequence[Stretch]) -> bool:
    """Return True if step times rise over these ranges, by much and not by a single jump."""
    lengths_ns = [one.median_ns for one in stretches]
    if sum(one.num_steps for one in stretches) < LEAST_STEPS * 2 or min(lengths_ns) <= 0:
        return False
    jump = max(log(later / earlier) for earlier, later in zip(lengths_ns, lengths_ns[2:], strict=False))
    grew = log(lengths_ns[-1] / lengths_ns[0])
    if grew < log(_MUCH_LONGER) or jump > _MOST_AT_ONCE * grew:
        return False
    return share_of_rises(lengths_ns) >= _NEARLY_ALWAYS


def _growth_over(stretches: Sequence[Stretch], *, from_start: bool) -> Growth:
    first, last = stretches[0], stretches[-1]
    begins = max(at for at, one in enumerate(stretches) if one.median_ns <= _LITTLE_LONGER * first.median_ns) + 1
    at_start, at_end = _parts(first), _parts(last)
    part = max(at_end, key=lambda name: at_end[name] - at_start[name])
    return Growth(
        first_ns=first.median_ns,
        last_ns=last.median_ns,
        since_step=None if from_start and begins <= len(stretches) // 4 else stretches[begins].first_step,
        duration_ns=last.end_ns - first.start_ns,
        num_steps=sum(one.num_steps for one in stretches),
        part=part,
        part_ns=at_end[part] - at_start[part],
    )


def is_explained(growth: Growth, slowdowns: Iterable[StepSlowdown]) -> bool:
    """Return True if a slowdown that has not ended explains at least half of the growth, on a log scale.

    If the last steps are much longer than the median step of the slowdown, they grow also during the slowdown, unless
    ranks lack CPU time, which makes step times vary.
    """
    return any(
        one.last_step is None
        and (
            ((1 + one.growth) ** 2 >= growth.last_ns / growth.first_ns and growth.last_ns < _MUCH_LONGER * one.after_ns)
            or (one.cause in _BY_SYSTEM and one.growth >= _MUCH_LONGER - 1)
        )
        for one in slowdowns
    )


def growing_steps(run: WholeRun, view: View) -> Iterator[Finding]:
    """Report steps that become longer and longer over the run, because something may grow with the number of steps."""
    growth = growth_of(run.usual_stretches)
    if growth is None or run.steps is None or is_explained(growth, run.slowdowns):
        return
    gain_ns = max(0, run.steps.mean_ns - growth.first_ns)
    if not view.worth(gain_ns):
        return
    memory = "".join(f"; {one}" for one in _growth(run))
    yield Finding(
        "growing-steps",
        growth.sentence(),
        f"medians of ranges of steps, over {count(growth.num_steps, 'step')}{memory}",
        _LOADING_GROWS if growth.part == _DATA else _SOMETHING_GROWS,
        gain_ns,
        may_be_meant=True,
        numbers=only_known(first_ns=growth.first_ns, last_ns=growth.last_ns, num_steps=growth.num_steps),
    )


_LOADING_GROWS = (
    "Find why loading a batch takes longer, the more batches have been loaded: for example, a dataset that reads a "
    "file from its beginning up to the sample, or a cache that is searched or copied as a whole. The batches may also "
    "become larger by design."
)
_SOMETHING_GROWS = (
    "Find what grows with the number of steps: a list of losses or outputs that keep their graphs (append loss.item() "
    "or output.detach()), a queue or cache that is never trimmed, hooks that are registered again in each step, or a "
    "file that is read or written as a whole. The steps may also become longer by design, for example because the "
    "inputs grow."
)
_DATA = "waiting for data"


def _parts(stretch: Stretch) -> dict[str, int]:
    """Return the mean time of each part of a step, in ns. The names are for use in a sentence."""
    parts = {
        _DATA: stretch.data_ns,
        "the forward pass": stretch.forward_ns,
        "the backward pass": stretch.backward_ns,
        "the optimizer": stretch.optimizer_ns,
    }
    return {**parts, "other code of the script": stretch.mean_ns - sum(parts.values())}


_LEAST_STRETCHES = 5
_NEARLY_ALWAYS = 0.9
"""steps count as growing if, in at least this share of all pairs of stretches, the later stretch has the longer
steps
"""
_MUCH_LONGER = 1.2
"""growing steps are reported if a step at the end takes at least this many times as long as a step at the start"""
_LITTLE_LONGER = 1.1
"""growth has begun when steps take more than this many times as long as before"""
_MOST_AT_ONCE = 0.75
"""steps do not grow if more than this share of their growth, on a log scale, happens within three ranges of steps"""


def most_grown(ranks: Mapping[int, MemoryGrowth | None]) -> tuple[int, MemoryGrowth] | None:
    """Return the rank whose memory grows most, and its growth; ``None`` if no rank's memory grows steadily."""
    grown = [(rank, one) for rank, one in ranks.items() if one is not None]
    return max(grown, key=lambda one: one[1].last_bytes - one[1].first_bytes, default=None)


def memory_growth_line(rank: int, growth: MemoryGrowth, until: str = "at the end") -> str:
    return (
        f"The memory of rank {rank} grows steadily: {growth.first_bytes / 1e6:,.0f} MB early in the run, "
        f"{growth.last_bytes / 1e6:,.0f} MB {until}"
    )


def growing_memory(run: WholeRun, _view: View) -> Iterator[Finding]:
    """Report processes whose memory grows over the whole run, which may end in an out-of-memory error."""
    growths = {one.rank: one.steady_growth for one in run.ranks}
    most = most_grown(growths)
    if most is None:
        return
    rank, growth = most
    steady = sum(one is None for one in growths.values())
    others = f"; the memory of {count(steady, 'other rank')} does not grow" if steady else ""
    yield Finding(
        "growing-memory",
        memory_growth_line(rank, growth),
        f"resident memory of the process over {growth.duration_ns / 60e9:.1f} minutes, without the first tenth of them"
        f"{others}",
        KEEPS_TENSORS,
        None,
        may_be_meant=True,
        subject={"rank": rank},
        numbers=only_known(num_ranks=len(growths) - steady),
    )


KEEPS_TENSORS = (
    "Find what keeps the data of earlier steps: a list of losses or outputs that keep their graphs (append loss.item() "
    "or output.detach()), a queue or cache without a limit, or hooks that are registered again in each step. If the "
    "process reads memory-mapped files, their pages count, too, and need no fix."
)


def uneven_work(run: WholeRun, view: View) -> Iterator[Finding]:
    """Report ranks that take turns at being the slowest rank, for which the other ranks wait in most steps."""
    uneven, steps = run.uneven, run.steps
    if uneven is None or steps is None or (view.cores_per_rank or 1) < (view.num_threads or 1):
        return  # threads wait for cores, which takes different times on the ranks
    if growth_of(run.usual_stretches) is not None:
        return  # what grows takes different times on the ranks, too
    outside = [one for one in run.slowdowns if one.cause in _BY_SYSTEM]
    if any(_took_ns(one, run) >= _NOTABLE * run.duration_ns for one in outside):
        return  # ranks that wait for a core, or for another thread, do so in different steps
    share = uneven.lost_ns / steps.mean_ns
    larger = view[INPUT_SIZES] or 0.0
    least = _MUCH_UNEVEN if larger < _LARGER_INPUTS else _LITTLE_UNEVEN
    if share < least or uneven.most_often > _MOST_IN_TURN:
        return
    sizes = f"; the largest input of a step was {percent(larger)} larger than the ranks' mean input"
    yield Finding(
        "uneven-work",
        f"The ranks take turns at being the slowest: waiting for the slowest rank takes {percent(share)} of the step",
        f"in {uneven.num_steps:,} steps, the slowest rank worked {in_ms(uneven.lost_ns)} longer than the average of "
        f"all ranks, and no rank was the slowest in more than {percent(uneven.most_often)} of the "
        f"steps{sizes if larger >= _LARGER_INPUTS else ''}",
        "Give all ranks batches of about the same size in each step: sort or group the samples by length "
        "(Trainer: group_by_length=True) so that all ranks get similar lengths in a step, or limit the number of "
        "tokens per batch instead of the number of samples.",
        uneven.lost_ns,
        numbers=only_known(lost_ns=uneven.lost_ns, num_steps=uneven.num_steps),
    )


_BY_SYSTEM = (SlowdownCause.THROTTLED, SlowdownCause.PROCESSOR, SlowdownCause.THREAD, SlowdownCause.PAGING)
_MUCH_UNEVEN = 0.1
"""uneven work is reported if it costs at least this share of the step"""
_LITTLE_UNEVEN = 0.03
"""uneven work is reported if it costs at least this share of the step, and the ranks' inputs differ in size"""
_LARGER_INPUTS = 0.05
"""inputs differ in size if the largest input of a step exceeds the mean input by at least this fraction"""
_MOST_IN_TURN = 0.8
"""if one rank is the slowest in more than this share of the steps, it is a straggler, and ranks do not take turns"""

_BY_TIMER = (
    "These steps occur at regular times, not at regular step numbers. Look for a thread or another program with a "
    "timer, for example for monitoring, logging or saving. While another thread runs Python code, it holds the GIL, "
    "and training waits. Run this work less often, or in another process."
)
_CAPTURE = "To see what such a step does, profile it in the running job: ddpprof capture --when 'step>1.5x' RUN."
_SPENDS = {
    StepPart.DATA: ("wait", "for batches"),
    StepPart.FORWARD: ("take", "longer in the forward pass"),
    StepPart.BACKWARD: ("take", "longer in the backward pass"),
    StepPart.OPTIMIZER: ("take", "longer in the optimizer"),
    StepPart.OTHER: ("run", "other code of the script"),
}

_MUCH = 0.05
"""pauses and long steps are reported if they take at least this share of the run"""
_MUCH_OF_CHANCE = 0.2
"""like `_MUCH`, for irregular long steps without a known reason, which other work on the machine may cause"""
_FEW_PAUSES = 3
_TITLES = {
    PauseKind.EVALUATION: "Evaluation takes",
    PauseKind.SAVE: "Saving checkpoints takes",
    PauseKind.EPOCH: "Starting epochs takes",
}
_LESS_OFTEN = {
    PauseKind.EVALUATION: "Evaluate less often, or let every rank evaluate a part of the data, so that no rank waits.",
    PauseKind.EPOCH: "Use fewer and longer epochs, for example by repeating the dataset within an epoch.",
    PauseKind.SAVE: "Save less often, or in the background, for example with torch.distributed.checkpoint.async_save.",
}

WHOLE_RUN: Topic[Any, WholeRun] = Topic(
    "whole_run",
    sections={"whole-run": whole_run_tables},
    rules=(long_steps, growing_steps, growing_memory, uneven_work),
    of_run=lambda view: view.whole_run,
)
