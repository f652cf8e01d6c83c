"""No rule gives a compiled model advice on buckets that ignores how it is compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from observations import BUFFERS, HELD, LATE, MS, observed, of_mib
from tables import ddp_module

from ddpprof.engine.finding import NewBuckets, Predicted, Predictions
from ddpprof.engine.topic import View
from ddpprof.report.topics import find_all

WORDS = ("bucket_cap_mb", "caps", "Shrink", "Split", "fewer buckets", "Cap the", "ready in the same order")
BETTER = NewBuckets("bucket_cap_mb=1", (1, 1), Predicted(20 * MS, 15 * MS, 25 * MS))
SPLIT = of_mib([8, 8], [1])
FIRST = [
    {"transfer_ns": 20 * MS, "ready_ns": 40 * MS, "first_ready_ns": 5 * MS, "launched_ns": 40 * MS},
    {"transfer_ns": 2 * MS, "ready_ns": 50 * MS, "first_ready_ns": 45 * MS, "launched_ns": 50 * MS},
]
VIEWS = [
    pytest.param(observed(HELD, LATE, exposed_ns=30 * MS), id="a-late-parameter"),
    pytest.param(observed(SPLIT, FIRST, exposed_ns=30 * MS), id="a-large-first-bucket"),
    pytest.param(
        observed(of_mib([1], [8, 8]), FIRST, exposed_ns=30 * MS, trailing_ns=20 * MS), id="a-large-last-bucket"
    ),
    pytest.param(
        observed(
            of_mib(*[[0.25]] * 8),
            [{"transfer_ns": 2 * MS, "ready_ns": time * MS} for time in range(8)],
            exposed_ns=14 * MS,
        ),
        id="small-buckets",
    ),
    pytest.param(
        observed(SPLIT, FIRST, exposed_ns=30 * MS, predictions=Predictions(best_buckets=BETTER)), id="better-buckets"
    ),
]


@pytest.mark.parametrize("view", VIEWS)
def test_advice_on_buckets_is_not_given_to_a_compiled_model(view: View) -> None:
    said = [f"{one.title} {one.evidence} {one.advice}" for one in find_all(view)]
    assert any(word in text for text in said for word in WORDS), "the view must give such advice without compilation"
    for one in find_all(replace(view, is_compiled=True)):
        assert not any(word in f"{one.title} {one.evidence} {one.advice}" for word in WORDS), one
        assert one.change is None or not {"bucket_cap_mb", "bucket_cap_mb_list"} & one.change.values.keys()


def test_other_advice_stays() -> None:
    view = observed(
        ddp_module(**BUFFERS, broadcast_buffers=True, find_unused_parameters=True, unused=()),
        exposed_ns=30 * MS,
        buffer_sync_ns=10 * MS,
        unused_search_ns=5 * MS,
    )
    rules = [one.rule for one in find_all(view)]
    assert rules
    assert [one.rule for one in find_all(replace(view, is_compiled=True))] == rules
