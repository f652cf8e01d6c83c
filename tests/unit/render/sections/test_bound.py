"""What bounds a step, and what is said of it."""

from dataclasses import replace
from typing import Any

import pytest
from observations import MS
from reports import report

from ddpprof.engine.predictions import Predicted, Predictions
from ddpprof.engine.topic import View
from ddpprof.layout import Line
from ddpprof.render.sections.bound import bound_lines
from ddpprof.report import BoundBy, Report
from ddpprof.report.bound import find_bound

OBSERVED = View(world_size=2, step_ns=60 * MS)


def exposing(share: float, **changes: Any) -> Report:
    """Of each step that share is communication, and all of it exposed."""
    made = report()
    ranks = tuple(
        replace(
            rank,
            steps=tuple(
                replace(step, duration_ns=50 * MS, comm_ns=round(50 * share * MS), exposed_ns=round(50 * share * MS))
                for step in rank.steps
            ),
        )
        for rank in made.ranks
    )
    return replace(made, ranks=ranks, **{"across": None, **changes})


def said(made: Report, observed: View = OBSERVED) -> str:
    lines = bound_lines(replace(made, bound=find_bound(made, observed)))
    return " ".join(line.text for line in lines if isinstance(line, Line))


def test_where_little_is_exposed_nothing_bounds_the_step() -> None:
    assert find_bound(exposing(0.09), OBSERVED) is None
    assert said(exposing(0.09)) == ""


def test_what_is_sent_decides_between_latency_and_bandwidth() -> None:
    large = exposing(0.5)
    bound = find_bound(large, OBSERVED)
    assert bound is not None
    assert (bound.by, bound.step_ns, bound.exposed_ns) == (BoundBy.BANDWIDTH, 50 * MS, 25 * MS)
    small = exposing(0.5, buckets=tuple(replace(bucket, num_bytes=1000) for bucket in large.buckets))
    assert said(small).startswith(
        "The step is long because of communication latency: 50% of it, 25.00 ms, is exposed communication."
    )


@pytest.mark.parametrize("num_bytes", [(), (None, None), (1000, None)], ids=["no-buckets", "none-known", "one-known"])
def test_buckets_of_unknown_size_are_not_called_small(num_bytes: tuple[int | None, ...]) -> None:
    """As in a trace of gloo without shapes."""
    large = exposing(0.5)
    unknown = replace(
        large, buckets=tuple(replace(one, num_bytes=of) for one, of in zip(large.buckets, num_bytes, strict=False))
    )
    bound = find_bound(unknown, OBSERVED)
    assert bound is not None
    assert (bound.by, bound.gradient_bytes) == (BoundBy.BANDWIDTH, None)
    assert "MB of gradients" not in said(unknown)


def test_a_step_with_several_passes_sends_its_gradients_several_times() -> None:
    one = exposing(0.5)
    once = find_bound(one, OBSERVED)
    twice = find_bound(replace(one, buckets=tuple(replace(b, num_passes=2) for b in one.buckets)), OBSERVED)
    assert once is not None
    assert twice is not None
    assert twice.gradient_bytes == 2 * (once.gradient_bytes or 0)


@pytest.mark.parametrize(
    ("predicted", "words"),
    [
        pytest.param(
            Predicted(5 * MS, 2 * MS, 8 * MS),
            "these would help: a network with twice the bandwidth, 5.00 ms per step (2.00 – 8.00).",
            id="helps",
        ),
        pytest.param(Predicted(5 * MS, -MS, 8 * MS), "within its uncertainty): a network with twice", id="may-help"),
        pytest.param(Predicted(-MS, -2 * MS, MS), "these do not help: a network with twice", id="does-not-help"),
    ],
)
def test_what_would_help_by_the_replay(predicted: Predicted, words: str) -> None:
    observed = replace(OBSERVED, predictions=Predictions(double_link=predicted))
    assert words in said(exposing(0.5), observed)


def test_what_cannot_be_replayed_is_said_without_numbers() -> None:
    assert "cannot be replayed with other settings" in said(exposing(0.5))
