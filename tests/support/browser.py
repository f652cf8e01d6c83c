"""A plugin, whose fixtures need no import, for pages in headless Chromium and their complaints."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Route, WebSocketRoute

_LOCAL_SCHEMES = ("file", "data", "blob", "about")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ARGUMENTS = (
    "--no-sandbox",  # CI runs as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Tab:
    """A page in a context of its own, 1400 × 900, light.

    Anything in `complaints` when the test ends fails it: errors on the console, exceptions of the page, dialogs, and
    requests to other hosts, which are refused. A test that provokes one checks and removes it.
    """

    page: Page
    complaints: list[str] = field(default_factory=list)

    def open(self, what: Path | str) -> Page:
        """Open a file, or the URL of a server on this machine."""
        self.page.goto(what.resolve().as_uri() if isinstance(what, Path) else what)
        return self.page

    def _refuse(self, route: Route) -> None:
        if _is_local(route.request.url):
            route.continue_()
        else:
            self.complaints.append(f"request to {route.request.url}")
            route.abort()

    def _refuse_socket(self, route: WebSocketRoute) -> None:
        self.complaints.append(f"request to {route.url}")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(f"console: {message.text}")

    def _dismiss(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for all tests."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        pytest.skip("chromium is not on PATH: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Browser) -> Iterator[Tab]:
    """An empty page that may talk to files and to this machine only."""
    context = chromium.new_context(viewport={"width": 1400, "height": 900}, accept_downloads=True)
    opened = Tab(context.new_page())
    context.route("**/*", opened._refuse)
    context.route_web_socket(lambda url: not _is_local(url), opened._refuse_socket)
    context.on("console", opened._console)
    context.on("weberror", lambda error: opened.complaints.append(f"exception: {error.error}"))

    context.on("dialog", opened._dismiss)
    yield opened
    context.close()
    assert not opened.complaints, "the page complained:\n" + "\n".join(opened.complaints)


def _is_local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in _LOCAL_SCHEMES or parts.hostname in _LOOPBACK
