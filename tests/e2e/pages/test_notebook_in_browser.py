"""Results in the cells of a notebook, drawn by a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reports import hostile_report


@pytest.mark.long
@pytest.mark.parametrize("width", [375, 1400])
def test_no_cell_is_wider_than_its_notebook(tab: Any, tmp_path: Path, width: int) -> None:
    tab.page.set_viewport_size({"width": width, "height": 800})
    path = tmp_path / "cell.html"
    path.write_text(f'<!doctype html><meta charset="utf-8">{hostile_report("x" * 300)._repr_html_()}', encoding="utf-8")
    page = tab.open(path)
    page.eval_on_selector_all("details", "all => all.forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
