"""Ranks compared: who is late, who waits for whom, and what their clocks show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpprof.layout import (
    ABSENT,
    MAX_RANKS,
    Column,
    Line,
    Section,
    Table,
    clean,
    count,
    cut_off,
    ms,
    notes,
)
from ddpprof.measures.ranks.arrivals import RankWaiting
from ddpprof.measures.ranks.clock import HostClock
from ddpprof.measures.ranks.stragglers import Straggler
from ddpprof.report import Report
from ddpprof.report.tree import ClockReport

_MOST_GRADIENTS = 3


def straggler_table(report: Report) -> Iterable[Section]:
    stragglers = report.across.stragglers if report.across is not None else None
    if stragglers is None:
        return
    if not stragglers.stragglers:
        steps = count(stragglers.num_steps, "step")
        yield Line(f"No rank is slower than the others by more than chance ({steps}).", is_aside=True)
        return
    names = ("rank", "late", "in", "of it", "last in", "since step", "chance")
    yield Table(
        "Stragglers, extra ms per step relative to the other ranks (medians)",
        tuple(Column(name, is_number=name != "in") for name in names),
        tuple(map(_straggler, stragglers.stragglers[:MAX_RANKS])),
        notes(
            "late: in own time, without waiting for others; chance: probability of being this late by accident",
            cut_off(len(stragglers.stragglers)),
        ),
    )
    yield from _late_gradients(report)


def _late_gradients(report: Report) -> Iterable[Section]:
    rows = []
    for late in report.across.late_gradients if report.across is not None else ():
        for gradient in late.gradients[:_MOST_GRADIENTS]:
            before = gradient.previous_parameter
            after = ABSENT if before is None else clean(before)
            rows.append((str(late.rank), clean(gradient.parameter), ms(gradient.jump_ns), after))
    if rows:
        names = ("rank", "gradient that comes late", "ms", "after that of")
        columns = tuple(Column(name, is_number=name in ("rank", "ms")) for name in names)
        yield Table("", columns, tuple(rows))


def _straggler(one: Straggler) -> tuple[str, ...]:
    return (
        str(one.rank),
        ms(one.late_ns),
        "all parts" if one.part is None else one.part.value,
        ABSENT if one.part is None else ms(one.part_late_ns),
        f"{one.num_last} of {one.num_steps}",
        "first" if one.since_step is None else str(one.since_step),
        "< 0.1%" if one.p_value < 0.001 else f"{one.p_value:.1%}",
    )


def waiting_table(report: Report) -> Iterable[Section]:
    across = report.across
    if across is None or len(across.waiting) < 2:
        return
    rows = tuple(
        (
            str(one.rank),
            str(one.num_collectives),
            ABSENT if one.num_last is None else str(one.num_last),
            ms(one.waiting_per_step_ns),
        )
        for one in _least_waiting(across.waiting)
    )
    names = ("rank", "collectives", "arrives last", "waits per step")
    title = "Who waits for whom in collectives, ms (medians)"
    yield Table(title, tuple(map(Column, names)), rows, cut_off(len(across.waiting)))
    if across.clock is not None and len(across.clock.hosts) > 1:
        yield Line(_clocks(across.clock), is_aside=True)


def _least_waiting(waiting: Sequence[RankWaiting]) -> Sequence[RankWaiting]:
    """Return all ranks; of many, those that the others wait for."""
    if len(waiting) <= MAX_RANKS:
        return waiting
    return sorted(waiting, key=lambda one: one.waiting_per_step_ns or 0)[:MAX_RANKS]


def _clocks(clock: ClockReport) -> str:
    known = [host for host in clock.hosts if host.offset_ns is not None]
    words = [
        f"{clean(host.host, most=40)} {(host.offset_ns or 0) / 1e6:+.3f} ms"
        + (f", {host.drift_ppm:+.1f} ppm" if host.drift_ppm else "")
        + _uncertainty(host)
        for host in known[:MAX_RANKS]
    ]
    return f"Clocks of {count(len(clock.hosts), 'host')}, from collectives that end together: {'; '.join(words)}."


def _uncertainty(host: HostClock) -> str:
    if host.bound_ns is None:
        return " (its collectives contradict each other)"
    noise = "" if host.noise_ns is None else f"±{host.noise_ns / 1e6:.3f}, "
    return f" ({noise}at most ±{host.bound_ns / 1e6:.3f})" if host.bound_ns else ""
