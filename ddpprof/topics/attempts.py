"""Summarize each attempt of a job that torchrun restarted: its step time, how it ended, and what changed.

Step times are compared with those of the latest earlier attempt that has steps of the same recording mode. The mode
used is the first of ``off``, ``light`` and ``profiled`` that occurs in both attempts. The duration of a step is the
mean over ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Annotated, Any

from ddpprof.engine.numbers import HOST
from ddpprof.engine.topic import ReportView, Topic
from ddpprof.layout import ABSENT, Line, Section, Table, clean, columns, cut_off, ms, notes, optional, table_of
from ddpprof.model import Attempt, DdpModule, ProcessExit, StepMode
from ddpprof.statistics.between_runs import Shift, shift_between
from ddpprof.topics.failure import RankEnd, rank_end, with_exits
from ddpprof.words import ranks_in_words

_MODES = (StepMode.OFF, StepMode.LIGHT, StepMode.PROFILED)


@dataclass(frozen=True, slots=True)
class AttemptChange:
    """A difference from the previous attempt."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class AttemptSummary:
    """One attempt. Times are in ns."""

    attempt: int
    restarts: int | None
    """number of restarts after failures up to this attempt; restarts because nodes joined or left do not count"""
    after_first_ns: int | None
    """time from the start of the first attempt to the start of this attempt"""
    world_size: int | None
    hosts: tuple[str, ...]
    num_steps: int
    """number of finished training steps of the rank that is furthest ahead; if unknown, number of recorded steps"""
    step_ns: Annotated[int | None, HOST]
    """median duration of the steps whose mode is `step_mode`"""
    step_mode: StepMode | None
    ends: tuple[RankEnd, ...]
    changes: tuple[AttemptChange, ...]
    step_change: Shift | None
    """change of the step time compared with an earlier attempt, in ns; ``None`` if no earlier attempt has steps of the
    same mode
    """
    is_shown: bool
    """True if the other parts of the report describe this attempt"""


def summarize_attempts(attempts: Sequence[Attempt], exits: Sequence[ProcessExit] = ()) -> tuple[AttemptSummary, ...]:
    return tuple(_summarize(attempts, index, exits) for index in range(len(attempts)))


def _summarize(attempts: Sequence[Attempt], index: int, exits: Sequence[ProcessExit]) -> AttemptSummary:
    one, first = attempts[index], attempts[0]
    before = next((other for other in reversed(attempts[:index]) if other.records), None)
    mode = next((mode for mode in _MODES if _step_times(one, mode)), None)
    times = _step_times(one, mode) if mode is not None else []
    after = None
    if one.created_unix_s is not None and first.created_unix_s is not None:
        after = round((one.created_unix_s - first.created_unix_s) * 1e9)
    return AttemptSummary(
        attempt=one.number,
        restarts=one.restarts,
        after_first_ns=after,
        world_size=one.world_size,
        hosts=_hosts(one),
        num_steps=max((record.num_steps or len(record.steps) for record in one.records), default=0),
        step_ns=round(median(times)) if times else None,
        step_mode=mode,
        ends=with_exits([rank_end(record) for record in one.records], exits),
        changes=_changes(before, one) if before is not None and one.records else (),
        step_change=_step_change(attempts[:index], one),
        is_shown=one.is_shown,
    )


def _step_times(attempt: Attempt, mode: StepMode) -> list[float]:
    """Return the duration in ns of each step that was recorded in this mode, averaged over the ranks."""
    found: dict[int, list[int]] = {}
    for record in attempt.records:
        for step in record.steps:
            if step.mode is mode:
                found.setdefault(step.number, []).append(step.end_ns - step.start_ns)
    return [fmean(lengths) for lengths in found.values()]


def _step_change(before: Sequence[Attempt], one: Attempt) -> Shift | None:
    for other in reversed(before):
        for mode in _MODES:
            shift = shift_between(_step_times(other, mode), _step_times(one, mode))
            if shift is not None:
                return shift
    return None


def _hosts(attempt: Attempt) -> tuple[str, ...]:
    return tuple(sorted({record.host for record in attempt.records}))


def _changes(before: Attempt, after: Attempt) -> tuple[AttemptChange, ...]:
    old, new = _facts(before), _facts(after)
    names = dict.fromkeys((*old, *new))
    return tuple(
        AttemptChange(name, old.get(name, "-"), new.get(name, "-")) for name in names if old.get(name) != new.get(name)
    )


