"""The report as Markdown: a golden file, and names that stay text."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from reports import GOLDEN, HOSTILE, hostile_report, light_report, report

from ddpprof.render.markdown import render_markdown
from ddpprof.render.sections import sections
from ddpprof.report import Report


def markdown(of: Report) -> str:
    return render_markdown(of.job.name, sections(of))


def test_markdown(expect_golden: Callable[[Path, str], None]) -> None:
    expect_golden(GOLDEN / "report.md", markdown(report()))


def test_markdown_of_light_recording(expect_golden: Callable[[Path, str], None]) -> None:
    expect_golden(GOLDEN / "report-light.md", markdown(light_report()))


def unescaped(text: str, characters: str) -> list[str]:
    return re.findall(rf"[{characters}]", re.sub(r"\\[!-/:-@\[-`{-~]", "", text))


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_names_stay_text(name: str) -> None:
    text, plain = markdown(hostile_report(name)), markdown(hostile_report("x"))
    assert all(c.isprintable() for c in text.replace("\n", ""))
    assert len(text.splitlines()) == len(plain.splitlines()), "no name begins a line"
    assert len(unescaped(text, "|")) == len(unescaped(plain, "|")), "no name divides a cell"
    assert unescaped(text, r"<`\[&$@~") == []


def test_the_command_to_record_more_steps_stays_text() -> None:
    made = light_report()
    job = replace(made.job, num_steps=5, recorded_with=("<script>.py",))
    text = markdown(replace(made, job=job))
    assert "<script>" not in text.replace(r"\<", "")
    assert r"\<script\>.py" in text


def test_rows_have_as_many_cells_as_their_header() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", markdown(report()), re.MULTILINE)
    assert len(tables) == 5
    for table in tables:
        assert len({len(unescaped(row, "|")) for row in table.splitlines()}) == 1
