"""The browser's fixture: what a page does wrong is noticed, and no other host is reached."""

from pathlib import Path

import pytest
from browser import Tab

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("markup", "complaint"),
    [
        pytest.param("<script>console.error('wrong')</script>", "console: wrong", id="console-error"),
        pytest.param("<script>throw new Error('thrown')</script>", "exception: thrown", id="exception"),
        pytest.param("<img src=https://example.org/x.png>", "request to https://example.org/x.png", id="other-host"),
        pytest.param("<script>new WebSocket('wss://example.org/s')</script>", "request to wss://", id="websocket"),
        pytest.param("<script>alert('hello')</script>", "dialog: hello", id="dialog"),
    ],
)
def test_complaints_are_recorded(tab: Tab, tmp_path: Path, markup: str, complaint: str) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><title>page</title>{markup}")

    tab.open(page)
    for _ in range(500):
        if any(complaint in each for each in tab.complaints):
            break
        tab.page.wait_for_timeout(20)
    else:
        pytest.fail(f"never {complaint}: {tab.complaints}")
    tab.complaints.clear()


def test_a_good_page_has_none(tab: Tab, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><title>page</title><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='><p>text")

    assert tab.open(page).locator("p").inner_text() == "text"
    assert tab.complaints == []
