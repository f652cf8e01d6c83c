"""Rules about collectives beside DDP."""

from typing import Any

import pytest
from observations import MS, beside
from tables import record

from ddpprof.engine.finding import Finding
from ddpprof.model import OptimizerFacts
from ddpprof.topics.script_collectives import OutsideCalls, Place, Purpose


def called(purpose: Purpose, exposed_ns: int, **changes: Any) -> OutsideCalls:
    given = {"place": Place.AFTER_OPTIMIZER, "kind": "all_reduce", "num_calls": 1, "num_bytes": 8, **changes}
    return OutsideCalls(purpose=purpose, time_ns=2 * exposed_ns, exposed_ns=exposed_ns, **given)


def only_one(findings: tuple[Finding, ...]) -> Finding:
    (found,) = findings
    return found


@pytest.mark.parametrize(
    ("calls", "rule", "gain_ns", "says"),
    [
        pytest.param(
            [called(Purpose.PARAMETERS, 2 * MS, num_calls=6, num_bytes=400_000)], "parameter-averaging", 2 * MS,
            "6 × all-reduce of 0.4 MB in all, between the optimizer and the next forward pass: 2.00 ms per step",
            id="parameters",
        ),
        pytest.param(
            [called(Purpose.PARAMETERS, 2 * MS, place=Place.AFTER_BACKWARD)], "gradient-averaging", 2 * MS,
            "already averaged", id="gradients",
        ),
        pytest.param(
            [called(Purpose.FEW_NUMBERS, MS), called(Purpose.FEW_NUMBERS, 2 * MS, kind="all_gather")],
            "metrics-every-step", 3 * MS, "2 collectives per step send only a few numbers", id="metrics",
        ),
        pytest.param(
            [called(Purpose.OTHER, MS, num_bytes=None)], "metrics-every-step", MS, "--record-shapes",
            id="of-unknown-size",
        ),
        pytest.param(
            [called(Purpose.BARRIER, MS, kind="barrier", num_bytes=None)], "barrier-in-loop", MS,
            "There is a barrier in the training loop", id="barrier",
        ),
        pytest.param(
            [called(Purpose.BARRIER, MS, kind="barrier", num_calls=2, num_bytes=None)], "barrier-in-loop", MS,
            "There are 2 barriers in the training loop", id="two-barriers",
        ),
        pytest.param(
            [called(Purpose.BARRIER, MS, kind="barrier", num_bytes=None, place=Place.FORWARD)], "barrier-in-loop", MS,
            "in the forward", id="barrier-in-the-forward",
        ),
        pytest.param(
            [called(Purpose.OTHER, MS, num_bytes=None, place=Place.OPTIMIZER, kind="broadcast", num_calls=6)],
            "optimizer-broadcasts", MS, "in 6 pieces per step", id="zero",
        ),
        pytest.param(
            [called(Purpose.OTHER, MS, num_bytes=None, place=Place.OPTIMIZER, kind="broadcast", num_calls=2)],
            "optimizer-broadcasts", MS, "its own shard of the state. If memory allows", id="zero-with-bucket-views",
        ),
        pytest.param(
            [called(Purpose.OTHER, MS, num_bytes=None, place=Place.AFTER_BACKWARD)], "metrics-every-step", MS,
            "put these parameters into the DDP module", id="maybe-gradients",
        ),
        pytest.param(
            [called(Purpose.OTHER, MS, num_bytes=None, place=Place.AFTER_FORWARD)], "metrics-every-step", MS,
            "between the forward and the backward pass", id="a-sum-that-is-no-gathered-embedding",
        ),
    ],
)  # fmt: skip
def test_collectives_beside_ddp(calls: list[OutsideCalls], rule: str, gain_ns: int, says: str) -> None:
    finding = only_one(beside("outside", tuple(calls)))
    assert (finding.rule, finding.gain_ns) == (rule, gain_ns)
    assert says in finding.title + finding.evidence + finding.advice


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(called(Purpose.PARAMETERS, MS - 1), id="below-one-percent"),
        pytest.param(called(Purpose.BARRIER, MS - 1), id="a-short-barrier"),
        pytest.param(called(Purpose.FEW_NUMBERS, MS, place=Place.FORWARD), id="the-models-own"),
        pytest.param(called(Purpose.OTHER, MS, num_bytes=1 << 20), id="large-for-what-nobody-knows"),
        pytest.param(
            called(Purpose.OTHER, MS, num_bytes=None, kind="broadcast"), id="broadcasts-that-are-no-optimizers"
        ),
        pytest.param(called(Purpose.OTHER, MS, num_bytes=None, kind="all_to_all"), id="exchanges-data"),
        pytest.param(
            called(Purpose.OTHER, MS, num_bytes=None, kind="all_gather", place=Place.AFTER_FORWARD),
            id="may-be-embeddings-that-the-loss-needs",
        ),
    ],
)
def test_collectives_beside_ddp_that_are_no_mistake(one: OutsideCalls) -> None:
    assert beside("outside", (one,)) == ()


