"""Experiments in words, as JSON and as pictures."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from experiments import job, overhead_report, scaling_report, sweep_report, tuning_report
from reports import GOLDEN, HOSTILE

from ddpprof.experiments.overhead import OverheadReport
from ddpprof.experiments.results import ExperimentReport
from ddpprof.render.json import render_json
from ddpprof.render.json_documents import schema
from ddpprof.render.markdown import render_markdown
from ddpprof.render.sections.experiments import experiment_sections
from ddpprof.render.terminal import render_terminal

CHECKOUT = Path(__file__).parents[4]
REPORTS = {
    "overhead": overhead_report(),
    "scaling": scaling_report(),
    "sweep": sweep_report(),
    "tuning": tuning_report(),
}
each = pytest.mark.parametrize("name", REPORTS)


def drawn(report: ExperimentReport, width: int = 80) -> str:
    file = io.StringIO()
    render_terminal(experiment_sections(report), file, width)
    return file.getvalue()


@each
def test_terminal(expect_golden: Callable[[Path, str], None], name: str) -> None:
    expect_golden(GOLDEN / f"{name}.txt", drawn(REPORTS[name]))


def test_markdown(expect_golden: Callable[[Path, str], None]) -> None:
    expect_golden(GOLDEN / "scaling.md", render_markdown("scaling", experiment_sections(REPORTS["scaling"])))


@each
def test_reports_are_as_their_schemas_say(name: str) -> None:
    of = schema(type(REPORTS[name]))
    jsonschema.Draft202012Validator(of).validate(json.loads(render_json(REPORTS[name])))


def test_an_interval_that_holds_1_is_no_overhead() -> None:
    report = overhead_report()
    assert isinstance(report, OverheadReport)
    none = replace(report, ratio=replace(report.ratio, low=0.97, high=1.03))
    assert "as long as without it, within the precision of" in drawn(none)
    unsure = replace(report, ratio=replace(report.ratio, low=0.9, high=1.4))
    said = " ".join(drawn(unsure).split())
    assert "6 pairs are not enough to tell whether DDP makes a step longer, on one rank: " in said
    unknown = replace(report, ratio=replace(report.ratio, low=None, high=None, num_pairs=1))
    assert "1 pair is not enough to tell" in drawn(unknown)


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_names_stay_text(name: str) -> None:
    report = replace(sweep_report(varied=f"--{name}"), missing=(name,), job=job(torch=name))
    shown = drawn(report, 120)
    assert "\x1b" not in shown
    assert "\r" not in shown
    for line in render_markdown("sweep", experiment_sections(report)).splitlines():
        assert "<script" not in line.replace(r"\<", "")
