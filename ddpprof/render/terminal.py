"""The report in a terminal, with rich; plain text where the output is a pipe, or ``NO_COLOR`` is set."""

from __future__ import annotations

from typing import TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from ddpprof.render.sections import PARTS, Bars, FindingList, Line, Section, Table, sections
from ddpprof.report import Report

_STYLES = ("blue", "cyan", "bold red", "green", "yellow", "dim")
_GLYPHS = "█▓▒#=·"
"""Bars tell their parts apart without colour, too."""


def render_terminal(report: Report, file: TextIO, width: int | None = None) -> None:
    """Print `report` to `file`."""
    console = Console(file=file, highlight=False, width=width, soft_wrap=False)
    for section in sections(report):
        _SECTION[type(section)](console, section)


def _line(console: Console, section: Section) -> None:
    assert isinstance(section, Line)
    console.print(Text(section.text))


def _glyph(parts: tuple[str, ...], index: int) -> tuple[str, str]:
    if parts is PARTS or parts == PARTS:
        return _GLYPHS[index], _STYLES[index]
    return ("█▓#="[index], ("blue", "cyan", "green", "yellow")[index])


def _bars(console: Console, section: Section) -> None:
    assert isinstance(section, Bars)
    console.print()
    console.print(Text(section.title, style="bold"))
    longest = max(bar.total_ns for bar in section.bars) or 1
    label = max(len(bar.label) for bar in section.bars) + len("rank ")
    room = max(20, min(console.width, 120) - label - 2)
    for bar in section.bars:
        text = Text(f"rank {bar.label}".ljust(label) + " ")
        drawn = done = 0
        for index, part in enumerate(bar.parts_ns):
            done += part
            until = round(room * done / longest)
            glyph, style = _glyph(section.parts, index)
            text.append(glyph * (until - drawn), style=style)
            drawn = until
        console.print(text, overflow="crop", no_wrap=True)
    legend = Text(" " * (label + 1))
    for index, part_name in enumerate(section.parts):
        glyph, style = _glyph(section.parts, index)
        legend.append(glyph, style=style)
        legend.append(f" {part_name}   ")
    console.print(legend)


def _table(console: Console, section: Section) -> None:
    assert isinstance(section, Table)
    if section.title:
        console.print()
        console.print(Text(section.title, style="bold"))
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for index, column in enumerate(section.columns):
        widest = max((cell_len(row[index]) for row in section.rows), default=1)
        table.add_column(
            Text(column.name),
            justify="right" if column.is_number else "left",
            overflow="fold",
            min_width=widest if column.is_number else None,
        )
    for row in section.rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
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
        head.append(f"  [{finding.gain}]", style="green")
        console.print(head)
        console.print(Padding(Text(finding.evidence), (0, 0, 0, 3), expand=False))
        console.print(Padding(Text(f"→ {finding.advice}", style="cyan"), (0, 0, 0, 3), expand=False))


_SECTION = {Line: _line, Bars: _bars, Table: _table, FindingList: _findings}
