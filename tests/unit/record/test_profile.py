"""What `ddpprof.profile` says at its end, and of itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ddpprof
from ddpprof.record.session import Session


def ended(block: Any, run: Path | None, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what it says as its block ends, of which nothing was recorded if `run` is ``None``."""
    block._session = SimpleNamespace(run_to_tell_of=run, close=lambda _error: None)
    block.__exit__(None, None, None)
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


@pytest.mark.parametrize("kind", [ddpprof.profile, ddpprof.watch])
def test_the_first_rank_says_where_the_run_is_and_what_comes_next(
    kind: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ended(kind("runs/a"), Path("runs/a"), capsys)
    assert said == "ddpprof: the run is in runs/a. View it with: ddpprof report runs/a\n"
    assert ended(kind("runs/a"), None, capsys) == ""


@pytest.mark.parametrize(
    ("leads", "has_files", "tells"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_only_the_rank_that_leads_tells_of_a_run_that_exists(leads: bool, has_files: bool, tells: bool) -> None:
    files = SimpleNamespace(directory=Path("runs/a")) if has_files else None
    session: Any = SimpleNamespace(job=SimpleNamespace(files=files, leads=leads))
    found = Session.run_to_tell_of.fget(session)  # type: ignore[attr-defined]
    assert found == (Path("runs/a") if tells else None)


def test_it_shows_its_folder_and_the_next_command() -> None:
    assert repr(ddpprof.profile("/runs/a")) == (
        "<ddpprof.profile: records into /runs/a; view it with: ddpprof report /runs/a>"
    )
