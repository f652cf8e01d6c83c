"""Copies of a model: which differ, and which differ by rounding alone."""

from dataclasses import replace

import pytest
from observations import observed, only
from tables import backward_pass, ddp_module, forward, recorded

from ddpprof.model import RecordedStep, Replica, UnaveragedParameters
from ddpprof.report.topics import find_all
from ddpprof.topics.replicas import (
    DifferentRates,
    Drift,
    TrainedApart,
    find_different_rates,
    find_drifts,
    find_trained_apart,
    is_always_reduced,
)

BEFORE, MOVED = (3.0, 4.0), (3.0, 4.5)


def copy(after: tuple[float, ...], before: tuple[float, ...] = BEFORE, **changes: object) -> Replica:
    given = {"module": 0, "steps": (3, 16), "resolution": 1e-7, "num_unreduced_passes": 0, **changes}
    return Replica(before=before, after=after, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mine", "others", "drift"),
    [
        pytest.param(copy(MOVED), copy(MOVED), None, id="equal"),
        pytest.param(copy(MOVED), copy((3.0, 4.51)), None, id="by-a-fiftieth-of-the-way"),
        pytest.param(copy(MOVED), copy((3.0, 4.25)), Drift(0, (0, 1), 13, 0.5, False, 0), id="by-half-of-the-way"),
        pytest.param(copy(BEFORE), copy(BEFORE), None, id="none-moved"),
        pytest.param(copy(BEFORE), copy(MOVED), Drift(0, (0, 1), 13, 1.0, False, 0), id="one-moved"),
        pytest.param(copy((3.0, 4.0 + 1e-7)), copy(BEFORE), None, id="rounding-beside-a-tiny-move"),
        pytest.param(
            copy(MOVED, resolution=8e-3), copy((3.0, 4.25), resolution=8e-3), None, id="rounding-of-half-precision"
        ),
        pytest.param(
            copy(MOVED, num_unreduced_passes=5), copy(BEFORE), Drift(0, (0, 1), 13, 1.0, False, 5), id="with-a-cause"
        ),
        pytest.param(
            copy(MOVED), copy((6.0, 8.5), before=(6.0, 8.0)), Drift(0, (0, 1), 13, 0.0, True, 0),
            id="loaded-on-one-rank",
        ),
        pytest.param(copy(MOVED), copy(BEFORE, steps=(3, 12)), None, id="one-ended-earlier"),
        pytest.param(copy(MOVED), copy((0.0,), before=(1.0,)), None, id="not-the-same-parameters"),
    ],
)  # fmt: skip
def test_copies_that_differ(mine: Replica, others: Replica, drift: Drift | None) -> None:
    assert find_drifts({0: (mine,), 1: (others,)}) == (() if drift is None else (drift,))


def test_every_module_on_its_own() -> None:
    other = copy(MOVED, module=1)
    drifts = find_drifts({0: (copy(MOVED), other), 1: (copy(MOVED), copy(BEFORE, module=1)), 2: (other,)})
    assert [(drift.module, drift.ranks) for drift in drifts] == [(1, (0, 1, 2))]
    assert find_drifts({0: (other,)}) == find_drifts({}) == ()


REDUCED = recorded(forwards=(forward(),), passes=(backward_pass([1]),), optimizers=((20, 21),))
KEPT = recorded(forwards=(forward(synchronizes=False),), optimizers=((20, 21),))
EVALUATED = recorded(forwards=(forward(has_gradients=False),), optimizers=((20, 21),))
ACCUMULATED = recorded(forwards=(forward(synchronizes=False),))


@pytest.mark.parametrize(
    ("steps", "is_reduced"),
    [
        pytest.param([REDUCED, REDUCED], True, id="every-step"),
        pytest.param([REDUCED, KEPT], False, id="local-steps"),
        pytest.param([REDUCED, EVALUATED, ACCUMULATED], True, id="steps-that-do-not-train-it"),
        pytest.param([EVALUATED], False, id="not-trained"),
        pytest.param([], False, id="nothing-recorded"),
    ],
)
def test_only_what_is_always_reduced_is_compared(steps: list[RecordedStep], is_reduced: bool) -> None:
    assert is_always_reduced(0, steps) is is_reduced
    assert not is_always_reduced(1, steps)


