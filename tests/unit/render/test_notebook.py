"""Results in a notebook: conclusions first, all text escaped, nothing that runs or loads."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from pages import GLOO_2
from reports import HOSTILE, across, compare_runs, gpu_report, hostile_report, light_report, report, slowdown

import ddpprof
from ddpprof.errors import DdpprofError
from ddpprof.pipeline.analysis import whatif
from ddpprof.render.json import read_report, render_json
from ddpprof.report import ShownInNotebooks
from ddpprof.report.whatif import WhatIf


class Fragment(HTMLParser):
    """Checks on the way that every element is closed where it should be."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and data != "\n":  # between elements
            self.texts.append(data)


@pytest.fixture(scope="module")
def prediction() -> WhatIf:
    return whatif(str(GLOO_2), [1, 5])


RESULTS = [
    pytest.param(report(across=across(), overlap_slowdown=slowdown()), id="report"),
    pytest.param(gpu_report(), id="accelerator"),
    pytest.param(light_report(), id="light"),
    pytest.param(compare_runs(report(), gpu_report()), id="comparison"),
]


@pytest.mark.parametrize("result", RESULTS)
def test_html_is_small_and_stands_alone(result: ShownInNotebooks) -> None:
    html = result._repr_html_()
    fragment = Fragment(html)
    assert len(html) < 60_000
    assert not {"script", "img", "link", "iframe", "a", "form", "button"} & set(fragment.tags)
    assert fragment.attributes == {"class", "style"}, "ids would repeat from cell to cell"
    assert html.startswith('<div class="ddpprof tex2jax_ignore mathjax_ignore"><style>')


def test_a_report_opens_with_its_verdict_and_findings_and_folds_its_tables() -> None:
    said = " ".join(Fragment(report()._repr_html_()).texts)
    order = ["python train.py", "A step takes 65.2 ms.", "12 buffers of 4", "forward_sync_buffers", "Where the time"]
    assert sorted(order, key=said.index) == order
    assert said.index("Step time by kind of work, ms") < said.index("exposed comm")
    assert report()._repr_html_().count("<details>") == report()._repr_html_().count("</details>") >= 3


def test_a_report_as_text_is_a_few_lines() -> None:
    lines = str(report()).splitlines()
    assert lines[0].startswith("python train.py --epochs 1 · 2 ranks")
    assert lines[1].startswith("A step takes 65.2 ms.")
    assert lines[2] == "1. 12 buffers of 4 BatchNorm layers are broadcast in every step [up to 3.18 ms per step]"
    assert len(lines) == 5


def test_a_comparison_as_text_names_its_columns() -> None:
    lines = str(compare_runs(report(), gpu_report())).splitlines()
    (head,) = (number for number, line in enumerate(lines) if line.split()[:5] == ["A", "B", "B", "-", "A"])
    assert lines[head - 1].startswith("Per step, ms")
    assert lines[head + 1].split()[:2] == ["step", "65.20"]
    assert "Record with:" not in str(lines)


def test_a_prediction(prediction: WhatIf) -> None:
    lines = str(prediction).splitlines()
    assert lines[1:3] == ["Predicted step", lines[2]]
    assert lines[2].split()[:3] == ["setting", "step", "ms"]
    assert [line.split()[0] for line in lines[3:6]] == ["as", "bucket_cap_mb=1", "bucket_cap_mb=5"]
    said = " ".join(Fragment(prediction._repr_html_()).texts)
    assert "bucket_cap_mb=5" in said
    assert "Assumptions:" in said


def test_several_runs_of_each_job_are_compared() -> None:
    comparison = ddpprof.compare_reports([report(), report()], report())
    assert (comparison.num_runs_a, comparison.num_runs_b) == (2, 1)


def test_a_prediction_for_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(DdpprofError):
        whatif(str(tmp_path))


NAMES = {kind: name for kind, name in HOSTILE.items() if kind != "undecodable"} | {
    "image": '"><img src=x onerror=alert(1)>',
    "attribute": "' onmouseover='alert(1)",
    "mathematics": "$\\href{javascript:alert(1)}{x}$",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_hostile_names_stay_text(name: str) -> None:
    made, usual = (Fragment(hostile_report(one)._repr_html_()) for one in (name, "x"))
    assert made.tags == usual.tags
    assert made.attributes == usual.attributes
    assert not [c for c in "".join(made.texts) if not c.isprintable()]
    assert not [c for c in str(hostile_report(name)) if not c.isprintable() and c != "\n"]


def test_ipython_shows_the_text_and_not_the_whole_tree() -> None:
    pretty = pytest.importorskip("IPython.lib.pretty", reason="IPython is not installed: pip install ipython")
    assert pretty.pretty(report()) == str(report())
    assert repr(report()).startswith("Report(format=1, ")


def test_what_shows_itself_is_still_read_from_json(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(render_json(report()), encoding="utf-8")
    assert read_report(path) == report()
