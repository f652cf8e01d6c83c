"""Functions with which tests look at pages in the browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drawn_runs import build_timeline

from ddpprof.model import Run
from ddpprof.render.html.report_page import report_page
from ddpprof.report.build import build_report

if TYPE_CHECKING:
    from playwright.sync_api import Page

SAMPLES = Path(__file__).parents[2] / "sample_traces"
GLOO_2, GLOO_4 = SAMPLES / "convnet-gloo-2ranks", SAMPLES / "transformer-gloo-4ranks"

Show = Callable[[str], "Page"]
"""function that opens a page from disk, and waits until all is drawn"""


def page_of(run: Run) -> str:
    made = build_report(run)
    return report_page(made, build_timeline(run, made))


def unpacked(text: str) -> bytes:
    """Undo `ddpprof.render.html.packed`."""
    return gzip.decompress(base64.b85decode(text.translate(str.maketrans(":,.", "&<>"))))


def data_of(page: str, name: str) -> Any:
    """Return the JSON that a page carries under a name."""
    found = re.search(
        rf'<script type="application/json" id="{name}"( data-encoding="gzip")?>(.*?)</script>', page, re.DOTALL
    )
    assert found is not None
    return json.loads(unpacked(found[2]) if found[1] else found[2])


def plotted(page: Page, selector: str) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = page.eval_on_selector(
        selector, "p => p.data.map(t => ({name: t.name, y: t.y, x: t.x, base: t.base, numbers: t.customdata}))"
    )
    return data


def body(page: Page, table: str) -> list[list[str]]:
    rows: list[list[str]] = page.eval_on_selector_all(
        f"{table} tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return rows
