"""Ranks that train different models."""

from dataclasses import replace

import pytest
from observations import observed, only
from tables import ddp_module

from ddpprof.findings import find
from ddpprof.measures.ranks.replicas import Drift, TrainedApart

APART = Drift(0, (0, 1), 13, 0.5, differed_before=False, num_unreduced_passes=0)
DIFFERENT = Drift(0, (0, 1, 2), 13, 0.0, differed_before=True, num_unreduced_passes=0)
TWICE = Drift(0, (0, 1), 1, 0.25, differed_before=False, num_unreduced_passes=14)


@pytest.mark.parametrize(
    ("drift", "title", "evidence", "advice"),
    [
        pytest.param(
            APART, "move apart",
            "in 13 steps they moved apart by 50% of the distance they moved, as sampled values of Net on both ranks "
            "show",
            "Look for anything that changes parameters", id="unknown-cause",
        ),
        pytest.param(
            DIFFERENT, "differ",
            "they already differed when the recording began, as sampled values of Net on 3 ranks show",
            "DDP makes the copies equal when it wraps the model.", id="from-the-start",
        ),
        pytest.param(
            TWICE, "move apart",
            "in one step they moved apart by 25% of the distance they moved, as sampled values of Net on both ranks "
            "show",
            "Call backward() once for each forward", id="second-backward",
        ),
    ],
)  # fmt: skip
def test_copies_that_differ(drift: Drift, title: str, evidence: str, advice: str) -> None:
    finding = only(observed(ddp_module(), drifts=(drift,), group_size=2))
    assert (finding.rule, finding.gain_ns, finding.is_correctness) == ("copies-differ", None, True)
    assert finding.title.endswith(f"copies of the parameters {title}")
    assert finding.evidence == evidence
    assert finding.advice.startswith(advice)


@pytest.mark.parametrize(
    ("hook", "group_size"),
    [
        pytest.param("post_localSGD_hook", 2, id="parameters-are-averaged-now-and-then"),
        pytest.param(None, 1, id="groups-that-average-apart"),
    ],
)
def test_copies_that_may_differ(hook: str | None, group_size: int) -> None:
    assert find(observed(ddp_module(comm_hook=hook), drifts=(APART,), group_size=group_size)) == ()


def test_of_a_module_that_a_killed_rank_did_not_describe_nothing_is_said() -> None:
    assert find(observed(ddp_module(), drifts=(replace(APART, module=1),), group_size=2)) == ()


def test_parameters_that_ddp_does_not_average() -> None:
    finding = only(observed(ddp_module(), unfrozen=("stem.weight", "stem.bias")))
    assert (finding.rule, finding.gain_ns, finding.is_correctness) == ("unfrozen-parameters", None, True)
    assert finding.title == (
        "DDP does not average the gradients of 2 parameters that were frozen when DDP was constructed: "
        "stem.weight, stem.bias"
    )
    assert finding.evidence == "they have been trained since, each rank its own copy of them"
    one = only(observed(ddp_module(), unfrozen=("stem.weight",)))
    assert one.title.startswith("DDP does not average the gradients of 1 parameter that was frozen")
    assert one.evidence == "it has been trained since, each rank its own copy of it"


def test_a_rank_that_averages_with_no_other_misses_nothing() -> None:
    assert find(observed(ddp_module(), unfrozen=("stem.weight",), world_size=1)) == ()
    assert find(observed(ddp_module(), unfrozen=("stem.weight",), world_size=2, group_size=1)) == ()


def test_parameters_of_a_module_that_is_not_called_come_first() -> None:
    apart = TrainedApart("Head", ("weight", "bias"), True, APART)
    first, *_ = find(observed(ddp_module(), trained_apart=(apart,), group_size=2, copy_out_ns=20_000_000))
    assert (first.rule, first.is_correctness) == ("unaveraged-parameters", True)
    assert first.title.endswith("DDP does not average the gradients of 2 parameters of Head: weight, bias")
    assert first.evidence == (
        "the script never calls the DDP module that has them, and in 13 steps they moved apart by 50% of the distance "
        "they moved, as sampled values on both ranks show"
    )
    assert first.advice.startswith("Compute the loss from the output of the DDP module itself")


def test_parameters_that_no_module_has_come_after_gains() -> None:
    """Each rank may be meant to train its own, such as an expert."""
    apart = TrainedApart("", ("shape (2,)",), False, APART)
    gain, last = find(observed(ddp_module(), trained_apart=(apart,), group_size=2, copy_out_ns=20_000_000))
    assert (gain.rule, last.rule, last.is_correctness) == ("gradient-copies", "unwrapped-parameters", True)
    assert last.title == "Each rank trains its own copy of 1 parameter outside all modules: shape (2,)"
    assert last.evidence == (
        "no DDP module has them; they were equal on both ranks before the first step, and in 13 steps they moved apart "
        "by 50% of the distance they moved, as sampled values show"
    )
    assert "meant to train its own" in last.advice


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_ranks_that_average_in_groups_may_train_parameters_apart(is_wrapped: bool) -> None:
    apart = TrainedApart("Head", ("weight",), is_wrapped, APART)
    assert find(observed(ddp_module(), trained_apart=(apart,), group_size=1)) == ()