def test_parameters_that_each_rank_trains_for_itself() -> None:
    def of(rank: int, *names: str, after: tuple[float, ...], place: int = 0) -> UnaveragedParameters:
        return UnaveragedParameters("Head", names, True, copy(after, module=place))

    mine, others = of(0, "a", "b", after=MOVED), of(1, "a", "b", after=BEFORE)
    (apart,) = find_trained_apart({0: (mine,), 1: (others,)})
    assert (apart.module, apart.names, apart.is_wrapped, apart.drift.apart) == ("Head", ("a", "b"), True, 1.0)
    assert find_trained_apart({0: (mine,), 1: (mine,)}) == (), "their gradients are averaged by other means"
    assert find_trained_apart({0: (mine,), 1: (of(1, "c", after=BEFORE),)}) == (), "of another model"
    assert find_trained_apart({0: (mine,), 1: ()}) == find_trained_apart({}) == ()


@pytest.mark.parametrize(
    ("is_wrapped", "before", "shape", "is_found"),
    [
        pytest.param(False, BEFORE, (2,), True, id="equal-at-first"),
        pytest.param(False, (6.0, 8.0), (2,), False, id="of-a-rank-from-the-beginning"),
        pytest.param(False, BEFORE, (3,), False, id="of-other-shapes"),
        pytest.param(True, (6.0, 8.0), (2,), True, id="which-ddp-had-made-equal"),
    ],
)
def test_parameters_that_ranks_are_meant_to_train_apart(
    is_wrapped: bool, before: tuple[float, ...], shape: tuple[int, ...], is_found: bool
) -> None:
    """Such as an expert, a shard of an embedding, or a code for each sample."""
    mine = UnaveragedParameters("Head", ("a",), is_wrapped, copy(MOVED), ((2,),))
    others = UnaveragedParameters("Head", ("a",), is_wrapped, copy((3.0, 4.25), before=before), (shape,))
    assert bool(find_trained_apart({0: (mine,), 1: (others,)})) is is_found


APART = Drift(0, (0, 1), 13, 0.5, differed_before=False, num_unreduced_passes=0)
DIFFERENT = Drift(0, (0, 1, 2), 13, 0.0, differed_before=True, num_unreduced_passes=0)
TWICE = Drift(0, (0, 1), 1, 0.25, differed_before=False, num_unreduced_passes=14)


@pytest.mark.parametrize(
    ("drift", "title", "evidence", "advice"),
    [
        pytest.param(
            APART, "diverge",
            "within 13 steps, the difference between ranks grew to 50% of the change in the parameters, according to "
            "sampled values of Net on both ranks",
            "Look for anything that changes parameters", id="unknown-cause",
        ),
        pytest.param(
            DIFFERENT, "differ",
            "they already differed when the recording began, according to sampled values of Net on 3 ranks",
            "DDP makes the copies equal when it wraps the model.", id="from-the-start",
        ),
        pytest.param(
            TWICE, "diverge",
            "within one step, the difference between ranks grew to 25% of the change in the parameters, according to "
            "sampled values of Net on both ranks",
            "Call backward() once for each forward", id="second-backward",
        ),
    ],
)  # fmt: skip
def test_copies_that_differ_of_replicas(drift: Drift, title: str, evidence: str, advice: str) -> None:
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
    assert find_all(observed(ddp_module(comm_hook=hook), drifts=(APART,), group_size=group_size)) == ()


def test_of_a_module_that_a_killed_rank_did_not_describe_nothing_is_said() -> None:
    assert find_all(observed(ddp_module(), drifts=(replace(APART, module=1),), group_size=2)) == ()


