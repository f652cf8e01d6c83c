"""Ranks whose copies of the model drift apart are told, with what makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jobs import QUICK, Run, on_ranks, script

LONG = pytest.mark.long
Report = Callable[[str], dict[str, Any]]
CALL_ONCE, WRAP_LATER = "Call backward() once for each forward", "DDP makes the copies equal when it wraps the model"


@pytest.mark.parametrize(
    ("way", "advice"),
    [
        pytest.param("second-backward", CALL_ONCE, id="a-second-backward-through-one-graph"),
        pytest.param("second-forward", CALL_ONCE, id="two-forwards-before-two-backwards", marks=LONG),
        pytest.param("loaded-on-one-rank", WRAP_LATER, id="loaded-on-one-rank-after-wrapping", marks=LONG),
        pytest.param("sum", None, id="one-backward"),
        pytest.param("accumulated", None, id="accumulated-under-no-sync", marks=pytest.mark.long),
    ],
)
def test_copies_that_differ(way: str, advice: str | None, ddpprof: Run, report: Report) -> None:
    options = ["--out", "run", "--quiet", *QUICK]
    done = ddpprof("trace", *options, *on_ranks(2, *script("two_losses.py", "--way", way)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == ("equal" if advice is None else "different")
    found = [finding for finding in report("run")["findings"] if finding["rule"] == "copies-differ"]
    assert [finding["advice"].startswith(advice or "") for finding in found] == ([] if advice is None else [True])


@pytest.mark.long
def test_parameters_that_are_unfrozen_after_ddp_was_constructed(ddpprof: Run, report: Report) -> None:
    done = ddpprof("trace", "--out", "run", *QUICK, *on_ranks(2, *script("two_losses.py", "--way", "unfrozen")))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "different"
    first = report("run")["findings"][0]
    assert (first["rule"], first["is_correctness"]) == ("unfrozen-parameters", True)
    assert first["title"].endswith("2 parameters that were frozen when DDP was constructed: 0.weight, 0.bias")


@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "says"),
    [
        pytest.param("inner", "2 parameters of Linear: weight, bias", id="no-ddp-module-is-called"),
        pytest.param("second", "2 parameters of Linear: weight, bias", id="one-of-two-is-never-called"),
        pytest.param("forgotten", "2 parameters of Linear: weight, bias", id="not-wrapped"),
        pytest.param("scale", "1 parameter outside all modules: shape ()", id="of-the-loss"),
        pytest.param("by-hand", None, id="averaged-by-the-script"),
        pytest.param("called", None, id="both-are-called"),
    ],
)
def test_parameters_that_ddp_does_not_average(way: str, says: str | None, ddpprof: Run, report: Report) -> None:
    done = ddpprof("trace", "--out", "run", *QUICK, *on_ranks(2, *script("unaveraged.py", "--way", way)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == ("different" if says else "equal")
    findings = report("run")["findings"]
    found = [one for one in findings if one["rule"] in ("unaveraged-parameters", "unwrapped-parameters")]
    assert ["".join(one["title"].partition(says or "")[1:]) for one in found] == ([says] if says else [])
    if way in ("inner", "second"):
        assert findings[0]["rule"] == "unaveraged-parameters"
    assert not any(one["rule"] == "gradient-averaging" for one in findings), "DDP does not have these gradients"
