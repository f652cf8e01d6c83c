"""Render reports, comparisons and predictions in a notebook: HTML without scripts or links, and a few lines of text.

All external text is escaped. A CSS class keeps the notebook from typesetting text between dollar signs as formulas.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files

from ddpprof.comparison import Comparison
from ddpprof.layout import Column, FindingList, Line, Section, Table
from ddpprof.render.html.charts import blocks_html
from ddpprof.render.sections import topics
from ddpprof.render.sections.comparison import comparison_sections
from ddpprof.render.sections.job import job_lines
from ddpprof.render.sections.overview import FINDINGS, finding_list, verdict
from ddpprof.render.sections.whatif import whatif_sections
from ddpprof.report import Report, ShownInNotebooks
from ddpprof.report.whatif import WhatIf
from ddpprof.topics.failure import failure_sentence

_NOT_MATHEMATICS = "tex2jax_ignore mathjax_ignore"


def as_html(result: ShownInNotebooks) -> str:
    """Return HTML for a notebook cell, with conclusions first and tables below."""
    css = files("ddpprof.render").joinpath("notebook.css").read_text(encoding="utf-8")
    body = _report(result) if isinstance(result, Report) else _blocks(_sections(result))
    return f'<div class="ddpprof {_NOT_MATHEMATICS}"><style>{css}</style>{body}</div>'


def as_text(result: ShownInNotebooks) -> str:
    """Return the conclusions as a few lines."""
    if not isinstance(result, Report):
        return "\n".join(line for section in _sections(result) for line in _as_lines(section))
    findings = [line for section in finding_list(result) for line in _as_lines(section)]
    failure = [failure_sentence(result.failure, result)] if result.failure is not None else []
    job = [section.text for section in job_lines(result) if isinstance(section, Line)]
    return "\n".join([*job[:1], *failure, verdict(result).text, *findings])


def _sections(result: ShownInNotebooks) -> tuple[Section, ...]:
    """Return the sections of a comparison or a prediction."""
    if isinstance(result, Comparison):
        return comparison_sections(result)
    assert isinstance(result, WhatIf)
    return tuple(whatif_sections(result))


def _as_lines(section: Section) -> Iterable[str]:
    """Return a section as lines of text: findings without evidence, and only the first rows of a table."""
    if isinstance(section, Line):
        return [] if section.is_aside else [section.text]
    if isinstance(section, FindingList):
        said = "" if section.title == FINDINGS else f"{section.title}: "
        return [f"{said}{one.number}. {one.title} [{one.gain}]" for one in section.findings] or [section.otherwise]
    return _table_lines(section) if isinstance(section, Table) and not section.columns[0].is_number else []


def _table_lines(table: Table) -> list[str]:
    rows = [tuple(column.name for column in table.columns), *table.rows[:_MOST_ROWS]]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    shown = [
        "  ".join(
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for cell, width, column in zip(row, widths, table.columns, strict=True)
        ).rstrip()
        for row in rows
    ]
    return [table.title, *(f"  {line}" for line in shown)]


_MOST_ROWS = 6


def _report(report: Report) -> str:
    said = {topic.name: topic for topic in topics(report)}
    came = verdict(report)
    numbers = Table("", tuple(Column(one.what) for one in came.numbers), (tuple(one.value for one in came.numbers),))
    job = said.pop("job").sections
    lines = [section for section in job if isinstance(section, Line)]
    found = said.pop("findings").sections
    below = [section for section in job if section not in lines]
    return "".join(
        [
            _blocks(line for line in lines if not line.is_warning),
            f'<p class="verdict">{escape(came.text)}</p>',
            _blocks([numbers] if came.numbers else []),
            _blocks(line for line in lines if line.is_warning),
            _blocks(below),
            _blocks(found),
            *(_folded(topic.title, topic.sections) for topic in said.values()),
        ]
    )


def _folded(title: str, sections: Iterable[Section]) -> str:
    inside = _blocks(sections)
    return f"<details><summary>{escape(title)}</summary>{inside}</details>" if inside else ""


def _blocks(sections: Iterable[Section]) -> str:
    return blocks_html(sections, level=4)
