"""Digests of samples: equal where samples are, and without an operator of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from ddpprof.record.samples import digests, sizes_of

ROWS = torch.arange(24.0).reshape(4, 6)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(ROWS, id="tensor"),
        pytest.param((ROWS, ["a", "b"]), id="tuple-with-words"),
        pytest.param({"x": [ROWS]}, id="nested"),
        pytest.param(ROWS.t().contiguous().t(), id="transposed"),
        pytest.param(ROWS.to(torch.bfloat16), id="bfloat16"),
        pytest.param(ROWS.numpy(), id="array"),
    ],
)
def test_a_number_for_each_sample(batch: Any) -> None:
    found = digests(batch)
    assert found is not None
    assert len(set(found)) == len(found) == 4
    assert digests(batch) == found


def test_the_layout_in_memory_does_not_count() -> None:
    assert digests(ROWS) == digests(ROWS.t().contiguous().t()) == digests(ROWS.flip(0).flip(0))
    assert digests(ROWS.flip(0)) == list(reversed(digests(ROWS) or []))


def test_every_tensor_of_a_sample_counts() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    with_labels = digests((ROWS, labels))
    changed = digests((ROWS, torch.tensor([0, 0, 1, 0])))
    assert with_labels is not None
    assert changed is not None
    assert [a == b for a, b in zip(with_labels, changed, strict=True)] == [True, True, True, False]


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param([], id="empty"),
        pytest.param(["a", 3], id="no-tensor"),
        pytest.param(torch.tensor(3.0), id="one-number"),
        pytest.param(ROWS.clone().requires_grad_(), id="with-gradient"),
        pytest.param(ROWS.to_sparse(), id="sparse"),
        pytest.param(ROWS.to("meta"), id="on-a-device"),
        pytest.param((ROWS, ROWS.to("meta")), id="partly-on-a-device"),
        pytest.param(np.array([{}, {}]), id="objects"),
    ],
)
def test_what_cannot_be_read(batch: Any) -> None:
    assert digests(batch) is None


def test_tensors_of_different_lengths_are_one_sample() -> None:
    assert len(digests([torch.zeros(3, 4), torch.zeros(5, 4)]) or []) == 1


def test_of_a_large_batch_a_part_is_read() -> None:
    large = torch.zeros(64, 3, 100, 100)
    found = digests(large)
    assert found is not None
    assert len(found) == 32
    large[0] = 1
    changed = digests(large)
    assert changed is not None
    assert [i for i in range(32) if changed[i] != found[i]] == [0]


def test_the_profiler_sees_nothing() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        digests((ROWS, ROWS))
        sizes_of((ROWS, ROWS))
    assert [event.name for event in seen.events()] == []


def test_sizes() -> None:
    assert sizes_of({"x": ROWS, "y": np.zeros(7)}) == {24, 7}
