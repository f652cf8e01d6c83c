"""Sections as HTML. All text that comes from a trace is escaped here, so that it never becomes markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ddpprof.layout import Bars, Column, Definition, FindingList, FindingText, Line, Section, Table
from ddpprof.render.glossary import find_term
from ddpprof.render.html.charts import Chart, bars_chart, chart_html
from ddpprof.render.html.page import term_id

Block = Section | Chart


def blocks_html(blocks: Iterable[Block], names: str, level: int = 3) -> str:
    """Return sections and charts as HTML. `names`: prefix of ids. `level`: level of headings."""
    return "\n".join(_block(block, f"{names}-{number}", level) for number, block in enumerate(blocks))


def _block(block: Block, name: str, level: int) -> str:
    """Return one block as HTML. `Lanes` yield nothing: they are for terminals, and a page has a timeline instead."""
    if isinstance(block, Line):
        return _line(block)
    if isinstance(block, Bars):
        return chart_html(bars_chart(block), name, level)
    if isinstance(block, Table):
        return _table(block, name, level)
    if isinstance(block, Chart):
        return chart_html(block, name, level)
    if isinstance(block, FindingList):
        return _findings(block, level)
    if isinstance(block, Definition):
        return f"<p><strong>{escape(block.term)}</strong>: {escape(block.text)}</p>"
    return ""


def _line(line: Line) -> str:
    kind = "warning" if line.is_warning else "aside" if line.is_aside else "line"
    return f'<p class="{kind}">{escape(line.text)}</p>'


def _table(table: Table, name: str, level: int) -> str:
    heading = f'<h{level} id="{name}-title">{escape(table.title)}</h{level}>' if table.title else ""
    label = f'aria-labelledby="{name}-title"' if table.title else f'aria-label="{escape(_columns(table))}"'
    head = "".join(f'<th scope="col"{_kind(column)}>{column_name(column.name)}</th>' for column in table.columns)
    rows = "".join(
        "<tr>" + "".join(_cell(cell, column, n) for n, (cell, column) in enumerate(cells)) + "</tr>"
        for cells in (zip(row, table.columns, strict=True) for row in table.rows)
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'{heading}<div class="scroll" role="region" tabindex="0" {label}><table id="{name}"><thead><tr>{head}</tr>'
        f"</thead><tbody>{rows}</tbody></table></div>{note}"
    )


def _cell(cell: str, column: Column, number: int) -> str:
    tag, scope = ("th", ' scope="row"') if number == 0 else ("td", "")
    indented = ' class="part"' if cell.startswith("  ") else _kind(column)
    return f"<{tag}{scope}{indented}>{escape(cell.strip())}</{tag}>"


def _kind(column: Column) -> str:
    return ' class="number"' if column.is_number else ""


def _columns(table: Table) -> str:
    return ", ".join(column.name for column in table.columns if column.name)


def column_name(name: str) -> str:
    """Return the name as HTML, linked to its definition."""
    term = find_term(name) or find_term(name.rsplit(" ", 1)[0])
    text = escape(name)
    return text if term is None else f'<a class="term" href="#{term_id(term)}">{text}</a>'


def _findings(section: FindingList, level: int) -> str:
    if not section.findings:
        return f'<p class="nothing">{escape(section.otherwise)}</p>'
    title = (
        "" if any(finding.advice for finding in section.findings) else f"<h{level}>{escape(section.title)}</h{level}>"
    )
    return "\n".join([title, *(_finding(finding, level) for finding in section.findings)])


def _finding(finding: FindingText, level: int) -> str:
    name = f"finding-{finding.number}"
    return (
        f'<article class="finding{" noise" if finding.is_noise else ""}" id="{name}" aria-labelledby="{name}-title">'
        f'<h{level} id="{name}-title">{finding.number}. {escape(finding.title)}</h{level}>'
        f'<p class="gain">{escape(finding.gain)}</p><p>{escape(finding.evidence)}</p>{_advice(finding, name)}</article>'
    )


def _advice(finding: FindingText, name: str) -> str:
    if not finding.advice:
        return ""
    return (
        f'<div class="advice"><pre id="{name}-advice" tabindex="0" aria-label="What to change">'
        f"{escape(finding.advice)}</pre>"
        f'<button type="button" class="copy needs-script" data-copies="{name}-advice" '
        f'aria-label="Copy the change of finding {finding.number}">Copy</button></div>'
    )
