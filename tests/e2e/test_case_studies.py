"""The case studies of the documentation, as their pages tell them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from jobs import Run

STUDIES = Path(__file__).parents[2] / "docs" / "case-studies"
RULES = {
    "accumulation": "reduces-every-pass",
    "buffers": "buffers-broadcast",
    "unused": "find-unused-for-nothing",
}


def test_every_script_has_a_page() -> None:
    assert {one.stem for one in STUDIES.glob("*.py")} == {one.stem for one in STUDIES.glob("*.md")} - {"index"}
    assert {one.stem for one in STUDIES.glob("*.py")} == RULES.keys()


@pytest.mark.long
@pytest.mark.parametrize("study", RULES)
def test_the_finding_is_the_one_that_the_page_shows(
    study: str, tmp_path: Path, ddpprof: Run, report: Callable[[str], dict[str, Any]]
) -> None:
    copy(STUDIES / f"{study}.py", tmp_path)
    traced = ddpprof("trace", "--nproc-per-node", "2", "--stop-after", "--out", "run", f"{study}.py")
    assert traced.returncode == 0, traced.stderr
    found = [one["rule"] for one in report("run")["findings"] if not one["is_noise"]]
    assert RULES[study] in found[:2]
    tried = ddpprof("try", "run", "--rule", RULES[study], "--rounds", "2", "--timed-steps", "20")
    assert tried.returncode == 0, tried.stderr
    assert "Finding " in tried.stdout
    assert "changes the losses" not in tried.stdout
