"""What stands in a page, as the file has it: structure, escaping, size, colours."""

import json
import re
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest
from experiments import experiment_page, overhead_report, scaling_report, sweep_report
from large_runs import thousand_ranks
from pages import GLOO_2, data_of, page_of
from reports import (
    HOSTILE,
    across,
    comparison_page,
    data_parallel_report,
    gpu_report,
    hostile_report,
    light_report,
    report,
    slowdown,
)

from ddpprof.errors import DdpprofError
from ddpprof.load.run import load_run
from ddpprof.render.html import plotly_source
from ddpprof.render.html.report_page import report_page
from ddpprof.report import Report
from ddpprof.topics.steps.view import worth_seeing

VOID = {"meta", "input", "br", "link", "img"}


class Document(HTMLParser):
    """Checks on the way that every element is closed where it should be."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.data: dict[str, str] = {}
        self._id: str | None = None
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._id = dict(attrs).get("id") if tag == "script" else None
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._id is not None:
            self.data[self._id] = self.data.get(self._id, "") + data
        elif not {"script", "style"} & set(self.open):
            self.texts.append(data)

    @property
    def ids(self) -> list[str]:
        return [value or "" for name, value in self.attributes if name == "id"]


ALL = [
    pytest.param(report_page(report(across=across(), overlap_slowdown=slowdown())), id="report"),
    pytest.param(report_page(gpu_report()), id="accelerator"),
    pytest.param(report_page(light_report()), id="light"),
    pytest.param(report_page(data_parallel_report()), id="data-parallel"),
    pytest.param(comparison_page(report(), gpu_report()), id="comparison"),
    pytest.param(experiment_page("runs/s", sweep_report()), id="sweep"),
    pytest.param(experiment_page("runs/s", sweep_report("bucket_cap_mb", is_work=False)), id="sweep-without-sizes"),
    pytest.param(experiment_page("runs/s", scaling_report()), id="scale"),
    pytest.param(experiment_page("runs/s", overhead_report()), id="overhead"),
]


@pytest.mark.parametrize("page", ALL)
def test_a_page_is_well_formed_and_loads_nothing(page: str) -> None:
    document = Document(page)
    assert [name for name, count in Counter(document.ids).items() if count > 1] == []
    targets = {value[1:] for name, value in document.attributes if name == "href" and value}
    assert targets <= set(document.ids)
    assert targets >= set(re.findall(r'<section id="([\w-]+)"', page)), "every section has its link"
    assert document.tags.count("h1") == 1
    assert document.tags.count("main") == 1
    assert not {"img", "link", "iframe", "object", "base", "form"} & set(document.tags)
    assert not [value for name, value in document.attributes if name in ("src", "srcset", "action")]
    assert not [name for name, _ in document.attributes if name.startswith("on")]


@pytest.mark.parametrize("page", ALL)
def test_headings_are_in_order(page: str) -> None:
    levels = [int(tag[1]) for tag in Document(page).tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("page", ALL)
def test_the_policy_allows_the_scripts_that_are_there_and_no_request(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].replace("&#x27;", "'").split(";"))
    assert rules["default-src"] == "'none'"
    assert set(rules) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
    assert all(source.startswith("'sha256-") for source in rules["script-src"].split())
    assert "http" not in policy[1]


ENCODABLE = {kind: name for kind, name in HOSTILE.items() if kind != "undecodable"}
"""`build_report` lets no other names into a report: JSON could not hold them."""


@pytest.mark.parametrize("name", ENCODABLE.values(), ids=ENCODABLE)
def test_hostile_names_stay_text(name: str) -> None:
    made, plain = hostile_report(name), hostile_report("x")
    page, usual = (Document(report_page(one)) for one in (made, plain))
    assert Counter(usual.tags) == Counter(page.tags)
    shown = "".join(page.texts)
    assert not [c for c in shown if not c.isprintable() and c not in "\n\r"]
    assert max(map(len, page.texts)) < 1000


def test_the_page_holds_the_whole_json_report() -> None:
    from ddpprof.render.json import render_json

    made = report(across=across())
    assert data_of(report_page(made), "report-data") == json.loads(render_json(made))


def test_what_comes_first_is_the_job_and_its_verdict() -> None:
    texts = Document(report_page(report())).texts
    said = " ".join(text.strip() for text in texts if text.strip())
    assert said.index("python train.py --epochs 1 · 2 ranks") < said.index("A step takes 65.2 ms.")
    assert said.index("First fix:") < said.index("What to change") < said.index("Where the time of a step goes")
    assert said.index("Where the time of a step goes") < said.index("Buckets from ready to finished")


@pytest.mark.parametrize(("lost_ns", "is_drawn"), [(1_400, False), (-1_400, False), (2_800_000, True)])
def test_a_chart_of_next_to_nothing_is_left_out(lost_ns: int, is_drawn: bool) -> None:
    made = slowdown()
    kernels = tuple(replace(kernel, lost_ns=lost_ns) for kernel in made.kernels)
    page = report_page(report(overlap_slowdown=replace(made, lost_ns=lost_ns, kernels=kernels)))
    assert ("Time lost by kernel" in page) is is_drawn
    assert ("All kernels together lose less than 0.1% of the step" in page) is not is_drawn


def test_a_page_from_a_json_report_says_that_it_has_no_timeline() -> None:
    assert "this page was made from a JSON report" in report_page(report())


def test_tables_are_there_without_scripts() -> None:
    page = report_page(report())
    assert '<th scope="row" class="number">0</th><td class="number">12.25</td>' in page
    assert "Charts need JavaScript" in page


def test_a_thousand_ranks_stay_below_ten_megabytes() -> None:
    page = report_page(thousand_ranks(num_steps=20))
    assert len(page.encode()) < 10_000_000
    assert "All 1000 ranks, ms: step" in page


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(report(), (0, 1), id="few"),
        pytest.param(thousand_ranks(17, 1), tuple(range(16)), id="one-too-many"),
    ],
)
def test_few_ranks_are_all_worth_seeing(made: Report, expected: tuple[int, ...]) -> None:
    assert len(worth_seeing(made)) == len(expected)


def test_of_many_ranks_the_odd_ones_are_among_those_worth_seeing() -> None:
    seen = worth_seeing(thousand_ranks(1000, 1))
    assert len(seen) == 16
    assert {0, 700, 999} <= set(seen)


def test_without_plotly_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    plotly_source.cache_clear()
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.package_data", None)
    with pytest.raises(DdpprofError, match=r"needs plotly. Install it with: pip install plotly"):
        report_page(report())


def test_a_page_of_a_small_run_stays_below_two_megabytes() -> None:
    assert len(page_of(load_run(GLOO_2)).encode()) < 2_000_000


@pytest.mark.parametrize("changes", [{"num_calls": 0}, {"num_bytes": -1}])
def test_collectives_that_no_run_has_are_not_drawn(changes: dict[str, int]) -> None:
    """A report in JSON may hold any number."""
    made = across()
    odd = tuple(replace(one, **changes) for one in made.collectives)
    assert "Bandwidth by message size" not in report_page(report(across=replace(made, collectives=odd)))


def test_plotly_is_compiled_at_once() -> None:
    assert "this, (() => {" in plotly_source()


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(a: str, b: str) -> float:
    """As WCAG 2 defines it."""
    darker, lighter = sorted((_luminance(a), _luminance(b)))
    return (lighter + 0.05) / (darker + 0.05)


def _colours() -> dict[str, tuple[str, str]]:
    css = files("ddpprof.render.html").joinpath("page.css").read_text(encoding="utf-8")
    return {name: (light, dark) for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\)", css)}


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_told_from_what_they_stand_on(theme: int) -> None:
    colours = {name: pair[theme] for name, pair in _colours().items()}
    for ground in ("page", "surface"):
        for text in ("text", "quiet", "accent"):
            assert _contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    assert _contrast(colours["warning"], colours["warning-surface"]) >= 4.5
    assert _contrast(colours["gain"], colours["gain-surface"]) >= 4.5
    assert _contrast(colours["text"], colours["sunken"]) >= 4.5
    for name, colour in colours.items():
        if name.startswith("role-"):
            assert _contrast(colour, colours["surface"]) >= 3, name


def test_every_role_has_a_colour() -> None:
    roles = {name.removeprefix("role-") for name in _colours() if name.startswith("role-")}
    scripts = [path.read_text(encoding="utf-8") for path in Path(str(files("ddpprof.render.html"))).glob("*.py")]
    used = {role for source in scripts for role in re.findall(r'"role": "([\w-]+)"', source)}
    assert used <= roles
