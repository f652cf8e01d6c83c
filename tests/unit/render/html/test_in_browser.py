"""Pages in Chromium: what the reader sees has the report's numbers, and answers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser import Tab
from experiments import overhead_report, scaling_report, sweep_report
from large_runs import kernel_run, thousand_ranks
from reports import HOSTILE, gpu_report, hostile_report, light_report, report

from ddpprof.cli import main
from ddpprof.comparison.compare import compare
from ddpprof.events import Run
from ddpprof.load.run import load_run
from ddpprof.render.html.report_page import report_page
from ddpprof.render.html.result_pages import comparison_page, experiment_page
from ddpprof.render.html.steps import worth_seeing
from ddpprof.report import build_report
from ddpprof.report.timeline import build_timeline

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHECKOUT = Path(__file__).parents[4]
SHARED = Path(os.environ.get("DDPPROF_SHARED", CHECKOUT.parent / "shared"))
GLOO_2 = CHECKOUT / "sample_traces" / "convnet-gloo-2ranks"
GLOO_4 = CHECKOUT / "sample_traces" / "transformer-gloo-4ranks"
NCCL = SHARED / "traces" / "resnet50_a100_rank0of2.json.gz"
WIDTHS = [pytest.param(360), pytest.param(800, marks=pytest.mark.slow), pytest.param(1400, marks=pytest.mark.slow)]

Show = Callable[[str], "Page"]


@pytest.fixture
def show(tab: Tab, tmp_path: Path) -> Show:
    """Opens a page from disk, and waits until all is drawn."""

    def opened(text: str) -> Page:
        path = tmp_path / "page.html"
        path.write_text(text, encoding="utf-8")
        tab.open(path)
        tab.page.wait_for_selector("html[data-complete]", state="attached")
        return tab.page

    return opened


@pytest.fixture(scope="module")
def two_ranks() -> str:
    return page_of(load_run(GLOO_2))


def page_of(run: Run) -> str:
    made = build_report(run)
    return report_page(made, build_timeline(run, made))


def plotted(page: Page, selector: str) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = page.eval_on_selector(
        selector, "p => p.data.map(t => ({name: t.name, y: t.y, x: t.x, base: t.base, numbers: t.customdata}))"
    )
    return data


RANGE = "document.getElementById('timeline-plot')._fullLayout.xaxis.range"


def visible_range(page: Page) -> tuple[float, float]:
    low, high = page.evaluate(RANGE)
    return low, high


def body(page: Page, table: str) -> list[list[str]]:
    rows: list[list[str]] = page.eval_on_selector_all(
        f"{table} tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return rows


RUNS = [
    pytest.param(GLOO_2, id="gloo-2-ranks"),
    pytest.param(GLOO_4, id="gloo-4-ranks", marks=pytest.mark.slow),
    pytest.param(NCCL, id="nccl"),
]


@pytest.mark.parametrize("path", RUNS)
def test_its_numbers_are_those_of_the_json_report(path: Path, show: Show, tmp_path: Path) -> None:
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    written = tmp_path / "report.html"
    assert main(["report", str(path), "--out", str(written)]) == 0
    assert main(["report", str(path), "--out", str(tmp_path / "report.json")]) == 0
    expected = json.loads((tmp_path / "report.json").read_text())
    page = show(written.read_text(encoding="utf-8"))

    assert json.loads(page.locator("#report-data").text_content() or "") == expected
    for number in page.locator("#timeline [data-choose=step] option").evaluate_all("all => all.map(o => o.value)"):
        page.select_option("#timeline [data-choose=step]", number)
        for rank in expected["ranks"]:
            step = next(one for one in rank["steps"] if one["step"] == int(number))
            check_bars(page, rank["rank"], step["parts"])
            check_timeline(page, rank["rank"], step)


def check_bars(page: Page, rank: int, parts: dict[str, int]) -> None:
    drawn = {t["name"]: dict(zip(t["y"], t["numbers"], strict=True))[f"rank {rank}"] for t in plotted(page, "#step-0")}
    assert drawn == {
        "forward": parts["forward_ns"],
        "backward": parts["backward_ns"],
        "exposed comm": parts["exposed_comm_ns"],
        "optimizer": parts["optimizer_ns"],
        "data, other": parts["data_ns"] + parts["other_ns"],
        "idle": parts["idle_ns"],
    }
    row = next(row for row in body(page, "#step table") if row[0] == str(rank))
    assert [float(cell) for cell in row[1:]] == pytest.approx(
        [ns / 1e6 for ns in (*drawn.values(), sum(drawn.values()))], abs=0.006
    )


def check_timeline(page: Page, rank: int, step: dict[str, Any]) -> None:
    """What is drawn in its lanes, whole steps being in view; and the table below."""
    lanes: dict[str, dict[str, int]] = {}
    for trace in plotted(page, "#timeline-plot"):
        for of, lane, busy, _ in trace["numbers"]:
            if of == rank:
                sums = lanes.setdefault(lane, {})
                for kind, ns in busy.items():
                    sums[kind] = sums.get(kind, 0) + ns
    assert lanes.get("exposed", {}).get("exposed", 0) == step["exposed_ns"]
    assert lanes.get("trailing", {}).get("trailing", 0) == (step["trailing_ns"] or 0)
    parts = {kind: step["parts"][f"{field}_ns"] for kind, field in PARTS.items()}
    assert lanes["step"] == {kind: ns for kind, ns in parts.items() if ns}
    shown = page.eval_on_selector_all(
        "#timeline-numbers tbody tr",
        """(rows, rank) => rows.filter(row => row.cells[0].textContent === String(rank))
            .map(row => [...row.cells].map(cell => cell.dataset.ns))""",
        rank,
    )
    fields = ("compute_ns", "comm_ns", "overlap_ns", "exposed_ns", "trailing_ns")
    assert shown == [[None, *(None if step[field] is None else str(step[field]) for field in fields)]]


PARTS = {
    "forward": "forward", "backward": "backward", "exposed": "exposed_comm", "optimizer": "optimizer", "data": "data",
    "other": "other",
}  # fmt: skip


def test_hovering_names_what_is_there(show: Show, two_ranks: str) -> None:
    page = show(two_ranks)
    begin, end = hover(page, "backward")
    text = page.locator("#timeline-plot .hoverlayer").text_content() or ""
    assert re.match(r"rank \d, backwardautograd::engine::evaluate_function: \w+Backward0", text)
    assert f"{begin:.2f} to {end:.2f} ms" in text


def hover(page: Page, kind: str) -> tuple[float, float]:
    """Over the widest bar of that kind among the kernels. When it begins and ends, ms."""
    page.eval_on_selector("#timeline", "section => section.scrollIntoView({behavior: 'instant'})")
    at = page.eval_on_selector(
        "#timeline-plot",
        """(plot, kind) => {
            const box = plot.getBoundingClientRect(), {xaxis, yaxis} = plot._fullLayout;
            const {x, y, base, customdata} = plot.data.find(trace => trace.name === kind);
            const own = x.map((width, i) => i).filter(i => customdata[i][1] === 'compute');
            const widest = own.reduce((best, i) => x[i] > x[best] ? i : best);
            const middle = base[widest] + x[widest] / 2;
            return {x: box.left + xaxis._offset + xaxis.d2p(middle), y: box.top + yaxis._offset + yaxis.d2p(y[widest]),
                    begin: base[widest], end: base[widest] + x[widest]};
        }""",
        kind,
    )
    page.mouse.move(at["x"] - 2, at["y"])
    page.mouse.move(at["x"], at["y"])
    page.locator("#timeline-plot .hoverlayer .hovertext").wait_for()
    return at["begin"], at["end"]


def test_zooming_with_mouse_wheel_buttons_and_keys(show: Show, two_ranks: str) -> None:
    page = show(two_ranks)
    plot = page.locator("#timeline-plot")
    plot.scroll_into_view_if_needed()
    whole = visible_range(page)
    bars = sum(len(trace["x"]) for trace in plotted(page, "#timeline-plot"))
    box = plot.bounding_box()
    assert box is not None
    left, right, middle = box["x"] + box["width"] * 0.4, box["x"] + box["width"] * 0.6, box["y"] + box["height"] / 2

    page.mouse.move(left, middle)
    page.mouse.down()
    page.mouse.move(right, middle, steps=4)
    page.mouse.up()
    page.wait_for_function(f"([a, b]) => {RANGE}[1] - {RANGE}[0] < (b - a) / 3", arg=whole)
    low, high = visible_range(page)
    assert whole[0] < low < high < whole[1]
    page.mouse.dblclick(left, middle)
    page.wait_for_function(f"([low]) => {RANGE}[0] === low", arg=whole)
    assert sum(len(trace["x"]) for trace in plotted(page, "#timeline-plot")) == bars

    page.mouse.move(left, middle)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_function(f"([, high]) => {RANGE}[1] < high", arg=whole)
    page.get_by_role("button", name="Show the whole step").click()
    assert visible_range(page) == whole
    page.get_by_role("button", name="Zoom in").click()
    assert visible_range(page)[1] - visible_range(page)[0] == pytest.approx((whole[1] - whole[0]) / 2)

    plot.focus()
    page.keyboard.press("ArrowRight")
    moved = visible_range(page)
    page.keyboard.press("+")
    assert visible_range(page)[1] - visible_range(page)[0] == pytest.approx((moved[1] - moved[0]) / 2)
    assert "milliseconds" in page.locator("#announcement").inner_text()
    page.keyboard.press("0")
    assert visible_range(page) == whole


def test_choosing_a_step_and_ranks(show: Show, two_ranks: str) -> None:
    page = show(two_ranks)
    chooser = page.get_by_label("Step", exact=True).first
    steps = [option.get_attribute("value") for option in chooser.locator("option").all()]
    assert steps == ["12", "13", "14"]
    chooser.select_option("14")
    assert page.locator("#timeline [data-choose=step]").input_value() == "14"
    assert page.locator("#step-0-title").inner_text() == "One step by kind of work, ms: step 14"

    ranks = page.locator("[data-choose=chosen-ranks]")
    ranks.fill("1")
    ranks.press("Enter")
    assert [row[0] for row in body(page, "#step table")][:1] == ["1"]
    assert {label for trace in plotted(page, "#step-0") for label in trace["y"]} == {"rank 1"}

    ranks.fill("7-9")
    ranks.press("Enter")
    assert "No rank of this page: it has 0-1." in page.locator("#chosen-ranks-problem").inner_text()
    assert ranks.get_attribute("aria-invalid") == "true"


def test_a_definition_is_one_click_away(show: Show, two_ranks: str) -> None:
    page = show(two_ranks)
    link = page.locator("a.term", has_text="trailing").first
    link.focus()
    page.keyboard.press("Enter")
    definition = page.locator("#definition")
    assert definition.is_visible()
    assert "Gradient communication between the last backward op" in definition.inner_text()
    page.keyboard.press("Escape")
    definition.wait_for(state="hidden")
    assert link.evaluate("link => document.activeElement === link")


@pytest.mark.parametrize("has_clipboard", [pytest.param(True, marks=pytest.mark.slow), False])
def test_copying_the_change(tab: Tab, show: Show, has_clipboard: bool) -> None:
    if has_clipboard:
        tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    else:
        tab.page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        tab.page.add_init_script(
            "addEventListener('copy', () => window.copied = getSelection().toString() || document.activeElement.value)"
        )
    page = show(report_page(report()))
    page.locator("button.copy").first.focus()
    page.keyboard.press("Enter")
    page.locator("#announcement", has_text="Copied").wait_for(state="attached")
    text = page.evaluate("navigator.clipboard.readText()" if has_clipboard else "window.copied")
    assert text == "DistributedDataParallel(model, forward_sync_buffers=False)."


def test_the_theme_follows_the_system_and_the_reader(tab: Tab, show: Show) -> None:
    tab.page.emulate_media(color_scheme="dark")
    page = show(report_page(report()))
    colours = (
        "[getComputedStyle(document.body).backgroundColor, document.getElementById('step-0').data[0].marker.color]"
    )
    dark = page.evaluate(colours)
    page.get_by_role("button", name="Light colours").click()
    light = page.evaluate(colours)
    assert dark == ["rgb(20, 23, 28)", "rgb(63, 158, 224)"]
    assert light == ["rgb(246, 247, 249)", "rgb(0, 104, 166)"]


@pytest.mark.slow
def test_reached_by_keyboard(show: Show) -> None:
    page = show(report_page(report()))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("width", WIDTHS)
def test_no_width_scrolls_sideways(tab: Tab, show: Show, two_ranks: str, width: int) -> None:
    tab.page.set_viewport_size({"width": width, "height": 800})
    page = show(two_ranks)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    plots = page.eval_on_selector_all(
        "div.plot", "all => all.map(p => p.querySelector('.main-svg').getBoundingClientRect().right)"
    )
    assert len(plots) >= 4
    assert max(plots) <= width


@pytest.mark.slow
def test_printing_is_light_and_cuts_nothing(tab: Tab, show: Show, two_ranks: str) -> None:
    tab.page.emulate_media(color_scheme="dark")
    page = show(two_ranks)
    before = page.evaluate("document.getElementById('step-0').data[0].marker.color")
    pdf = page.pdf(format="A4", print_background=True)
    assert pdf.startswith(b"%PDF")
    assert page.evaluate("document.getElementById('step-0').data[0].marker.color") == before
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.getElementById('step-0').data[0].marker.color") == "rgb(0, 104, 166)"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator(".bar").is_visible()
    widths = page.eval_on_selector_all("div.plot .main-svg", "all => all.map(svg => svg.getBoundingClientRect().width)")
    assert max(widths) <= 690


def test_without_scripts_tables_and_findings_are_there(chromium: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(report_page(report()), encoding="utf-8")
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.locator("noscript p").first.is_visible()
    assert page.locator("#step table").first.is_visible()
    assert page.get_by_text("forward_sync_buffers=False").is_visible()
    assert not [
        one for one in page.locator("button, select, input, figure, #buckets-chart-0-title").all() if one.is_visible()
    ]
    context.close()


ENCODABLE = {kind: name for kind, name in HOSTILE.items() if kind != "undecodable"}
MORE = {"image": '"><img src=x onerror=alert(1)>', "template": "%{x}<b>b</b><a href='javascript:alert(1)'>a</a>$x$"}


QUICK = ("html", "image")
NAMES = [
    pytest.param(name, id=kind, marks=() if kind in QUICK else pytest.mark.slow)
    for kind, name in {**ENCODABLE, **MORE}.items()
]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_stay_text(tab: Tab, show: Show, name: str) -> None:
    """No element of theirs, no dialog, no request: the fixture fails on the latter two."""
    page = show(report_page(hostile_report(name)))
    assert page.locator("main img, main script:not([type]), main b, main a[href^='javascript']").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 1400
    labels = page.locator("#slowdown-chart-0 .yaxislayer-above text").all_text_contents()
    assert not [label for label in labels if not label.isprintable()]


def test_hostile_names_in_the_timeline_stay_text(tab: Tab, show: Show) -> None:
    names = (
        "<b>bold</b><img src=x onerror=alert(1)>",
        "%{x}&lt;script&gt;",
        "x" * 10_000,
        "\x1b[31m\u202ered",
        "[bold]",
    )
    run = kernel_run(1, 1, 20, names)
    page = show(page_of(run))
    texts = page.eval_on_selector("#timeline-plot", "p => p.data.flatMap(t => t.hovertext)")
    assert any("&lt;b&gt;bold&lt;/b&gt;&lt;img src=x onerror=alert(1)&gt;" in text for text in texts)
    assert any("%{x}&amp;lt;script&amp;gt;" in text for text in texts)
    assert not [text for text in texts if "\x1b" in text or "\u202e" in text or len(text) > 500]
    hover(page, "forward")
    assert "<b>bold</b>" in (page.locator("#timeline-plot .hoverlayer").text_content() or "")


def test_a_thousand_ranks_and_the_choice_among_them(show: Show) -> None:
    page = show(report_page(thousand_ranks()))
    drawn = {label for trace in plotted(page, "#step-0") for label in trace["y"]}
    assert len(drawn) == 16
    assert "rank 700" in drawn
    ranks = page.locator("[data-choose=chosen-ranks]")
    ranks.fill("998-1200, 3")
    ranks.press("Enter")
    assert [row[0] for row in body(page, "#step-1")] == ["3", "998", "999"]
    page.eval_on_selector("[data-kind=ranks]", "map => map.emit('plotly_click', {points: [{x: 700}]})")
    assert [row[0] for row in body(page, "#step-1")] == ["3", "700", "998", "999"]


@pytest.mark.slow
def test_of_many_timelines_a_few_are_drawn_first(show: Show) -> None:
    run = kernel_run(20, 1, 50)
    made = build_report(run)
    page = show(report_page(made, build_timeline(run, made, ranks=worth_seeing(made))))
    ranks = page.locator("#drawn-ranks")
    assert ranks.input_value() == "0, 6, 13, 19"  # all compute alike
    ranks.fill(str(next(rank for rank in range(20) if rank not in worth_seeing(made))))
    ranks.press("Enter")
    problem = page.locator("#drawn-ranks-problem").inner_text()
    assert problem.startswith("No rank of this page: it has 0-")
    assert problem.endswith("For others write the page with --ranks.")


@pytest.mark.slow
def test_eight_ranks_of_twenty_steps_with_busy_accelerators(show: Show) -> None:
    page = show(page_of(kernel_run(8, 20, 2000)))
    bars = sum(len(trace["x"]) for trace in plotted(page, "#timeline-plot"))
    assert 500 < bars < 5000
    for _ in range(6):
        page.get_by_role("button", name="Zoom in").click()
    names = page.eval_on_selector(
        "#timeline-plot", "p => p.data.flatMap(t => t.hovertext).filter(t => !t.includes('too narrow'))"
    )
    assert any("void at::native::kernel_" in name for name in names)


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: report_page(gpu_report()), id="accelerator"),
        pytest.param(lambda: report_page(light_report()), id="light"),
        pytest.param(lambda: comparison_page(compare(report(), gpu_report())), id="comparison"),
        pytest.param(lambda: experiment_page("s", sweep_report()), id="sweep"),
        pytest.param(lambda: experiment_page("s", sweep_report("cap", is_work=False)), id="sweep-without-sizes"),
        pytest.param(lambda: experiment_page("s", scaling_report()), id="scale"),
        pytest.param(lambda: experiment_page("s", overhead_report()), id="overhead"),
    ],
)
def test_other_pages_draw_their_charts(show: Show, made: Callable[[], str]) -> None:
    page = show(made())
    charts = page.locator(".plot[data-figure]")
    assert charts.count() >= 1
    for chart in charts.all():
        assert chart.locator(".point, .point path, .lines path").count() >= 1


def test_the_numbers_of_an_experiment_are_drawn(show: Show) -> None:
    made = scaling_report()
    page = show(experiment_page("s", made))
    lost = {trace["name"]: trace["numbers"] for trace in plotted(page, "#charts-1")}
    points = json.loads(page.locator("#report-data").text_content() or "")["points"]
    expected = [point["lost"] for point in points if point["lost"] is not None]
    assert lost["DDP's own work"] == [one["wrapper_ns"] for one in expected]
    assert lost["slower compute"] == [one["compute_ns"] for one in expected]
