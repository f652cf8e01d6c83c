"""Render sections in a terminal with rich, or as plain text if the output is a pipe or ``NO_COLOR`` is set."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from math import ceil
from typing import TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from ddpprof.layout import (
    PARTS,
    Bars,
    Commands,
    Definition,
    FindingList,
    Lane,
    Lanes,
    Line,
    Remarks,
    Section,
    Table,
)

_STYLES = ("blue", "cyan", "bold red", "green", "yellow", "dim")
_GLYPHS, _ASCII_GLYPHS = "█▓▒#=·", "+*!#=."
"""characters that distinguish the parts of a bar if there is no color"""
_RECORDED = (0, 1, 3, 4)
"""for each part that light recording measures, the index of its style in `PARTS`"""
_TICK = 10
"""minimum number of columns between two tick labels of an axis"""
_JOINER = "\N{NO-BREAK SPACE}"
"""character that prevents a line break; it is printed as an ordinary space"""


def console_on(file: TextIO, width: int | None = None) -> Console:
    """Return a console with colors according to ``--color`` or, if that is not given, ``NO_COLOR``."""
    wanted = os.environ.get(_COLOR, "auto")
    is_plain = wanted == "never" or (wanted == "auto" and bool(os.environ.get("NO_COLOR")))
    return Console(
        file=file,
        highlight=False,
        width=width,
        color_system=None if is_plain else "standard" if wanted == "always" else "auto",  # no bold and dim either
        force_terminal=True if wanted == "always" else None,
    )


_COLOR = "DDPPROF_COLOR"


def render_terminal(sections: Iterable[Section], file: TextIO, width: int | None = None) -> None:
    """Print the sections to `file`."""
    console = console_on(file, width)
    with console.capture() as captured:
        for section in sections:
            _SECTION[type(section)](console, section)
    file.writelines(f"{line.rstrip()}\n" for line in captured.get().replace(_JOINER, " ").splitlines())


def _line(console: Console, section: Section) -> None:
    assert isinstance(section, Line)
    if section.is_aside or section.is_headline:
        console.print()
    style = "yellow" if section.is_warning else "dim" if section.is_aside else "bold" if section.is_headline else ""
    console.print(Text(section.text, style=style))


def _glyph(console: Console, parts: tuple[str, ...], index: int) -> tuple[str, str]:
    glyphs = _GLYPHS if console.encoding.startswith("utf") else _ASCII_GLYPHS
    index = index if parts == PARTS else _RECORDED[index]
    return glyphs[index], _STYLES[index]


def _bars(console: Console, section: Section) -> None:
    assert isinstance(section, Bars)
    console.print()
    console.print(Text(section.title, style="bold"))
    longest = max(bar.total_ns for bar in section.bars) or 1
    label = max(len(bar.label) for bar in section.bars) + len("rank ")
    room = max(20, min(console.width, 200) - label - 2)
    for bar in section.bars:
        text = Text(f"rank {bar.label}".ljust(label) + " ")
        drawn = done = 0
        for index, part in enumerate(bar.parts_ns):
            done += part
            until = round(room * done / longest)
            glyph, style = _glyph(console, section.parts, index)
            text.append(glyph * (until - drawn), style=style)
            drawn = until
        console.print(text, overflow="crop", no_wrap=True)
    _legend(console, section.parts, section.parts)


def _legend(console: Console, parts: tuple[str, ...], drawn: Container[str]) -> None:
    """Print the character of each part that is drawn."""
    legend = Text()
    for index, part in enumerate(parts):
        if part in drawn:
            glyph, style = _glyph(console, parts, index)
            legend.append(glyph, style=style)
            legend.append(f" {part}".replace(" ", _JOINER) + "  ")
    console.print(legend)


def _lanes(console: Console, section: Section) -> None:
    assert isinstance(section, Lanes)
    console.print()
    console.print(Text(section.title, style="bold"))
    label = max(len(lane.label) for lane in section.lanes) + 1
    room = max(20, min(console.width, 200) - label - 1)
    console.print(Text(" " * label + _axis(section.length_ns, room)), overflow="crop", no_wrap=True)
    for lane in section.lanes:
        text = Text(lane.label.ljust(label))
        for what in _cells(lane, section.length_ns, room):
            if what in section.parts:
                text.append(*_glyph(console, section.parts, section.parts.index(what)))
            else:
                text.append(what)
        console.print(text, overflow="crop", no_wrap=True)
    _legend(console, section.parts, {span.what for lane in section.lanes for span in lane.spans})
    if section.note:
        console.print(Text(section.note, style="dim"))


def _cells(lane: Lane, length_ns: int, room: int) -> list[str]:
    """Return, for each column, the label of the longest span, or a space if there is no span."""
    times: list[dict[str, float]] = [{} for _ in range(room)]
    for span in lane.spans:
        begin, end = span.start_ns * room / length_ns, span.end_ns * room / length_ns
        for cell in range(int(begin), min(ceil(end), room)):
            shared = min(end, cell + 1) - max(begin, cell)
            times[cell][span.what] = times[cell].get(span.what, 0) + shared
    return [max(cell, key=lambda what: cell[what]) if cell else " " for cell in times]


def _axis(length_ns: int, room: int) -> str:
    """Return an axis in milliseconds, with round tick labels."""
    step = next(
        step
        for exponent in range(3, 19)
        for step in (10**exponent, 2 * 10**exponent, 5 * 10**exponent)
        if step * room / length_ns >= _TICK
    )
    line = " " * room
    for time in range(0, length_ns, step):
        mark = f"{time / 1e6:g}"
        at = round(time * room / length_ns)
        if at + len(mark) <= room:
            line = line[:at] + mark + line[at + len(mark) :]
    return line


def _table(console: Console, section: Section) -> None:
    assert isinstance(section, Table)
    console.print()
    if section.title:
        console.print(Text(section.title, style="bold"))
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    widths = [max((cell_len(row[i]) for row in section.rows), default=1) for i in range(len(section.columns))]
    natural = sum(max(width, cell_len(c.name)) + 2 for width, c in zip(widths, section.columns, strict=True))
    least = 0
    for column, width in zip(section.columns, widths, strict=True):
        # otherwise rich would break words and truncate numbers
        lines = column.name.split() if natural > console.width else [column.name]
        min_width = max([width if column.is_number else 1, *map(cell_len, lines)])
        justify: JustifyMethod = "right" if column.is_number else "left"
        table.add_column(Text("\n".join(lines)), justify=justify, overflow="fold", min_width=min_width)
        least += min_width + 1
    for row in section.rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table, width=max(console.width, least), crop=False)  # otherwise columns would be missing
    if section.note:
        console.print(Text(section.note, style="dim"))


def _findings(console: Console, section: Section) -> None:
    assert isinstance(section, FindingList)
    console.print()
    console.print(Text(section.title, style="bold"))
    if not section.findings:
        console.print(Text(section.otherwise))
    for finding in section.findings:
        head = Text(f"{finding.number}. {finding.title}", style="bold")
        head.append(f"  [{finding.gain}]", style="" if finding.is_noise else "green")
        console.print(head)
        if finding.evidence:
            console.print(Padding(Text(finding.evidence), (0, 0, 0, 3)))
        if finding.advice:
            console.print(Padding(Text(f"→ {finding.advice}", style="cyan"), (0, 0, 0, 3)))


def _remarks(console: Console, section: Section) -> None:
    assert isinstance(section, Remarks)
    console.print()
    console.print(Text(section.title, style="bold"))
    for remark in section.remarks:
        first, *others = Text(f"- {remark}").wrap(console, max(console.width - 2, 20))
        console.print(first)
        for line in others:
            console.print(Padding(line, (0, 0, 0, 2)))


def _commands(console: Console, section: Section) -> None:
    assert isinstance(section, Commands)
    console.print()
    console.print(Text(section.title, style="bold"))
    label = max(cell_len(what) for what, _ in section.commands)
    for what, command in section.commands:
        line = Text(f"{what.ljust(label)}  ").append(command, style="cyan")
        console.print(line, soft_wrap=True)  # a line break would break a copied command


def _definition(console: Console, section: Section) -> None:
    assert isinstance(section, Definition)
    console.print(Text(section.term, style="bold"))
    console.print(Padding(Text(section.text), (0, 0, 0, 3)))
    for what, text in section.more:
        console.print(Padding(Text(f"{what}: {text}", style="dim"), (0, 0, 0, 3)))


_SECTION = {
    Line: _line,
    Bars: _bars,
    Lanes: _lanes,
    Table: _table,
    FindingList: _findings,
    Remarks: _remarks,
    Commands: _commands,
    Definition: _definition,
}
