"""Copies to the accelerator: times made by hand, and traces of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from shared import TRACES
from tables import collective, record, trace

from ddpprof.engine.topic import View
from ddpprof.load.rank import load_rank
from ddpprof.load.run import find_ranks
from ddpprof.model import Phase, Rank
from ddpprof.topics.copies import RankCopies, exposed_copies, measure_copies

MS = 1_000_000
NAMES = ("gemm", "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoD (Device -> Device)")


def rank(**changes: Any) -> Rank:
    """Two steps of 20 ms, which begin with copies from 0 to 3 ms (pageable), 2 to 5 ms (pinned) and 5 to 6 ms (DtoD).

    The accelerator computes from 4 to 12 ms, and communicates from 11 to 15 ms. A pinned copy runs from 14 to 18 ms.
    """
    copies, compute, comm = [], [], []
    for step in (0, 1):
        at = 20 * MS * step
        for start, end in ((0, 3), (2, 5), (5, 6), (14, 18)):
            copies.append((at + start * MS, at + end * MS, Phase.OTHER, step))
        compute.append((at + 4 * MS, at + 12 * MS, Phase.FORWARD, step, 0))
        compute.append((at + 19 * MS, at + 20 * MS, Phase.OPTIMIZER, step, 0))
        comm.append(collective(at + 11 * MS, at + 15 * MS, step=step))
    spans = [(20 * MS * step, 20 * MS * (step + 1)) for step in (0, 1)]
    given = {"compute": compute, "copies": copies, "comm": comm, "names": NAMES, "device": "cuda", **changes}
    made = trace(spans, **given)
    names = np.array([1, 2, 3, 2] * 2)[: len(made.copies)]
    return Rank(0, replace(made, copies=replace(made.copies, name=names)), record())


def test_copies_that_nothing_hides() -> None:
    """Exposed are 0 to 4 ms and 15 to 18 ms, of which the pageable copy takes the first 3 ms."""
    assert measure_copies(rank(), [0, 1]) == RankCopies(0, 2, 3, 7 * MS, 3 * MS)


@pytest.mark.skipif(not TRACES.is_dir(), reason="no traces of others beside the checkout")
def test_a_trace_of_others() -> None:
    """In the whole trace, copies to the device take 50.656 ms, of which 16.008 ms are outside all kernels."""
    files = find_ranks(TRACES / "dlrm_rank3of8.json.gz").ranks
    made = load_rank(files[0]).rank
    assert made.trace is not None
    found = [measure_copies(made, [step]) for step in range(len(made.trace.steps))]
    assert sum(one.exposed_ns for one in found if one is not None) == pytest.approx(16_008_000, rel=0.002)
    assert not any(one.pageable_ns for one in found if one is not None)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(rank(device="cpu"), id="cpu"),
        pytest.param(rank(copies=()), id="no-copies"),
        pytest.param(rank(names=("gemm", "Memset", "Memset", "Memcpy DtoH (Device -> Pageable)")), id="other-copies"),
        pytest.param(Rank(0, None, record()), id="no-trace"),
    ],
)
def test_without_copies_to_the_accelerator_nothing_is_measured(made: Rank) -> None:
    assert measure_copies(made, [0, 1]) is None


@pytest.mark.parametrize(
    ("pageable_ns", "advice"),
    [pytest.param(3 * MS, "Pin", id="pageable"), pytest.param(0, "Copy the next", id="pinned")],
)
def test_the_finding_is_about_the_rank_that_copies_least(pageable_ns: int, advice: str) -> None:
    ranks = [RankCopies(0, 5, 2, 9 * MS, 9 * MS), RankCopies(1, 5, 2, 4 * MS, pageable_ns)]
    (found,) = exposed_copies(ranks, View(2, step_ns=100 * MS))
    assert found.title == "Copying data to the accelerator takes 4.00 ms per step, during which nothing is computed"
    assert found.advice.startswith(advice)
    assert (found.gain_ns, "3.00 ms from memory that is not pinned" in found.evidence) == (4 * MS, pageable_ns > 0)
    assert list(exposed_copies(ranks, View(2, step_ns=201 * MS))) == [], "less than 2 %"
    assert list(exposed_copies(ranks, View(2, None))) == []
