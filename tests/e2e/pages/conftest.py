"""Pages, opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import Tab
from pages import GLOO_2, Show, page_of

from ddpprof.load.run import load_run

if TYPE_CHECKING:
    from playwright.sync_api import Page


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


@pytest.fixture(scope="session")
def two_ranks() -> str:
    return page_of(load_run(GLOO_2))