def test_parameters_that_ddp_does_not_average() -> None:
    finding = only(observed(ddp_module(), unfrozen=("stem.weight", "stem.bias")))
    assert (finding.rule, finding.gain_ns, finding.is_correctness) == ("unfrozen-parameters", None, True)
    assert finding.title == (
        "DDP does not average the gradients of 2 parameters that were frozen when DDP was constructed: "
        "stem.weight, stem.bias"
    )
    assert finding.evidence == "each rank has since trained its own copy of them"
    one = only(observed(ddp_module(), unfrozen=("stem.weight",)))
    assert one.title.startswith("DDP does not average the gradients of 1 parameter that was frozen")
    assert one.evidence == "each rank has since trained its own copy of it"


def test_a_rank_that_averages_with_no_other_misses_nothing() -> None:
    assert find_all(observed(ddp_module(), unfrozen=("stem.weight",), world_size=1)) == ()
    assert find_all(observed(ddp_module(), unfrozen=("stem.weight",), world_size=2, group_size=1)) == ()


def test_parameters_of_a_module_that_is_not_called_come_first() -> None:
    apart = TrainedApart("Head", ("weight", "bias"), True, APART)
    first, *_ = find_all(observed(ddp_module(), trained_apart=(apart,), group_size=2, copy_out_ns=20_000_000))
    assert (first.rule, first.is_correctness) == ("unaveraged-parameters", True)
    assert first.title.endswith("DDP does not average the gradients of 2 parameters of Head: weight, bias")
    assert first.evidence == (
        "the script never calls the DDP module that contains them, and within 13 steps, the difference between ranks "
        "grew to 50% of the change in the parameters, according to sampled values on both ranks"
    )
    assert first.advice.startswith("Compute the loss from the output of the DDP module itself")


def test_parameters_that_no_module_has_come_after_gains() -> None:
    """Each rank may be meant to train its own, such as an expert."""
    apart = TrainedApart("", ("shape (2,)",), False, APART)
    gain, last = find_all(observed(ddp_module(), trained_apart=(apart,), group_size=2, copy_out_ns=20_000_000))
    assert (gain.rule, last.rule, last.is_correctness) == ("gradient-copies", "unwrapped-parameters", True)
    assert last.title == "Each rank trains its own copy of 1 parameter outside all modules: shape (2,)"
    assert last.evidence == (
        "no DDP module contains them; they were equal on both ranks before the first step, and within 13 steps, the "
        "difference between ranks grew to 50% of the change in the parameters, according to sampled values"
    )
    assert "If each rank should train its own copy" in last.advice


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_ranks_that_average_in_groups_may_train_parameters_apart(is_wrapped: bool) -> None:
    apart = TrainedApart("Head", ("weight",), is_wrapped, APART)
    assert find_all(observed(ddp_module(), trained_apart=(apart,), group_size=1)) == ()


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        pytest.param(({50: 0.1, 100: 0.1}, {50: 0.1, 100: 0.1}), None, id="equal"),
        pytest.param(({50: 0.1, 100: 0.05}, {50: 0.1, 100: 0.1}), (100, {0: 0.05, 1: 0.1}), id="one-scheduler-steps"),
        pytest.param(({50: 0.1, 100: 0.05}, {50: 0.1}), None, id="one-is-ahead"),
        pytest.param(({50: 0.1, 100: 0.05}, {}), None, id="one-is-unknown"),
        pytest.param(({50: 0.1},), None, id="one-rank"),
    ],
)
def test_learning_rates_of_the_ranks(
    known: tuple[dict[int, float], ...], expected: tuple[int, dict[int, float]] | None
) -> None:
    found = find_different_rates(dict(enumerate(known)))
    assert (None if found is None else (found.step, found.rates)) == expected


def test_the_finding_on_learning_rates() -> None:
    rates = DifferentRates(200, {0: 0.0004, 1: 0.05})
    found = only(observed(rates=rates, group_size=2))
    assert (found.rule, found.comes_first) == ("different-learning-rates", True)
    assert "since step 200" in found.evidence
    assert found.evidence.endswith("0.0004 on rank 0 and 0.05 on rank 1")
