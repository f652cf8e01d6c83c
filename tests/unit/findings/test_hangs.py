"""Rules about what will make the job hang one day."""

from __future__ import annotations

import pytest
from observations import loader, observed, only

from ddpprof.findings import find
from ddpprof.model import CollectiveOfSomeRanks, Loader

Loaders = dict[int, tuple[Loader, ...]]


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
    found = [f for f in find(observed(loaders=loaders, **{"group_size": 2, **changes})) if f.rule == "unequal-batches"]
    assert len(found) == is_found
    if found:
        assert found[0].is_correctness
        assert found[0].evidence == "rank 1 gets 99 batches in a pass over its DataLoader, and rank 0 gets 100"


def test_collective_of_some_ranks() -> None:
    call = CollectiveOfSomeRanks("all_reduce", "train.py:52 in evaluate", "rank == 0")
    finding = only(observed(of_some_ranks=(call,)))
    assert (finding.rule, finding.is_correctness) == ("collective-of-some-ranks", True)
    assert finding.evidence == "the script calls it only at train.py:52 in evaluate, inside `if rank == 0:`"
    assert find(observed(of_some_ranks=(call,), world_size=1)) == ()


@pytest.mark.parametrize(("timeout_s", "is_found"), [(None, False), (1800.0, False), (7199.0, False), (10800.0, True)])
def test_long_timeout(timeout_s: float | None, is_found: bool) -> None:
    if not is_found:
        assert find(observed(timeout_s=timeout_s)) == ()
        return
    assert only(observed(timeout_s=timeout_s)).title == "A job that hangs would hang for 3 hours"
    assert find(observed(timeout_s=timeout_s, world_size=1)) == ()
