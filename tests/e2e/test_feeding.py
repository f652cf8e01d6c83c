"""What is said of data in real training: only what the batches show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jobs import Run, on_ranks, script

LONG = pytest.mark.long
Report = Callable[[str], dict[str, Any]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("feed", "rules"),
    [
        pytest.param("divided", set(), id="sound"),
        pytest.param("same_order", {"same-samples"}, id="one-seed-on-all-ranks"),
        pytest.param("same_order_workers", {"same-samples"}, id="with-workers", marks=LONG),
        pytest.param("own_order", {"same-samples"}, id="a-seed-for-each-rank", marks=LONG),
        pytest.param("stream", {"same-samples"}, id="a-stream", marks=LONG),
        pytest.param("no_set_epoch", {"set-epoch-never-called"}, id="epochs-in-one-order", marks=LONG),
        pytest.param("own_part", set(), id="a-data-set-for-each-rank", marks=LONG),
        pytest.param("divided_stream", set(), id="a-divided-stream", marks=LONG),
        pytest.param("divided_batches", set(), id="a-batch-sampler-that-divides", marks=LONG),
        pytest.param("one_batch", set(), id="overfitting-one-batch", marks=LONG),
    ],
)
def test_what_is_said_of_data(feed: str, rules: set[str], ddpprof: Run, report: Report) -> None:
    options = ["--out", "run", "--quiet"]
    done = ddpprof("trace", *options, *on_ranks(2, *script("feeding.py", "--feed", feed)))
    assert done.returncode == 0, done.stderr
    assert {finding["rule"] for finding in report("run")["findings"] if finding["is_correctness"]} == rules
