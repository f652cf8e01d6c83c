"""Pages serve every reader: by keyboard, in the dark, on a phone, on paper, without scripts. Names do no harm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import Tab
from experiments import experiment_page, overhead_report, scaling_report, sweep_report
from pages import Show
from reports import HOSTILE, comparison_page, gpu_report, hostile_report, light_report, report

from ddpprof.render.html.report_page import report_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.long
WIDTHS = [360, 800, 1400]


def test_a_definition_is_one_click_away(show: Show, two_ranks: str) -> None:
    page = show(two_ranks)
    link = page.locator("a.term", has_text="trailing").first
    link.focus()
    page.keyboard.press("Enter")
    definition = page.locator("#definition")
    assert definition.is_visible()
    assert "Gradient communication between the last op of a backward pass" in definition.inner_text()
    page.keyboard.press("Escape")
    definition.wait_for(state="hidden")
    assert link.evaluate("link => document.activeElement === link")


@pytest.mark.parametrize("has_clipboard", [True, False])
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


def test_without_scripts_tables_and_findings_are_there(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(report_page(report()), encoding="utf-8")
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.locator("noscript p").first.is_visible()
    assert page.locator("#step table").first.is_visible()
    assert page.locator("#finding-1-advice").is_visible()
    assert not [
        one for one in page.locator("button, select, input, figure, #buckets-chart-0-title").all() if one.is_visible()
    ]
    context.close()


ENCODABLE = {kind: name for kind, name in HOSTILE.items() if kind != "undecodable"}
MORE = {"image": '"><img src=x onerror=alert(1)>', "template": "%{x}<b>b</b><a href='javascript:alert(1)'>a</a>$x$"}


NAMES = [pytest.param(name, id=kind) for kind, name in {**ENCODABLE, **MORE}.items()]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_stay_text(tab: Tab, show: Show, name: str) -> None:
    """No element of theirs, no dialog, no request: the fixture fails on the latter two."""
    page = show(report_page(hostile_report(name)))
    assert page.locator("main img, main script:not([type]), main b, main a[href^='javascript']").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 1400
    labels = page.locator("#slowdown-chart-0 .yaxislayer-above text").all_text_contents()
    assert not [label for label in labels if not label.isprintable()]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: report_page(gpu_report()), id="accelerator"),
        pytest.param(lambda: report_page(light_report()), id="light"),
        pytest.param(lambda: comparison_page(report(), gpu_report()), id="comparison"),
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
