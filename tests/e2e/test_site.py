"""The site that `make docs` builds, as a reader sees it: from files, without a network."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import Tab

SITE = Path(__file__).parents[2] / "site"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="the site is not built: make docs"),
]
PHONE = {"width": 375, "height": 740}
_LINK = re.compile(r'(?:href|src)="([^"]*)"')
_ANCHOR = re.compile(r'\b(?:id|name)="([^"]+)"')


def pages() -> list[Path]:
    return sorted(page for page in SITE.rglob("*.html") if page.name != "404.html")


def test_search_finds_a_term(tab: Tab) -> None:
    page = tab.open(SITE / "index.html")
    box = page.get_by_role("textbox", name="Search")
    box.click()  # loads the index
    box.press_sequentially("straggler", delay=30)
    found = page.locator(".md-search-result__link").first
    found.wait_for(timeout=20_000)
    assert "traggler" in found.inner_text()
    found.click()
    page.wait_for_url(re.compile(r"stragglers|terms"))


def test_links_lead_somewhere() -> None:
    anchors = {page: set(_ANCHOR.findall(page.read_text(encoding="utf-8"))) for page in pages()}
    dead = []
    for page in anchors:
        for link in set(_LINK.findall(page.read_text(encoding="utf-8"))):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if not target.exists() or (anchor and target in anchors and anchor not in anchors[target] | {"__top"}):
                dead.append(f"{page.relative_to(SITE)}: {link}")
    assert not dead


def test_nothing_is_loaded_from_elsewhere() -> None:
    loading = re.compile(r'<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)="(https?:)?//[^"]*"')
    assert not [page.name for page in pages() if loading.search(page.read_text(encoding="utf-8"))]


def test_the_theme_changes_and_stays(tab: Tab) -> None:
    page = tab.open(SITE / "index.html")
    scheme = "document.body.getAttribute('data-md-color-scheme')"
    assert page.evaluate(scheme) == "default"
    page.get_by_title("Use the dark theme").click()
    assert page.evaluate(scheme) == "slate"
    page.goto((SITE / "concepts" / "step.html").as_uri())
    page.wait_for_function(f"{scheme} === 'slate'")


def test_a_phone_scrolls_in_one_direction(tab: Tab) -> None:
    """All pages in one tab, since a tab of its own for each takes minutes."""
    tab.page.set_viewport_size(PHONE)
    broken = "[...document.images].filter(one => one.complete && !one.naturalWidth).map(one => one.src)"
    for page in pages():
        shown = tab.open(page)
        assert shown.evaluate("document.scrollingElement.scrollWidth") <= PHONE["width"], page
        assert shown.locator("h1").count() == 1, page
        assert shown.evaluate(broken) == [], page
