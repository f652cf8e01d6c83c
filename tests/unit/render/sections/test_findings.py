"""Findings that are advice, and those that may be noise, wherever they are shown."""

import io
import json
from dataclasses import replace

import pytest
from reports import light_report, report

from ddpprof.engine.finding import Finding
from ddpprof.render.html.report_page import report_page
from ddpprof.render.json import render_json
from ddpprof.render.markdown import render_markdown
from ddpprof.render.sections.findings import finding_list
from ddpprof.render.terminal import render_terminal
from ddpprof.report import Report

SURE = Finding("late", "A rank is late", "in all steps", "Look at it.", 5_000_000)
NOISE = Finding("large", "A bucket is large", "it has 25 MB", "Split it.", 3_000_000, is_noise=True)


def terminal(made: Report) -> str:
    file = io.StringIO()
    render_terminal(tuple(finding_list(made)), file, 80)
    return file.getvalue()


def markdown(made: Report) -> str:
    return render_markdown("a", finding_list(made))


@pytest.mark.parametrize("shown", [terminal, markdown])
def test_what_may_be_noise_stands_last_and_advises_nothing(shown: object) -> None:
    assert callable(shown)
    text = shown(report(findings=(SURE, NOISE)))
    advised, noise = text.split("Not beyond noise")
    assert "1. " in advised
    assert "→ Look at it." in advised
    assert "A bucket is large" in noise
    assert "it has 25 MB" in noise
    assert "Split it" not in text


@pytest.mark.parametrize("shown", [terminal, markdown])
def test_where_all_may_be_noise_that_is_said(shown: object) -> None:
    assert callable(shown)
    text = shown(report(findings=(NOISE,)))
    assert "No finding is beyond noise." in text
    assert "→" not in text


@pytest.mark.parametrize("shown", [terminal, markdown])
@pytest.mark.parametrize(("findings", "words"), [((), "There are none"), ((SURE,), "There are no more")])
def test_without_profiled_steps_it_says_how_to_get_them(
    findings: tuple[Finding, ...], words: str, shown: object
) -> None:
    assert callable(shown)
    few = light_report()
    few = replace(few, findings=findings, job=replace(few.job, num_steps=10, recorded_with=("train.py",)))
    text = " ".join(shown(few).split())
    assert f"{words} without profiled steps" in text
    assert "The training took 10 steps, but the default options need" in text
    assert "ddpprof trace --skip-first 2 --cost-steps 2 --warmup 1 --steps 5 train.py" in text
    assert "without profiled steps" not in shown(report(findings=findings))


def test_a_page_never_says_to_change_first_what_may_be_noise() -> None:
    pytest.importorskip("plotly")
    assert 'First fix: <a href="#finding-1">A rank is late</a>' in report_page(report(findings=(SURE, NOISE)), None)
    assert '<article class="finding" id="finding-1"' in report_page(report(findings=(SURE, NOISE)), None)
    page = report_page(report(findings=(NOISE,)), None)
    assert "First fix" not in page
    assert "Not beyond noise" in page
    assert "Nothing to change beyond noise</a></h2>" in page
    assert "What to change</a></h2>" not in page
    assert '<article class="finding noise" id="finding-1"' in page
    assert "Split it" not in page.split('type="application/json"')[0]


def test_json_says_which_findings_may_be_noise() -> None:
    written = json.loads(render_json(report(findings=(SURE, NOISE))))
    assert [finding["is_noise"] for finding in written["findings"]] == [False, True]