def _facts(attempt: Attempt) -> dict[str, str]:
    first = attempt.records[0]
    ranks = attempt.world_size if attempt.world_size is not None else first.world_size
    facts = {
        "ranks": str(ranks),
        "hosts": ", ".join(_hosts(attempt)),
        "backend": first.backend,
        "device": first.device,
        "torch": first.torch,
    }
    modules = next((record.modules for record in attempt.records if record.modules), ())
    for index, module in enumerate(modules):
        facts |= _module_facts(module, f"module {index}: " if len(modules) > 1 else "")
    return facts


def _module_facts(module: DdpModule, of: str) -> dict[str, str]:
    sizes = [sum(module.parameters[index].num_bytes for index in bucket) for bucket in module.buckets]
    return {
        f"{of}model": module.name,
        f"{of}parameters": str(len(module.parameters)),
        f"{of}buckets": f"{len(sizes)} ({', '.join(str(size) for size in sizes)} bytes)",
        **({f"{of}comm hook": module.comm_hook} if module.comm_hook else {}),
        **{f"{of}{name}": str(value) for name, value in module.settings.items()},
    }


_MAX_ATTEMPTS = 24
_MAX_ERRORS = 8


def attempt_table(found: Sequence[AttemptSummary], _report: ReportView) -> Iterable[Section]:
    attempts = found[-_MAX_ATTEMPTS:]
    shown = next((one.attempt for one in attempts if one.is_shown), None)
    yield table_of(
        "Attempts: torchrun restarted the ranks",
        attempts,
        {
            "attempt": lambda one: str(one.attempt),
            "after s": lambda one: ABSENT if one.after_first_ns is None else f"{one.after_first_ns / 1e9:.1f}",
            "ranks": lambda one: optional(one.world_size),
            "hosts": lambda one: str(len(one.hosts)),
            "steps": lambda one: str(one.num_steps),
            "step ms": lambda one: ms(one.step_ns),
            "change ms": _change_in_words,
            "ended": lambda one: how_it_ended(one.ends),
        },
        words=("ended",),
        note=notes(
            "after: time since the first attempt began",
            "change: difference in step time from the previous attempt, with its 95 % interval",
            cut_off(len(found), _MAX_ATTEMPTS, "attempts"),
        ),
    )
    rows = tuple(
        (str(one.attempt), clean(change.name, most=40), clean(change.before, most=60), clean(change.after, most=60))
        for one in attempts
        for change in one.changes
    )
    if rows:
        words = ("what", "before", "after")
        yield Table("What changed between attempts", columns("attempt", *words, words=words), rows)
    if shown is not None:
        yield Line(
            f"The rest of this report is about attempt {shown}, the last attempt with training steps.", is_aside=True
        )


def _change_in_words(one: AttemptSummary) -> str:
    change = one.step_change
    if change is None:
        return ABSENT
    interval = (
        "" if change.low is None or change.high is None else f" ({change.low / 1e6:+.2f} to {change.high / 1e6:+.2f})"
    )
    return f"{change.shift / 1e6:+.2f}{interval}"


def how_it_ended(ends: Sequence[RankEnd]) -> str:
    """Describe how an attempt ended. Ranks that raised an error come first, followed by killed ranks."""
    if not ends:
        return "before any rank started recording"
    if all(end.ended == "finished" and not end.failed for end in ends):
        return "finished"
    said = [end for end in ends if end.ended is not None]
    own = [end for end in said if end.failed and not end.is_consequence]
    lost = [end for end in said if end.failed and end.is_consequence]
    killed = [end for end in ends if end.ended is None]
    # torchrun kills the remaining ranks when one fails.
    parts = [
        f"rank {end.rank} {clean(end.error or f'ended with exit code {end.exit_code}', most=120)}"
        for end in own[:_MAX_ERRORS]
    ]
    if killed:
        parts.append(f"{_ranks(killed)} killed")
    if lost:
        parts.append(f"{_ranks(lost)} lost contact with the other ranks")
    rest = [end for end in said if not end.failed]
    parts += sorted({f"{_ranks([e for e in rest if e.ended == end.ended])} {clean(end.ended or '')}" for end in rest})
    return "; ".join(parts)


def _ranks(ends: Sequence[RankEnd]) -> str:
    return ranks_in_words([end.rank for end in ends])


ATTEMPTS: Topic[Any, tuple[AttemptSummary, ...]] = Topic("attempts", sections={"ending": attempt_table})
