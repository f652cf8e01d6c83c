"""A rule about losses that are NaN or infinite."""

from __future__ import annotations

import pytest
from observations import observed, only

from ddpprof.model.whole_run import NonfiniteSteps
from ddpprof.report.topics import find_all
from ddpprof.topics.losses import nonfinite_finding

Ranks = dict[int, NonfiniteSteps | None]


def since(first_step: int, num_steps: int = 30, follows_finite: bool = True) -> NonfiniteSteps:
    return NonfiniteSteps(first_step, num_steps, follows_finite)


@pytest.mark.parametrize(
    ("ranks", "title", "evidence", "advice"),
    [
        pytest.param(
            {0: since(1413, 29), 1: since(1412)},
            "The loss was NaN or infinite in 30 steps, first in step 1,412 on rank 1",
            "the other rank followed in step 1,413, after DDP had averaged the gradients",
            "Check the batch of rank 1 in step 1,412",
            id="one-rank-first",
        ),
        pytest.param(
            {0: None, 1: since(7, 1), 2: since(7, 1)},
            "The loss was NaN or infinite in one step, first in step 7 on ranks 1 and 2",
            "the losses of the other rank stayed finite",
            "Check the batches of ranks 1 and 2 in step 7, and what the loss computes from them: a division",
            id="steps-that-were-skipped",
        ),
        pytest.param(
            {0: since(9), 1: since(9)},
            "The loss was NaN or infinite in 30 steps, first in step 9",
            "it appeared on all ranks in the same step",
            "lower the learning rate",
            id="all-at-once",
        ),
        pytest.param(
            {0: since(4), 1: since(3, follows_finite=False)},
            "The loss was NaN or infinite in 30 steps, first in step 3",
            "earlier steps were not checked, so an earlier loss may have been NaN or infinite",
            "lower the learning rate",
            id="from-the-begin-on",
        ),
        pytest.param(
            {0: None, 1: since(3), 2: since(3, follows_finite=False)},
            "The loss was NaN or infinite in 30 steps, first in step 3",
            "earlier steps were not checked, so an earlier loss may have been NaN or infinite",
            "lower the learning rate",
            id="from-the-begin-on-of-one-of-the-first",
        ),
        pytest.param(
            {0: None, 1: since(5), 2: since(9)},
            "The loss was NaN or infinite in 30 steps, first in step 5 on rank 1",
            "1 of the 2 other ranks followed, from step 9 on",
            "Check the batch of rank 1 in step 5",
            id="much-later-on-another",
        ),
        pytest.param(
            {0: since(5), 1: since(9)},
            "The loss was NaN or infinite in 30 steps, first in step 5 on rank 0",
            "the other rank followed, from step 9 on",
            "Check the batch of rank 0 in step 5, and what the loss computes from it: a division",
            id="much-later-on-the-other",
        ),
        pytest.param(
            {0: since(5, 1)},
            "The loss was NaN or infinite in one step, first in step 5",
            "the loss before that was finite",
            "lower the learning rate",
            id="one-rank-in-all",
        ),
        pytest.param(
            {0: None, **{rank: since(9) for rank in range(1, 8)}},
            "The loss was NaN or infinite in 30 steps, first in step 9 on ranks 1, 2, 3, 4 and 3 more",
            "the losses of the other rank stayed finite",
            "ranks 1, 2, 3, 4 and 3 more",
            id="many",
        ),
    ],
)
def test_nonfinite_loss(ranks: Ranks, title: str, evidence: str, advice: str) -> None:
    finding = only(observed(nonfinite=ranks))
    assert (finding.title, finding.evidence, finding.is_correctness) == (title, evidence, True)
    assert advice in finding.advice


def test_finite_losses_are_no_finding() -> None:
    assert find_all(observed(nonfinite={0: None, 1: None})) == ()


@pytest.mark.parametrize(
    ("rates", "advice"),
    [
        pytest.param({0: 0.001, 1: 4.4}, "Give every rank the same learning rate: it was 4.4 on rank 1", id="another"),
        pytest.param({0: 0.001, 1: 0.0011}, "Check the batch of rank 1", id="some-steps-apart-in-a-schedule"),
        pytest.param({0: None, 1: 4.4}, "Check the batch of rank 1", id="unknown"),
    ],
)
def test_a_rank_with_another_learning_rate(rates: dict[int, float | None], advice: str) -> None:
    found = nonfinite_finding({0: since(8), 1: since(7)}, learning_rates=rates)
    assert found is not None
    assert found.advice.startswith(advice)
