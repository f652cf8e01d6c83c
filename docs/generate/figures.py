"""Draw the figures of the concept pages: python docs/generate/figures.py writes them to docs/concepts/.

Their background is white, so that they are legible on a dark page and in any viewer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parents[1] / "concepts"

WIDTH, LEFT, ROW, BAR = 760, 96, 46, 26
COLOURS = {
    "forward": "#9fc5e8",
    "backward": "#b6d7a8",
    "comm": "#f9cb9c",
    "exposed": "#ea9999",
    "optimizer": "#d5c6e8",
    "data": "#dddddd",
}
INK, FAINT = "#222222", "#666666"


@dataclass(frozen=True, slots=True)
class Bar:
    row: int
    start: float
    end: float
    label: str
    colour: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A dashed line from the top to the bottom, with a word above it."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Lanes:
    """Rows of bars over time, from 0 to 100."""

    title: str
    rows: Sequence[str]
    bars: Sequence[Bar]
    moments: Sequence[Moment] = ()

    def drawn(self) -> str:
        top = 34 if self.moments else 14
        height = top + ROW * len(self.rows) + 8
        parts = [_text(12, top + ROW * row + 18, name, "start") for row, name in enumerate(self.rows)]
        for moment in self.moments:
            x = _x(moment.at)
            parts.append(f'<path d="M{x:g} {top - 8}V{height - 8}" stroke="{FAINT}" stroke-dasharray="3 3"/>')
            parts.append(_text(x, top - 14, moment.label, "middle", FAINT))
        parts += [_bar(bar, top) for bar in self.bars]
        return _svg(self.title, height, parts)


def _x(at: float) -> float:
    return round(LEFT + at * (WIDTH - LEFT - 16) / 100, 1)


def _bar(bar: Bar, top: int) -> str:
    x, width, y = _x(bar.start), _x(bar.end) - _x(bar.start), top + ROW * bar.row
    box = f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{BAR}" rx="3" fill="{COLOURS[bar.colour]}"/>'
    return box + _text(x + width / 2, y + 18, bar.label, "middle")


def _text(x: float, y: float, words: str, anchor: str, colour: str = INK) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>' if words else ""


def _svg(title: str, height: int, parts: Sequence[str]) -> str:
    head = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"
 font-family="system-ui, sans-serif" font-size="13">
<title>{escape(title)}</title>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
<path d="M0 0L8 4L0 8z" fill="{FAINT}"/></marker></defs>
<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>"""
    return "\n".join([head, *(part for part in parts if part), "</svg>", ""])


def _arrow(start: tuple[float, float], end: tuple[float, float], gap: float) -> str:
    """An arrow between two circles, from edge to edge."""
    (x0, y0), (x1, y1) = start, end
    length = math.hypot(x1 - x0, y1 - y0)
    dx, dy = (x1 - x0) / length * gap, (y1 - y0) / length * gap
    line = f"M{x0 + dx:.1f} {y0 + dy:.1f}L{x1 - dx:.1f} {y1 - dy:.1f}"
    return f'<path d="{line}" stroke="{FAINT}" stroke-width="1.5" fill="none" marker-end="url(#tip)"/>'


def _ranks(places: Sequence[tuple[float, float]]) -> Iterator[str]:
    for rank, (x, y) in enumerate(places):
        yield f'<circle cx="{x:g}" cy="{y:g}" r="19" fill="{COLOURS["forward"]}"/>'
        yield _text(x, y + 5, str(rank), "middle")


def ring_and_tree() -> str:
    ring = [(190.0, 58.0), (280.0, 138.0), (190.0, 218.0), (100.0, 138.0)]
    tree = [(560.0, 58.0), (470.0, 138.0), (650.0, 138.0), (470.0, 218.0)]
    parts = [_text(190, 24, "ring: a quarter of the data to the next, six times", "middle")]
    parts += [_arrow(ring[rank], ring[(rank + 1) % 4], 23) for rank in range(4)]
    parts += _ranks(ring)
    parts.append(_text(560, 24, "tree: all of the data up, added, then down", "middle"))
    for child, parent in ((1, 0), (2, 0), (3, 1)):
        parts.append(_arrow(tree[child], tree[parent], 23).replace("marker-end", "marker-start", 1))
        parts.append(_arrow(tree[child], tree[parent], 23))
    parts += _ranks(tree)
    return _svg("Ring and tree: who sends to whom", 250, parts)


STEP = Lanes(
    "The anatomy of a step: computation above, communication below",
    ("computes", "in transit"),
    (
        Bar(0, 0, 6, "data", "data"),
        Bar(0, 6, 32, "forward", "forward"),
        Bar(0, 32, 78, "backward", "backward"),
        Bar(0, 78, 88, "exposed", "exposed"),
        Bar(0, 88, 100, "optimizer", "optimizer"),
        Bar(1, 46, 64, "bucket 0: hidden", "comm"),
        Bar(1, 72, 88, "bucket 1", "comm"),
    ),
    (Moment(32, "loss.backward()"), Moment(78, "last gradient")),
)
BUCKET = Lanes(
    "The life of a bucket: ready, launched, started, finished",
    ("gradients", "bucket 0", "bucket 1"),
    (
        Bar(0, 0, 34, "those of bucket 0", "backward"),
        Bar(0, 34, 62, "those of bucket 1", "backward"),
        Bar(1, 36, 78, "all-reduce", "comm"),
        Bar(2, 64, 78, "queued", "data"),
        Bar(2, 78, 96, "all-reduce", "comm"),
    ),
    (Moment(34, "0 ready"), Moment(62, "1 ready, launched"), Moment(78, "1 started"), Moment(96, "1 finished")),
)
OVERLAP = Lanes(
    "Overlap: hidden communication may still make the computation longer",
    ("no overlap", "", "ideal", "", "real", ""),
    (
        Bar(0, 0, 50, "backward", "backward"),
        Bar(0, 50, 90, "exposed", "exposed"),
        Bar(1, 50, 90, "all-reduce", "comm"),
        Bar(2, 0, 50, "backward", "backward"),
        Bar(2, 50, 58, "exp.", "exposed"),
        Bar(3, 18, 58, "all-reduce", "comm"),
        Bar(4, 0, 18, "backward", "backward"),
        Bar(4, 18, 64, "backward, slowed by communication", "backward"),
        Bar(4, 64, 72, "exp.", "exposed"),
        Bar(5, 18, 72, "all-reduce", "comm"),
    ),
)
STRAGGLER = Lanes(
    "A straggler: rank 1 computes longer, so rank 0 waits inside its all-reduce",
    ("rank 0", "", "rank 1", ""),
    (
        Bar(0, 0, 40, "backward", "backward"),
        Bar(0, 40, 88, "exposed", "exposed"),
        Bar(1, 40, 70, "waiting", "data"),
        Bar(1, 70, 88, "transfer", "comm"),
        Bar(2, 0, 70, "backward", "backward"),
        Bar(2, 70, 88, "exposed", "exposed"),
        Bar(3, 70, 88, "transfer", "comm"),
    ),
    (Moment(40, "rank 0 launches"), Moment(70, "rank 1 launches")),
)


def figures() -> dict[str, str]:
    """Return the drawings by file name."""
    lanes = {"step": STEP, "buckets": BUCKET, "overlap": OVERLAP, "stragglers": STRAGGLER}
    return {
        **{f"{name}.svg": drawing.drawn() for name, drawing in lanes.items()},
        "ring-and-tree.svg": ring_and_tree(),
    }


if __name__ == "__main__":
    for name, drawing in figures().items():
        (FOLDER / name).write_text(drawing, encoding="utf-8")