@pytest.mark.parametrize(
    ("kind", "framework", "is_named"),
    [("all_gather", "transformers", True), ("all_reduce", "transformers", False), ("all_gather", None, False)],
)
def test_the_trainers_own_gather_is_named(kind: str, framework: str | None, is_named: bool) -> None:
    call = OutsideCalls(Purpose.FEW_NUMBERS, Place.AFTER_OPTIMIZER, kind, 1, 8, 2 * MS, 2 * MS)
    finding = only_one(beside("outside", (call,), framework=framework))
    assert ("average_tokens_across_devices=False" in finding.advice) is is_named


def test_the_trainers_own_gather_is_named_among_others() -> None:
    calls = (called(Purpose.FEW_NUMBERS, MS), called(Purpose.FEW_NUMBERS, MS, kind="all_gather"))
    finding = only_one(beside("outside", calls, framework="transformers"))
    assert "average_tokens_across_devices=False" in finding.advice


def test_gradients_that_ddp_does_not_average_are_not_averaged_twice() -> None:
    calls = (called(Purpose.PARAMETERS, 2 * MS, place=Place.AFTER_BACKWARD),)
    assert beside("outside", calls, trains_beside_ddp=True) == ()
    assert only_one(beside("outside", calls)).rule == "gradient-averaging"


def test_of_gradients_is_spoken_only_where_they_may_be_sent() -> None:
    """An all-reduce after the optimizer's step reduces no gradients, and neither does one of a few numbers."""
    after = called(Purpose.OTHER, MS, num_bytes=None)
    known = called(Purpose.FEW_NUMBERS, MS, place=Place.AFTER_BACKWARD)
    for call in (after, known):
        assert "average gradients" not in only_one(beside("outside", (call,))).advice


def test_what_an_ordinary_optimizer_would_need_is_told() -> None:
    """ZeroRedundancyOptimizer itself holds no state; the optimizer that it wraps holds one rank's shard."""

    def facts(name: str, state_bytes: int, is_sharded: bool) -> OptimizerFacts:
        return OptimizerFacts(name, state_bytes, is_sharded, None, False, False, 1, 4)

    zero = facts("ZeroRedundancyOptimizer", 0, True)
    records = {
        rank: record(rank, optimizers=(zero, facts("AdamW", num_bytes, False)))
        for rank, num_bytes in ((0, 3_000_000), (1, 5_000_000))
    }
    calls = (called(Purpose.OTHER, MS, num_bytes=None, place=Place.OPTIMIZER, kind="broadcast", num_calls=6),)
    finding = next(one for one in beside("outside", calls, records=records) if one.rule == "optimizer-broadcasts")
    assert (
        "Each rank then holds the whole state (8.0 MB instead of 5.0 MB). parameters_as_bucket_view" in finding.advice
    )
