"""Files that `ddpprof whatif` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpprof.cli import main

CHECKOUT = Path(__file__).parents[3]


RUN = str(CHECKOUT / "sample_traces" / "transformer-gloo-4ranks")


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotly")
    page, text = tmp_path / "a.html", tmp_path / "a.md"
    assert main(["whatif", RUN, "--no-cache", "--out", str(page)]) == 0
    assert main(["whatif", RUN, "--no-cache", "--out", str(text)]) == 0
    assert "Predicted step" in page.read_text(encoding="utf-8")
    assert "bucket" in text.read_text(encoding="utf-8")
    capsys.readouterr()
