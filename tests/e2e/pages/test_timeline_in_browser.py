"""The timeline answers: to hovering, zooming, and the choice of steps and ranks."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from drawn_runs import build_timeline
from large_runs import kernel_run
from pages import Show, body, page_of, plotted

from ddpprof.render.html.report_page import report_page
from ddpprof.report.build import build_report
from ddpprof.topics.steps.view import worth_seeing

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.long
RANGE = "document.getElementById('timeline-plot')._fullLayout.xaxis.range"


def visible_range(page: Page) -> tuple[float, float]:
    low, high = page.evaluate(RANGE)
    return low, high


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


def test_hovering_names_what_is_there(show: Show, two_ranks: str) -> None:
    page = show(two_ranks)
    begin, end = hover(page, "backward")
    text = page.locator("#timeline-plot .hoverlayer").text_content() or ""
    assert re.match(r"rank \d, backwardautograd::engine::evaluate_function: \w+Backward0", text)
    assert f"{begin:.2f} to {end:.2f} ms" in text


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
    page.evaluate("document.getElementById('timeline-plot')._context.doubleClickDelay = 20_000")  # for busy machines
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
    assert "No such rank. This page has ranks 0-1." in page.locator("#chosen-ranks-problem").inner_text()
    assert ranks.get_attribute("aria-invalid") == "true"


def test_where_no_rank_has_the_step_nothing_of_another_is_drawn(show: Show) -> None:
    longer, shorter = kernel_run(1, 3, 20), kernel_run(2, 2, 20)
    page = show(page_of(replace(longer, ranks=(*longer.ranks, shorter.ranks[1]))))
    ranks, chooser = page.locator("#drawn-ranks"), page.get_by_label("Step", exact=True).first
    ranks.fill("1")
    ranks.press("Enter")
    assert plotted(page, "#timeline-plot")
    chooser.select_option(chooser.locator("option").last.get_attribute("value"))
    assert plotted(page, "#timeline-plot") == []
    assert body(page, "#timeline-numbers") == []
    assert "None of these ranks has this step." in (page.locator("#timeline-plot").text_content() or "")
    page.get_by_role("button", name="Zoom in").click()
    ranks.fill("0")
    ranks.press("Enter")
    assert plotted(page, "#timeline-plot")


def test_hostile_names_in_the_timeline_stay_text(show: Show) -> None:
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


def test_of_many_timelines_a_few_are_drawn_first(show: Show) -> None:
    run = kernel_run(20, 1, 50)
    made = build_report(run)
    page = show(report_page(made, build_timeline(run, made, ranks=worth_seeing(made))))
    ranks = page.locator("#drawn-ranks")
    assert ranks.input_value() == "0, 6, 13, 19"  # all compute alike
    ranks.fill(str(next(rank for rank in range(20) if rank not in worth_seeing(made))))
    ranks.press("Enter")
    problem = page.locator("#drawn-ranks-problem").inner_text()
    assert problem.startswith("No such rank. This page has ranks 0-")
    assert problem.endswith("To see other ranks, write the page with --only-ranks.")


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
