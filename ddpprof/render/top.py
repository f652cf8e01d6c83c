"""The live view of a job for `ddpprof top`: a table of ranks in the chosen order, and current problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddpprof.layout import ABSENT, clean, count, duration, three_digits
from ddpprof.monitor.overview import Overview, RankNow, Standing, StepTimes
from ddpprof.topics.losses import nonfinite_finding
from ddpprof.words import ranks_in_words

_GLYPHS, _ASCII_GLYPHS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
_LEAST_ROWS = 3
_MOST_LINES = 4
"""maximum number of lines about slowdowns, and of lines about unreadable pulse files"""
_STYLES = {Standing.NO_SIGN: "bold red", Standing.GONE: "bold red", Standing.FAILED: "bold red", Standing.WAITS: "cyan"}


@dataclass(frozen=True, slots=True)
class Order:
    """A sort order of ranks."""

    name: str
    of: Callable[[RankNow], int | None]
    """function that returns the value by which ranks are sorted, in descending order"""
    troubled_first: bool = True


ORDERS: Mapping[str, Order] = {
    "o": Order("own time", lambda one: one.own_ns),
    "r": Order("rank", lambda one: -one.rank, troubled_first=False),
    "w": Order("waiting", lambda one: one.wait_ns),
    "d": Order("data", lambda one: one.data_ns),
}
"""key that the user presses → sort order"""


@dataclass(frozen=True, slots=True)
class Shown:
    """Options of the view, and data in addition to the overview."""

    order: Order = ORDERS["o"]
    slowdowns: Sequence[str] = ()
    hang: Sequence[str] = ()
    """the verdict on the hang, if the job hangs"""
    most_rows: int = 40
    keys: str = ""
    """help line that explains the keys; may be empty"""


def top_view(overview: Overview, shown: Shown, console: Console) -> RenderableType:
    """Return the whole view, with at most `most_rows` ranks."""
    before = [_job_line(overview), *_step_lines(overview.times, console)]
    after = [
        *(Text(clean(line, most=300), style="bold red") for line in shown.hang),
        *(Text(line, style="bold yellow") for line in overview.waiting),
        *(Text(line, style="bold red") for line in _loss_lines(overview)),
        *_some(shown.slowdowns, "slowdowns", "magenta"),
        *_some(overview.missing, "pulses", "yellow"),
        *([Text(shown.keys, style="dim")] if shown.keys else []),
    ]
    rows = in_order(overview.ranks, shown.order)
    kept = rows[: shown.most_rows]
    rest = [Text(_rest(rows[len(kept) :]), style="dim")] if len(kept) < len(rows) else []
    return Group(*before, Text(), _table(kept, overview), *rest, *([Text()] if after else []), *after)


def rows_that_fit(overview: Overview, shown: Shown, console: Console) -> int:
    """Return the number of ranks that fit on the console together with the other lines."""
    around = top_view(overview, replace(shown, most_rows=1), console)
    height = len(console.render_lines(around)) - 1
    return max(_LEAST_ROWS, console.height - height - 1)


def in_order(ranks: Sequence[RankNow], order: Order) -> list[RankNow]:
    """Return the ranks in this order, with ranks that have a problem first, unless the order says otherwise."""

    def key(one: RankNow) -> tuple[bool, float, int]:
        value, troubled = order.of(one), one.standing.is_trouble and order.troubled_first
        return (not troubled, float("inf") if value is None else -value, one.rank)

    return sorted(ranks, key=key)


def one_line(overview: Overview) -> str:
    """Return the overview in one line, for a log."""
    parts = [f"step {overview.num_steps:,}", _rate(overview.steps_per_s)]
    if (times := overview.times) is not None:
        parts.append(f"step median {_ms(times.median_ns)}, p99 {_ms(times.p99_ns)} ms")
    own_ns = [one.own_ns for one in overview.ranks if one.own_ns is not None]
    if own_ns and len(overview.ranks) > 1:
        parts.append(f"largest own time {_ms(max(own_ns))} ms")
    for standing in Standing:
        ranks = [one.rank for one in overview.ranks if one.standing is standing]
        if ranks and standing not in (Standing.TRAINING, Standing.WAITS):
            parts.append(f"{standing}: {ranks_in_words(ranks, _MOST_LINES)}")
    return clean(" · ".join([*filter(None, parts), *overview.waiting, *_loss_lines(overview)]), most=400)


def _loss_lines(overview: Overview) -> list[str]:
    """Return a line that says when and where the loss became NaN or infinite, if it did."""
    found = nonfinite_finding({one.rank: one.nonfinite for one in overview.ranks}, is_over=overview.is_over)
    return [] if found is None else [found.title]


def _job_line(overview: Overview) -> Text:
    hosts = sorted({one.host for one in overview.ranks})
    seen = len(overview.ranks)
    ranks = count(seen, "rank") if seen == overview.world_size else f"{seen} of {overview.world_size} ranks"
    on = f"on {clean(hosts[0], most=40)}" if len(hosts) == 1 else f"on {len(hosts)} hosts"
    running = f"{'ran' if overview.is_over else 'running'} {duration(overview.running_ns)}"
    parts = [clean(overview.run, most=60), f"{ranks} {on}", f"step {overview.num_steps:,}"]
    return Text(" · ".join([*parts, *filter(None, [_rate(overview.steps_per_s)]), running]), style="bold")


def _rate(steps_per_s: float | None) -> str:
    return "" if steps_per_s is None else f"{three_digits(steps_per_s)} steps/s"


def _step_lines(times: StepTimes | None, console: Console) -> list[Text]:
    if times is None:
        return [Text("no step has ended yet")]
    of = f"last {count(times.num_steps, 'step')} of rank {times.rank}"
    words = f"step {_ms(times.median_ns)} ms (p90 {_ms(times.p90_ns)}, p99 {_ms(times.p99_ns)}), {of}"
    known = [value for value in times.spark_ns if value is not None]
    glyphs = _GLYPHS if console.encoding.startswith("utf") else _ASCII_GLYPHS
    said = f" {duration(times.span_ns)}, up to {_ms(max(known))} ms"
    drawn = _spark(times.spark_ns, max(known, default=0), glyphs)[-max(1, console.width - len(said)) :]
    return [Text(words), Text(drawn, style="green").append(said)]


def _spark(values: Sequence[int | None], longest: int, glyphs: str) -> str:
    """Return one character per value, on a scale from 0 to `longest`."""
    last = len(glyphs) - 1
    return "".join(" " if value is None else glyphs[round(value * last / (longest or 1))] for value in values)


def _table(ranks: Sequence[RankNow], overview: Overview) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    several = len({one.host for one in overview.ranks}) > 1
    for name in ("rank", *(["host"] if several else []), "step", "activity", *_NUMBERS, "state"):
        is_text = name in ("host", "activity", "state")
        table.add_column(Text(name), justify="left" if is_text else "right", no_wrap=True)
    for one in ranks:
        cells = [str(one.rank), *([clean(one.host, most=20)] if several else []), f"{one.step}"]
        cells += [_activity(one), *(cell(one) for cell in _NUMBERS.values())]
        state = Text(_state(one), style=_STYLES.get(one.standing, ""))
        table.add_row(*map(Text, cells), state)
    return table


def _ms(ns: int | None) -> str:
    return ABSENT if ns is None else f"{ns / 1e6:,.1f}"


_NUMBERS: Mapping[str, Callable[[RankNow], str]] = {
    "step ms": lambda one: _ms(one.step_ns),
    "own ms": lambda one: _ms(one.own_ns),
    "data ms": lambda one: _ms(one.data_ns),
    "wait ms": lambda one: _ms(one.wait_ns),
    "MB": lambda one: ABSENT if one.memory_bytes is None else f"{one.memory_bytes / 1e6:.0f}",
}


def _activity(one: RankNow) -> str:
    return ABSENT if one.standing is Standing.ENDED else f"{one.activity} {duration(one.activity_age_ns)}"


def _state(one: RankNow) -> str:
    if one.standing is Standing.NO_SIGN:
        return f"no update for {duration(one.sign_age_ns)}"
    return str(one.standing)


def _rest(ranks: Sequence[RankNow]) -> str:
    own = sorted(one.own_ns for one in ranks if one.own_ns is not None)
    span = f": own {_ms(own[0])} - {_ms(own[-1])} ms" if own else ""
    return f"… and {count(len(ranks), 'more rank')}{span}"


def _some(lines: Sequence[str], what: str, style: str) -> list[Text]:
    shown = [Text(clean(line, most=300), style=style) for line in lines[:_MOST_LINES]]
    return [*shown, *([Text(f"{len(lines) - _MOST_LINES} more {what}")] if len(lines) > _MOST_LINES else [])]
