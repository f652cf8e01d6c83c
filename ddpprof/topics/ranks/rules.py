"""Rules that find a single rank for which all other ranks wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, median, stdev

from ddpprof.engine.finding import Finding, hoped_for, only_known
from ddpprof.engine.topic import Topic, View
from ddpprof.layout import in_ms
from ddpprof.statistics.paired_ratio import student_quantile
from ddpprof.topics.ranks.stragglers import LateGradient, OwnTimePart, Straggler
from ddpprof.topics.script_code import slowest_line_of
from ddpprof.words import ranks_in_words


@dataclass(frozen=True, slots=True)
class Lateness:
    """The late ranks, in the recorded steps and over the whole run."""

    stragglers: tuple[Straggler, ...] = ()
    steps_tell_stragglers: bool = False
    """True if enough steps were recorded to find stragglers in these steps"""
    late_gradients: Mapping[int, tuple[LateGradient, ...]] = field(default_factory=dict)
    """rank → the gradients that become ready late in its backward pass"""
    own_ns: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """rank → median own time per step, in each of ten equal parts of the whole run"""
    mean_own_ns: Mapping[int, int] = field(default_factory=dict)
    """rank → mean own time per step over the whole run, including evaluations and checkpoints"""
    busy_shares: Mapping[int, float] = field(default_factory=dict)
    """rank → time for which its threads ran, or waited for a core, as a share of the whole run"""
    watched_ns: int = 0
    """duration of the whole run, for which `own_ns` is known"""
    watched_steps: int = 0
    """number of steps in the whole run"""


def straggler(lateness: Lateness, view: View) -> Iterator[Finding]:
    """Report the slowest rank, for which the other ranks wait. The gain is limited by the next slowest rank."""
    if not lateness.stragglers:
        return
    slowest, others = lateness.stragglers[0], lateness.stragglers[1:]
    where = "" if slowest.part is None else f" {_WHERE[slowest.part]}"
    only = (
        "" if slowest.part_late_ns >= _NEARLY_ALL * slowest.late_ns else f", {in_ms(slowest.part_late_ns)} of it there"
    )
    since = "" if slowest.since_step is None else f" since step {slowest.since_step}"
    evidence = [
        f"it is late by {in_ms(slowest.late_ns)} per step{only if where else ''}",
        f"it arrived last in {slowest.num_last} of {slowest.num_steps} steps{since}",
    ]
    gradients = lateness.late_gradients.get(slowest.rank, ())
    if gradients:
        after = gradients[0].previous_parameter
        evidence.append(
            f"the gradient of {gradients[0].parameter} is ready {in_ms(gradients[0].jump_ns)} late"
            + (f", after the gradient of {after}" if after else "")
        )
    if others:
        evidence.append(f"also late, but by less: {ranks_in_words([other.rank for other in others])}")
    lasted_ns = slowest.num_steps * (view.step_ns or 0)
    late_all_along_ns = _late_all_along_ns(lateness)
    is_short = max(lasted_ns, lateness.watched_ns if late_all_along_ns else 0) < _LONGER_THAN_OTHER_WORK_NS
    slept_ns = _slept_ns(lateness, view)
    may_be_other_work = view.shares_cores and is_short and not _is_out_of_proportion(lateness, view) and not slept_ns
    if late_all_along_ns:
        evidence.append(
            f"over the whole run ({lateness.watched_ns / 1e9:.0f} s) it was late by {in_ms(late_all_along_ns)} per step"
        )
    if slept_ns:
        evidence.append(
            f"for about {in_ms(slept_ns)} of this time, its training thread neither ran nor waited for a core"
        )
    evidence += _line_of(slowest.rank, slowest.late_ns, view)
    longer = f"--no-profiler --steps {_steps_to_tell(view.step_ns)}" if may_be_other_work else None
    if longer is not None:
        evidence.append(
            f"these steps lasted only {lasted_ns / 1e9:.1f} s, so other work on its cores may be the cause; to find "
            f"out, record at least {_LONGER_THAN_OTHER_WORK_NS / 1e9:.0f} s of steps: ddpprof trace {longer}"
        )
    late_ns = max(0, slowest.late_ns - (others[0].late_ns if others else 0))
    gain_ns, predicted = hoped_for(late_ns, view.predictions.without_straggler)
    yield Finding(
        "straggler",
        f"All ranks wait for rank {slowest.rank}{where}",
        "; ".join(evidence),
        _advice(view, slowest.part, sleeps=slept_ns > 0),
        gain_ns,
        predicted=predicted,
        is_noise=may_be_other_work,
        longer_recording=longer,
        cause_ns=late_ns,
        subject={"rank": slowest.rank},
        numbers=only_known(
            late_ns=slowest.late_ns,
            part_late_ns=slowest.part_late_ns,
            num_last=slowest.num_last,
            num_steps=slowest.num_steps,
        ),
    )


def slow_rank(lateness: Lateness, view: View) -> Iterator[Finding]:
    """Report the rank with the longest own time in the whole run, if too few steps were recorded for `straggler`."""
    own_ns = lateness.own_ns
    long_enough = lateness.watched_ns >= _LONGER_THAN_OTHER_WORK_NS and lateness.watched_steps >= _STEPS_OF_WHOLE_RUN
    if lateness.stragglers or lateness.steps_tell_stragglers or not long_enough or len(own_ns) < 2:
        return
    next_slowest, slowest = sorted(own_ns, key=lambda rank: fmean(own_ns[rank]))[-2:]
    means_ns = lateness.mean_own_ns
    if means_ns and max(means_ns, key=lambda rank: means_ns[rank]) != slowest:
        return  # another rank evaluates or saves for longer
    late_ns = round(fmean(own_ns[slowest]) - fmean(own_ns[next_slowest]))
    least = _LATE_ON_SHARED_CORES if view.shares_cores else _LATE_IN_WHOLE_RUN
    if late_ns >= least * fmean(own_ns[slowest]) and _is_slower_throughout(lateness, slowest, next_slowest):
        others = "the other rank" if len(own_ns) == 2 else "any other rank"
        line = _line_of(slowest, late_ns, view)
        yield Finding(
            "slow-rank",
            f"All ranks wait for rank {slowest}",
            f"over the whole run ({lateness.watched_ns / 1e9:.0f} s, {lateness.watched_steps} steps) its own time "
            f"was {in_ms(late_ns)} per step longer than that of {others}{''.join(f'; {one}' for one in line)}",
            _advice(view, OwnTimePart.OTHER if line else None, sleeps=False),
            late_ns,
            subject={"rank": slowest},
            numbers=only_known(late_ns=late_ns, num_steps=lateness.watched_steps, watched_ns=lateness.watched_ns),
        )


def _line_of(rank: int, late_ns: int, view: View) -> list[str]:
    """Return a sentence that names the line of the script at which the rank loses much of the time, if there is one."""
    line = slowest_line_of(rank, view)
    if line is None or line[1] < _WORTH_NAMING * late_ns:
        return []
    return [f"{line[0]} takes {in_ms(line[1])} more per step on this rank than on any other rank"]


def _is_slower_throughout(lateness: Lateness, slowest: int, next_slowest: int) -> bool:
    """Return whether the difference between the two ranks is significant at 1 % (Student's t-test)."""
    slow_ns, other_ns = lateness.own_ns[slowest], lateness.own_ns[next_slowest]
    if len(slow_ns) != len(other_ns) or len(slow_ns) < _FEW_STRETCHES:
        return False
    late_ns = [slow - other for slow, other in zip(slow_ns, other_ns, strict=True)]
    quantile = student_quantile(_CHANCE / len(lateness.own_ns), len(late_ns) - 1)
    return bool(fmean(late_ns) > quantile * stdev(late_ns) / sqrt(len(late_ns)))


_WORTH_NAMING = 0.25
"""a line of the script is named if it explains at least this share of the lateness"""
_CHANCE = 0.01
"""significance level of the test of whether a rank is late; it is divided by the number of ranks"""
_FEW_STRETCHES = 5
"""the test needs own times for at least this many parts of the whole run"""
_LATE_IN_WHOLE_RUN = 0.05
"""a rank that is late only according to the whole run is reported if it is late by this share of its own time"""
_LATE_ON_SHARED_CORES = 0.1
"""like `_LATE_IN_WHOLE_RUN`, for ranks that share cores, on which other work may delay one rank more than another"""
_STEPS_OF_WHOLE_RUN = 10
"""ranks are compared over the whole run only if it has at least this many steps"""
_LONGER_THAN_OTHER_WORK_NS = 10_000_000_000
"""within a period shorter than this, in ns, other work on the cores may make a rank late in every step"""
_BY_OTHER_WORK = 5
"""other work on a rank's cores slows the rank by this factor at most"""
_TIME_SLICES_NS = 10_000_000
"""other work on the cores of a rank with little work of its own delays the rank by at most this time, in ns per step"""


def _is_out_of_proportion(lateness: Lateness, view: View) -> bool:
    """Return whether the rank was slow from the first step on, and slower than other work on its cores can explain."""
    slowest = lateness.stragglers[0]
    if slowest.since_step is not None:
        return False
    own_ns = {rank: median(stretches_ns) for rank, stretches_ns in lateness.own_ns.items()}
    of_slowest_ns = own_ns.pop(slowest.rank, 0)
    next_ns = max(own_ns.values(), default=of_slowest_ns)
    if of_slowest_ns > max(_BY_OTHER_WORK * next_ns, next_ns + _TIME_SLICES_NS):
        return True
    return slowest.late_ns > (1 - 1 / _BY_OTHER_WORK) * (view.step_ns or 0)


def _slept_ns(lateness: Lateness, view: View) -> int:
    """Return how long the slowest rank slept while other ranks waited, in ns per step; 0 if it did not, or if unknown.

    This is the rank's lateness minus the time, beyond that of other ranks, in which its threads ran or waited for a
    core. The result is 0 if the rank is late because of its DataLoader, whose workers may be delayed by other work.
    """
    slowest = lateness.stragglers[0]
    if slowest.part is OwnTimePart.DATA:
        return 0
    others = [share for rank, share in lateness.busy_shares.items() if rank != slowest.rank]
    if not view.shares_cores or slowest.rank not in lateness.busy_shares or not others or not view.step_ns:
        return 0
    longer_ns = (lateness.busy_shares[slowest.rank] - median(others)) * view.step_ns
    slept_ns = round(slowest.late_ns - max(0.0, longer_ns))
    least_ns = min(_SLEEPS * view.step_ns, _SLEEPS_LONG_NS)
    return slept_ns if slept_ns >= max(slowest.late_ns / 2, least_ns) else 0


def _late_all_along_ns(lateness: Lateness) -> int:
    """Return the slowest rank's lateness over the whole run, in ns per step, or 0 if it is below half of `late_ns`."""
    slowest = lateness.stragglers[0]
    others_ns = [median(own_ns) for rank, own_ns in lateness.own_ns.items() if rank != slowest.rank]
    if slowest.rank not in lateness.own_ns or not others_ns:
        return 0
    late_ns = round(median(lateness.own_ns[slowest.rank]) - median(others_ns))
    return late_ns if late_ns >= slowest.late_ns / 2 else 0


def _steps_to_tell(step_ns: int | None) -> int:
    """Return a round number of steps that together take longer than other work on the machine usually lasts."""
    least = _LONGER_THAN_OTHER_WORK_NS // max(step_ns or 0, 1)
    tens = 10
    while 5 * tens < least:
        tens *= 10
    return next(number for number in (tens, 2 * tens, 5 * tens) if number >= least)


def _advice(view: View, part: OwnTimePart | None, *, sleeps: bool) -> str:
    if part in (OwnTimePart.DATA, OwnTimePart.OTHER):
        return _ADVICE[part]
    if sleeps:
        return _SLEEPING
    return _ON_CPU if view.device == "cpu" else _ON_ACCELERATOR


_NEARLY_ALL = 0.9
_SLEEPS = 0.1
"""a straggler counts as sleeping if it sleeps for at least this share of the step or for `_SLEEPS_LONG_NS`, whichever
is shorter
"""
_SLEEPS_LONG_NS = 30_000_000
"""sleeping time in ns per step that is always enough to count as sleeping"""

_WHERE = {
    OwnTimePart.DATA: "to get its data",
    OwnTimePart.FORWARD: "in its forward pass",
    OwnTimePart.BACKWARD: "in its backward pass",
    OwnTimePart.OPTIMIZER: "in its optimizer step",
    OwnTimePart.OTHER: "between its steps",
}

_ADVICE = {
    OwnTimePart.DATA: "Check this rank's input: its storage, its DataLoader workers, and whether its shard has "
    "larger samples.",
    OwnTimePart.OTHER: "Check for work in the loop that only this rank does: logging, metrics, checkpoints or "
    "evaluation.",
}
_ON_ACCELERATOR = (
    "Check the device of this rank: its clocks and temperature (nvidia-smi -q -d CLOCK,TEMPERATURE,PERFORMANCE), and "
    "other processes that use it. Also check the rank's CPU cores, and whether its batches are larger."
)
_ON_CPU = (
    "Check whether this rank's batches are larger, for example because they have longer sequences. Also check whether "
    "its code waits for a lock, a disk or the network, and check its CPU cores: their clock rate, and other processes "
    "on them."
)
_SLEEPING = (
    "Check what this rank waits for but the other ranks do not: a lock, a disk, the network or a sleep. While the job "
    "runs, py-spy dump --pid PID or ddpprof diagnose RUN --dump-stacks shows the line at which the rank waits."
)

LATENESS: Topic[None, Lateness] = Topic("lateness", rules=(straggler, slow_rank))
