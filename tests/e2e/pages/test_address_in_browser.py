"""The address of a page names the step and the ranks that its reader looks at, and leads another reader there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import Tab
from pages import Show

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.long


def address(page: Page) -> str:
    return str(page.evaluate("location.hash"))


def go_to(tab: Tab, page: Page, fragment: str) -> Page:
    """Open the page of the same file, as somebody does who got its address."""
    url = page.url.partition("#")[0]
    page.goto("about:blank")
    tab.open(f"{url}{fragment}")
    page.wait_for_selector("html[data-complete]", state="attached")
    return page


@pytest.mark.parametrize("part", ["step", "timeline"])
def test_what_one_reader_chooses_another_one_sees(part: str, tab: Tab, show: Show, two_ranks: str) -> None:
    page = show(two_ranks)
    assert address(page) == "", "nothing was chosen"
    steps = page.eval_on_selector_all(f"#{part} select option", "all => all.map(one => one.value)")
    other = next(step for step in steps if step != page.locator(f"#{part} select").input_value())
    page.locator(f"#{part} select").select_option(other)
    page.locator(f"#{part} input").fill("1")
    page.locator(f"#{part} input").press("Enter")
    assert address(page) == f"#{part}?step={other}&ranks=1"
    page = go_to(tab, page, address(page))
    assert page.locator(f"#{part} select").input_value() == other
    assert page.locator(f"#{part} input").input_value() == "1"
    table = "#timeline-numbers" if part == "timeline" else "#step table >> nth=0"
    assert page.locator(f"{table} >> tbody >> tr").count() == 1
    top = page.evaluate("part => document.getElementById(part).getBoundingClientRect().top", part)
    assert -5 < top < 100, "it leads to the part"


def test_an_address_may_change_while_the_page_is_open(show: Show, two_ranks: str) -> None:
    page = show(two_ranks)
    page.evaluate("location.hash = '#timeline?ranks=0'")
    page.wait_for_function("document.querySelector('#timeline input').value === '0'")
    assert page.locator("#timeline-numbers >> tbody >> tr").count() == 1
    assert page.locator("#step input").input_value() == "0-1"


@pytest.mark.parametrize(
    ("fragment", "said"),
    [
        ("#step?step=999&ranks=0", "This page has no step 999."),
        ("#step?ranks=77", "No such rank. This page has ranks 0-1."),
        ("#step?ranks=<img src=x onerror=alert(1)>", "No such rank. This page has ranks 0-1."),
    ],
)
def test_what_the_page_does_not_have_is_said(fragment: str, said: str, tab: Tab, show: Show, two_ranks: str) -> None:
    page = go_to(tab, show(two_ranks), fragment)
    assert page.locator("#step .problem").inner_text().startswith(said)
    assert page.locator("main img").count() == 0


@pytest.mark.parametrize("fragment", ["#buckets", "#nothing?step=1", "#step?", "#step?step=&ranks=", "#%"])
def test_other_addresses_choose_nothing(fragment: str, tab: Tab, show: Show, two_ranks: str) -> None:
    page = go_to(tab, show(two_ranks), fragment)
    assert page.locator("#step input").input_value() == "0-1"
    assert page.locator("#step .problem").inner_text() == ""


def test_a_sections_heading_is_its_link(show: Show, two_ranks: str) -> None:
    page = show(two_ranks)
    page.get_by_role("heading", name="Buckets", exact=True).get_by_role("link").click()
    assert address(page) == "#buckets"


def test_a_browser_that_cannot_unpack_has_the_tables_and_is_told(tab: Tab, two_ranks: str, tmp_path: Path) -> None:
    tab.page.add_init_script("delete window.DecompressionStream")
    path = tmp_path / "page.html"
    path.write_text(two_ranks, encoding="utf-8")
    page = tab.open(path)
    page.locator("#old-browser").wait_for(state="visible")
    assert "Charts need a browser released in 2023 or later." in page.locator("#old-browser").inner_text()
    assert page.locator("#step table").first.is_visible()
    assert not [one for one in page.locator("select, input, figure").all() if one.is_visible()]
