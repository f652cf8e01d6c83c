"""Ranks compared: which ranks are late, which ranks wait for which, and what their clocks show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    ms,
    notes,
    optional,
    table_of,
)
from ddpprof.report import Report
from ddpprof.topics.ranks.arrivals import RankWaiting
from ddpprof.topics.ranks.clock import CommonClock, HostClock

_MOST_GRADIENTS = 3
_MOSTLY = 0.8
"""share of the collectives above which a rank that arrives last needs an explanation"""


def straggler_table(report: Report) -> Iterable[Section]:
    stragglers = report.across.stragglers if report.across is not None else None
    if stragglers is None:
        return
    if not stragglers.stragglers:
        steps = count(stragglers.num_steps, "step")
        yield Line(f"No rank is significantly slower than the others ({steps}){_yet_last(report)}.", is_aside=True)
        return
    yield table_of(
        "Stragglers, extra ms per step relative to the other ranks (medians)",
        stragglers.stragglers[:MAX_RANKS],
        {
            "rank": lambda one: str(one.rank),
            "late": lambda one: ms(one.late_ns),
            "in": lambda one: "all parts" if one.part is None else one.part.value,
            "of it": lambda one: ABSENT if one.part is None else ms(one.part_late_ns),
            "last in": lambda one: f"{one.num_last} of {one.num_steps}",
            "since step": lambda one: "first" if one.since_step is None else str(one.since_step),
            "chance": lambda one: "< 0.1%" if one.p_value < 0.001 else f"{one.p_value:.1%}",
        },
        words=("in",),
        note=notes(
            "late: in own time, excluding waits for others; chance: probability of this lateness by chance",
            cut_off(len(stragglers.stragglers)),
        ),
    )
    yield from _late_gradients(report)


def _yet_last(report: Report) -> str:
    """If a rank arrives last in most collectives although all ranks are equally fast, return the explanation."""
    waiting = report.across.waiting if report.across is not None else ()
    last = max((one for one in waiting if one.num_last is not None), key=lambda one: one.num_last or 0, default=None)
    if last is None or not last.num_last or last.num_last <= _MOSTLY * last.num_collectives:
        return ""
    waits_ns = max(one.waiting_per_step_ns or 0 for one in waiting)
    return (
        f", although rank {last.rank} arrives last in {last.num_last} of {last.num_collectives} collectives and "
        f"other ranks wait up to {ms(waits_ns)} ms per step: its own work takes longer in too few "
        "steps to rule out chance. Record more steps (--steps 20)"
    )


def _late_gradients(report: Report) -> Iterable[Section]:
    rows = []
    for late in report.across.late_gradients if report.across is not None else ():
        for gradient in late.gradients[:_MOST_GRADIENTS]:
            before = gradient.previous_parameter
            after = ABSENT if before is None else clean(before)
            rows.append((str(late.rank), clean(gradient.parameter), ms(gradient.jump_ns), after))
    if rows:
        words = ("gradient that comes late", "after that of")
        yield Table("", columns("rank", words[0], "ms", words[1], words=words), tuple(rows))


def waiting_table(report: Report) -> Iterable[Section]:
    across = report.across
    if across is None or len(across.waiting) < 2:
        return
    yield table_of(
        "Who waits for whom in collectives, ms (medians)",
        _least_waiting(across.waiting),
        {
            "rank": lambda one: str(one.rank),
            "collectives": lambda one: str(one.num_collectives),
            "arrives last": lambda one: optional(one.num_last),
            "waits per step": lambda one: ms(one.waiting_per_step_ns),
        },
        note=cut_off(len(across.waiting)),
    )
    if across.clock is not None and len(across.clock.hosts) > 1:
        yield Line(_clocks(across.clock), is_aside=True)


def _least_waiting(waiting: Sequence[RankWaiting]) -> Sequence[RankWaiting]:
    """Return all ranks or, if there are many, those that the others wait for."""
    if len(waiting) <= MAX_RANKS:
        return waiting
    return sorted(waiting, key=lambda one: one.waiting_per_step_ns or 0)[:MAX_RANKS]


def _clocks(clock: CommonClock) -> str:
    known = [host for host in clock.hosts if host.offset_ns is not None]
    words = [
        f"{clean(host.host, most=40)} {(host.offset_ns or 0) / 1e6:+.3f} ms"
        + (f", {host.drift_ppm:+.1f} ppm" if host.drift_ppm else "")
        + _uncertainty(host)
        for host in known[:MAX_RANKS]
    ]
    return (
        f"Clock offsets of {count(len(clock.hosts), 'host')}, from collectives that end together: {'; '.join(words)}."
    )


def _uncertainty(host: HostClock) -> str:
    if host.bound_ns is None:
        return " (its collectives contradict each other)"
    noise = "" if host.noise_ns is None else f"±{host.noise_ns / 1e6:.3f}, "
    return f" ({noise}at most ±{host.bound_ns / 1e6:.3f})" if host.bound_ns else ""
