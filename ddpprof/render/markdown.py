"""Render sections as GitHub-flavored Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ddpprof.layout import Bars, Commands, Definition, FindingList, Lanes, Line, Remarks, Section, Table, clean

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&$@])")


def render_markdown(title: str, sections: Iterable[Section]) -> str:
    blocks = [f"# {_escape(clean(title))}", *(_block(section) for section in sections)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _escape(text: str) -> str:
    """Escape all Markdown characters in `text`."""
    return _SPECIAL.sub(r"\\\1", text)


def _block(section: Section) -> str:
    if isinstance(section, Line):
        return _escape(section.text)
    if isinstance(section, Bars):
        return f"## {_escape(section.title)}"  # the table that follows has the numbers
    if isinstance(section, Lanes):
        return ""  # only for terminals
    if isinstance(section, Table):
        return _table(section)
    if isinstance(section, Remarks | Commands):
        return ""  # only on the first screen
    if isinstance(section, Definition):
        return f"**{_escape(section.term)}**: {_escape(section.text)}"
    return _findings(section)


def _table(table: Table) -> str:
    lines = [f"## {_escape(table.title)}\n"] if table.title else []
    lines.append("| " + " | ".join(_escape(column.name) for column in table.columns) + " |")
    lines.append("|" + "|".join(" ---: " if column.is_number else " --- " for column in table.columns) + "|")
    lines += ["| " + " | ".join(_escape(cell) for cell in row) + " |" for row in table.rows]
    if table.note:
        lines.append(f"\n{_escape(table.note)}")
    return "\n".join(lines)


def _findings(section: FindingList) -> str:
    lines = [f"## {_escape(section.title)}\n"]
    if not section.findings:
        lines.append(_escape(section.otherwise))
    for finding in section.findings:
        lines.append(f"{finding.number}. **{_escape(finding.title)}** ({_escape(finding.gain)})\n")
        lines.append(f"   {_escape(finding.evidence)}\n")
        if finding.advice:
            lines.append(f"   → {_escape(finding.advice)}\n")
    return "\n".join(lines)
