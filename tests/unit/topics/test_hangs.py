"""Which rank skipped a backward pass?"""

from __future__ import annotations

from typing import Any

import pytest
from observations import loader, observed, only

from ddpprof.model import CollectiveOfSomeRanks, Loader
from ddpprof.report.topics import find_all
from ddpprof.topics.accumulation import Accumulation
from ddpprof.topics.hangs import Passes, SkippedPass, find_skipped_pass, unequal_passes

WAITS = Passes(120, has_finished=False)
FINISHED = Passes(120, has_finished=True)
SKIPPED = Passes(119, has_finished=True, num_unpaired=1, first_unpaired_step=60)


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        pytest.param([FINISHED, FINISHED], None, id="none"),
        pytest.param([WAITS, SKIPPED], SkippedPass(1, 60, 1), id="one"),
        pytest.param([WAITS, SKIPPED, Passes(117, True, 3, 70)], SkippedPass(2, 70, 3), id="most"),
        pytest.param([FINISHED, Passes(120, True, 12, 10)], None, id="a-loss-is-logged-without-a-backward-pass"),
        pytest.param([FINISHED, Passes(120, True, 1, 60)], None, id="a-forward-failed-and-was-repeated"),
        pytest.param([WAITS, Passes(119, False, 12, 10)], None, id="it-logs-losses-and-is-only-behind"),
        pytest.param([Passes(119, True, 1, 70), SKIPPED], None, id="all-skipped-as-many"),
        pytest.param([WAITS, Passes(119, has_finished=True)], None, id="fewer-batches"),
        pytest.param([SKIPPED], None, id="one-rank"),
    ],
)
def test_which_rank_skipped(ranks: list[Passes], found: SkippedPass | None) -> None:
    assert find_skipped_pass(dict(enumerate(ranks))) == found


Loaders = dict[int, tuple[Loader, ...]]


@pytest.mark.parametrize(
    ("ranks", "title"),
    [
        pytest.param([FINISHED, SKIPPED], "rank 1 ran 1 backward pass fewer than rank 0", id="one"),
        pytest.param([Passes(117, True), FINISHED, FINISHED], "rank 0 ran 3 backward passes fewer than rank 1", id="3"),
        pytest.param([FINISHED, FINISHED], None, id="equal"),
        pytest.param([WAITS, Passes(119, True)], None, id="one-still-trains"),
        pytest.param([FINISHED], None, id="alone"),
    ],
)
def test_ranks_that_end_after_different_numbers_of_passes(ranks: list[Passes], title: str | None) -> None:
    found = unequal_passes(dict(enumerate(ranks)))
    assert (None if found is None else found.title) == (
        None if title is None else f"Training ended without an error, but {title}"
    )


@pytest.mark.parametrize(
    ("changes", "is_reported"),
    [
        ({}, True),
        ({"joins": True}, False),
        ({"group_size": 1}, False),
        ({"ended_well": False}, False),
        ({"skipped": SkippedPass(1, 60, 1)}, False),
    ],
)
def test_the_finding_on_unequal_ends(changes: dict[str, Any], is_reported: bool) -> None:
    passes = {0: FINISHED, 1: Passes(119, has_finished=True)}
    rules = [one.rule for one in find_all(observed(passes=passes, **{"group_size": 2, **changes}))]
    assert ("unequal-passes" in rules) is is_reported


def of_lengths(*lengths: int | None) -> Loaders:
    return {rank: (loader(batches_per_pass=length),) for rank, length in enumerate(lengths)}


@pytest.mark.parametrize(
    ("loaders", "changes", "is_found"),
    [
        pytest.param(of_lengths(100, 99), {}, True, id="one-less"),
        pytest.param(of_lengths(100, 100), {}, False, id="equal"),
        pytest.param(of_lengths(100, None), {}, False, id="unknown"),
        pytest.param(of_lengths(100, 99), {"joins": True}, False, id="within-join"),
        pytest.param(of_lengths(100, 99), {"group_size": 1}, False, id="ranks-that-do-not-average"),
        pytest.param({0: (loader(batches_per_pass=5, num_fed=0),), 1: ()}, {}, False, id="evaluation"),
        pytest.param(
            {0: (loader(batches_per_pass=5), loader(batches_per_pass=7)), 1: (loader(batches_per_pass=7),) * 2},
            {},
            False,
            id="several-loaders",
        ),
    ],
)
def test_unequal_batches(loaders: Loaders, changes: dict[str, object], is_found: bool) -> None:
    found = [
        f for f in find_all(observed(loaders=loaders, **{"group_size": 2, **changes})) if f.rule == "unequal-batches"
    ]
    assert len(found) == is_found
    if found:
        assert found[0].is_correctness
        assert found[0].evidence.startswith(
            "rank 1 gets 99 batches in a pass over its DataLoader, and rank 0 gets 100;"
        )


