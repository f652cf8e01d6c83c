"""What bounds a step, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import reports
from observations import MS, observed
from reports import report

from ddpprof.engine.finding import Change, ChangeKind, Finding, Predicted, Predictions
from ddpprof.engine.topic import View, is_noise
from ddpprof.layout import Line
from ddpprof.report import Bound, BoundBy, Report
from ddpprof.topics.accumulation import Accumulation
from ddpprof.topics.bound import bound_lines, bound_remarks, find_bound

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
    bound = find_bound(made, observed)
    lines = () if bound is None else bound_lines(bound, made)
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
        "The step is long because of communication latency: exposed communication takes 25.0 ms, 50% of the step."
    )
    part = exposing(0.3, buckets=small.buckets)
    assert said(part).startswith("Communication latency is not hidden: exposed communication takes 15.0 ms, 30%")


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


def test_a_step_is_bound_by_what_takes_most_of_it() -> None:
    for share, words in ((0.5, "The step is communication-bound"), (0.3, "Part of the communication is not hidden")):
        assert said(exposing(share)).startswith(f"{words}: exposed communication takes")


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
            "these changes would help: a network with twice the bandwidth, 5.00 ms per step (2.00–8.00).",
            id="helps",
        ),
        pytest.param(
            Predicted(5 * MS, -MS, 8 * MS), "the predictions are uncertain: a network with twice", id="may-help"
        ),
        pytest.param(
            Predicted(-MS, -2 * MS, MS), "these changes do not help: a network with twice", id="does-not-help"
        ),
    ],
)
def test_what_would_help_by_the_replay(predicted: Predicted, words: str) -> None:
    observed = replace(OBSERVED, predictions=Predictions(double_link=predicted))
    assert words in said(exposing(0.5), observed)


def test_what_cannot_be_replayed_is_said_without_numbers() -> None:
    assert "cannot be replayed with other settings" in said(exposing(0.5))


SAVES = Predicted(10 * MS, 4 * MS, 20 * MS)
ACCUMULATES = (Accumulation(module=0, num_passes=4, num_superfluous=3, num_steps=9),)


def found(report: Report, **seen: Any) -> Bound:
    bound = find_bound(report, observed(**seen))
    assert bound is not None
    return bound


def of_steps(*num_collectives: int, waiting_ns: int | None = None) -> Report:
    """One rank, whose steps communicate 50 ms of 100, and how long it waits in one of them."""
    given = reports.step(0, compute=50_000, comm=50_000, overlap=0, trailing=0, idle=0)
    steps = [replace(given, step=at, num_comm_kernels=number) for at, number in enumerate(num_collectives)]
    across = reports.across()
    across = replace(across, waiting=(replace(across.waiting[0], waiting_per_step_ns=waiting_ns),))
    return reports.report(ranks=(reports.rank(0, *steps),), across=across)


@pytest.mark.parametrize(
    ("accumulation", "expected"),
    [
        pytest.param(ACCUMULATES, ["no_sync"], id="gradients-add-up"),
        pytest.param((), [], id="every-pass-needs-its-own-gradients"),  # LBFGS asks for them through its closure
    ],
)
def test_only_passes_that_accumulate_can_go_without_reduction(
    accumulation: tuple[Accumulation, ...], expected: list[str]
) -> None:
    bound = found(of_steps(4), accumulation=accumulation, predictions=Predictions(no_sync=SAVES))
    assert [one.what for one in bound.would_help] == expected


def test_against_latency_a_faster_network_and_fewer_bytes_do_not_help() -> None:
    (bucket, *_) = reports.report().buckets
    little = replace(of_steps(4), buckets=(replace(bucket, num_bytes=1000, num_passes=1),))
    predictions = Predictions(double_link=SAVES, compression=SAVES, accumulation=SAVES)
    bound = found(little, predictions=predictions)
    assert (bound.by, [one.what for one in bound.would_help]) == (BoundBy.LATENCY, ["accumulation"])


def test_what_is_of_other_steps_is_not_said_of_the_usual_ones() -> None:
    assert found(of_steps(4, waiting_ns=40 * MS)).waiting_ns == 40 * MS
    assert found(of_steps(4, waiting_ns=60 * MS)).waiting_ns is None, "longer than all communication of a usual step"
    whole = replace(of_steps(4), buckets=reports.report().buckets)
    assert found(whole).gradient_bytes is not None
    assert found(replace(of_steps(1), buckets=whole.buckets)).gradient_bytes is None


@pytest.mark.parametrize("step_noise_ns", [None, 5 * MS, 15 * MS])
def test_what_is_noise_as_a_finding_is_noise_here(step_noise_ns: int | None) -> None:
    seen = observed(step_noise_ns=step_noise_ns)
    (one,) = found(of_steps(4), step_noise_ns=step_noise_ns, predictions=Predictions(double_link=SAVES)).would_help
    finding = Finding("rule", "title", "why", "what", SAVES.high_ns, predicted=SAVES)
    assert one.is_noise == is_noise(finding, seen) == (step_noise_ns == 15 * MS)


def test_the_collectives_of_a_step_are_those_of_the_usual_one() -> None:
    assert found(of_steps(8, 8, 8, 4)).num_collectives == 8


@pytest.mark.parametrize(
    ("waiting_ns", "by"),
    [(26 * MS, BoundBy.WAITING), (24 * MS, BoundBy.BANDWIDTH), (None, BoundBy.BANDWIDTH)],
)
def test_waiting_is_what_the_table_of_waiting_ranks_says(waiting_ns: int | None, by: BoundBy) -> None:
    bound = found(of_steps(4, waiting_ns=waiting_ns))
    assert (bound.by, bound.waiting_ns) == (by, waiting_ns)


def test_what_a_finding_recommends_is_not_told_twice() -> None:
    """It was 71.7 ms in the finding, and 72.4 ms here."""
    predictions = Predictions(no_sync=SAVES, double_link=SAVES)
    made = exposing(0.5, findings=())
    bound = find_bound(made, observed(accumulation=ACCUMULATES, predictions=predictions))
    change = Change(ChangeKind.NO_SYNC, {"num_passes": 4}, "no_sync")
    finding = Finding("reduces-every-pass", "title", "why", "what", SAVES.high_ns, predicted=SAVES, change=change)
    alone, beside = ([*bound_remarks(replace(made, bound=bound, findings=one))] for one in ((), (finding,)))
    assert [line for line in alone if line not in beside] == [
        "Reducing gradients only in the last backward pass of a step would save 10.0 ms per step (4.00–20.0)."
    ]
