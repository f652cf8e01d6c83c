"""Attempts of a job that torchrun restarted, and what changed between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpprof.layout import ABSENT, Line, Section, Table, clean, columns, cut_off, ms, notes, optional, table_of
from ddpprof.report import Report
from ddpprof.topics.attempts import AttemptSummary
from ddpprof.topics.failure import RankEnd
from ddpprof.words import ranks_in_words

_MAX_ATTEMPTS = 24
_MAX_ERRORS = 8


def attempt_table(report: Report) -> Iterable[Section]:
    attempts = report.attempts[-_MAX_ATTEMPTS:]
    if not attempts:
        return
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
            "change ms": _step_change,
            "ended": lambda one: how_it_ended(one.ends),
        },
        words=("ended",),
        note=notes(
            "after: time since the first attempt; steps: recorded steps",
            "change: in the step since the previous attempt, with its 95 % interval",
            cut_off(len(report.attempts), _MAX_ATTEMPTS, "attempts"),
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
        yield Line(f"The rest of this report is about attempt {shown}, the last one with steps.", is_aside=True)


def _step_change(one: AttemptSummary) -> str:
    change = one.step_change
    if change is None:
        return ABSENT
    interval = (
        "" if change.low is None or change.high is None else f" ({change.low / 1e6:+.2f} to {change.high / 1e6:+.2f})"
    )
    return f"{change.shift / 1e6:+.2f}{interval}"


def how_it_ended(ends: Sequence[RankEnd]) -> str:
    """Say how an attempt ended, cause first: ranks with their own error, killed ranks, ranks that lost another one."""
    if not ends:
        return "before any rank recorded"
    if all(end.ended == "finished" and not end.failed for end in ends):
        return "finished"
    said = [end for end in ends if end.ended is not None]
    own = [end for end in said if end.failed and not end.is_consequence]
    lost = [end for end in said if end.failed and end.is_consequence]
    killed = [end for end in ends if end.ended is None]
    # If another rank failed first, torchrun killed these.
    parts = [
        f"rank {end.rank} {clean(end.error or f'ended with exit code {end.exit_code}', most=120)}"
        for end in own[:_MAX_ERRORS]
    ]
    if killed:
        parts.append(f"{_ranks(killed)} killed")
    if lost:
        parts.append(f"{_ranks(lost)} lost the others")
    rest = [end for end in said if not end.failed]
    parts += sorted({f"{_ranks([e for e in rest if e.ended == end.ended])} {clean(end.ended or '')}" for end in rest})
    return "; ".join(parts)


def _ranks(ends: Sequence[RankEnd]) -> str:
    return ranks_in_words([end.rank for end in ends])