@pytest.mark.parametrize(
    ("numbers", "per_step", "depends"),
    [
        pytest.param((9, 10), 1, False, id="no-accumulation"),
        pytest.param((9, 10), 4, None, id="as-many-steps-whatever-the-script-does"),
        pytest.param((8, 10), 4, True, id="if-the-rest-is-used"),
        pytest.param((7, 8), 4, True, id="if-the-rest-is-left"),
        pytest.param((8, 12), 4, False, id="one-step-less"),
        pytest.param((7, 10), 4, False, id="one-step-less-and-another-rest"),
    ],
)
def test_unequal_batches_that_are_accumulated(numbers: tuple[int, int], per_step: int, depends: bool | None) -> None:
    """If they make as many steps with the batches that are left as without, nothing depends on the script."""
    found = find_all(observed(loaders=of_lengths(*numbers), group_size=2, num_micro_steps=per_step))
    told = [one for one in found if one.rule == "unequal-batches"]
    title = "The ranks have different numbers of batches: they will end up in different epochs, and the job may hang"
    assert [one.title for one in told] == [title] * (depends is not None)
    assert all((f"Gradients accumulate over {per_step}" in one.evidence) is depends for one in told)


def test_passes_that_all_reduce_meet_one_by_one() -> None:
    accumulation = (Accumulation(module=0, num_passes=4, num_superfluous=3, num_steps=5),)
    seen = observed(loaders=of_lengths(9, 10), group_size=2, num_micro_steps=4, accumulation=accumulation)
    told = only(seen)
    assert "Gradients accumulate over" not in told.evidence


@pytest.mark.parametrize(
    ("framework", "way"),
    [(None, "model.join()"), ("accelerate", "accelerator.join_uneven_inputs([model])"), ("lightning", None)],
)
def test_join_is_advised_where_a_user_can_call_it(framework: str | None, way: str | None) -> None:
    told = only(observed(loaders=of_lengths(9, 10), group_size=2, framework=framework))
    assert ("join" in told.advice) is (way is not None)
    assert way is None or way in told.advice


def test_collective_of_some_ranks() -> None:
    call = CollectiveOfSomeRanks("all_reduce", "train.py:52 in evaluate", "rank == 0")
    finding = only(observed(of_some_ranks=(call,)))
    assert (finding.rule, finding.is_correctness) == ("collective-of-some-ranks", True)
    assert finding.evidence == "the script calls it only at train.py:52 in evaluate, inside `if rank == 0:`"
    assert find_all(observed(of_some_ranks=(call,), world_size=1)) == ()


@pytest.mark.parametrize(("timeout_s", "is_found"), [(None, False), (1800.0, False), (7199.0, False), (10800.0, True)])
def test_long_timeout(timeout_s: float | None, is_found: bool) -> None:
    if not is_found:
        assert find_all(observed(timeout_s=timeout_s)) == ()
        return
    assert only(observed(timeout_s=timeout_s)).title == "If this job hangs, it will hang for 3 hours"
    assert find_all(observed(timeout_s=timeout_s, world_size=1)) == ()
    assert "ddp_timeout" in only(observed(timeout_s=timeout_s, framework="transformers")).advice


@pytest.mark.parametrize(
    ("skipped", "title"),
    [
        pytest.param(SkippedPass(1, 60, 1), "Rank 1 skipped the backward pass of step 60: since then, ", id="one"),
        pytest.param(SkippedPass(2, 60, 3), "Rank 2 skipped 3 backward passes, first in step 60: since", id="several"),
    ],
)
def test_a_skipped_backward_pass(skipped: SkippedPass, title: str) -> None:
    finding = only(observed(skipped=skipped, group_size=2))
    assert (finding.rule, finding.is_correctness) == ("skipped-backward", True)
    assert finding.title.startswith(title)
    assert "Skip a batch on all ranks together" in finding.advice
    assert find_all(observed(skipped=skipped, group_size=2, joins=True)) == ()
    assert find_all(observed(skipped=skipped, group_size=1)) == ()
