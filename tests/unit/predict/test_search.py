"""The buckets that make the step shortest: see `predictions` for the step."""

from dataclasses import replace

import pytest
from predictions import MIB, UNIT, computed, network, profile, training

from ddpprof.model.bucket_assignment import Caps
from ddpprof.predict.caps import AcceptedCaps, BucketCaps, accepted_caps
from ddpprof.predict.predict import predict
from ddpprof.predict.replay import Cost, Link
from ddpprof.predict.search import SearchedSetting, choose_caps, try_caps
from ddpprof.predict.setting import Setting


def argument(one: SearchedSetting) -> str:
    assert one.setting.buckets is not None
    return one.setting.buckets.argument


def test_every_cap_up_to_the_one_that_makes_a_single_bucket() -> None:
    tried = try_caps(profile(), Setting())
    assert [argument(one) for one in tried] == [
        "bucket_cap_mb=None", "bucket_cap_mb=1", "bucket_cap_mb=2", "bucket_cap_mb=5",
    ]  # fmt: skip
    steps = [one.prediction.step_ns / UNIT for one in tried]
    assert steps == pytest.approx([21, 19, 20, 22])


def test_the_best_of_them() -> None:
    best = choose_caps(profile(), Setting(), AcceptedCaps()).best
    assert (argument(best), best.prediction.bucket_bytes) == ("bucket_cap_mb=1", (MIB,) * 4)
    assert best.prediction.step_ns / UNIT == pytest.approx(19)


def test_those_that_were_recorded_if_none_is_better() -> None:
    one_each = profile(training=training(buckets=((0,), (1,), (2,), (3,)), caps=Caps.of(1)), replayed_ns=15)
    best = choose_caps(one_each, Setting(), AcceptedCaps()).best
    assert (best.setting, best.prediction.step_ns) == (Setting(), predict(one_each, Setting()).step_ns)


def test_a_cap_of_its_own_for_the_first_bucket_where_latency_forbids_many() -> None:
    """2.5 for each: buckets of 1, 2 and 1 end with 2.5 + 1 from 20 on; one MiB each is a queue that ends at 25."""
    slow = profile(
        network=network(Link(Cost(2.5 * UNIT, 1.0))), computed=computed(10, (11, 12, 13, 20), 20), replayed_ns=24.5,
        reduced_ns=24.5, step_ns=30,
    )  # fmt: skip
    best = choose_caps(slow, Setting(), AcceptedCaps()).best
    assert (argument(best), best.prediction.bucket_bytes) == (
        "bucket_cap_mb_list=[0.25, 2]", (MIB, 2 * MIB, MIB),
    )  # fmt: skip
    assert best.prediction.step_ns / UNIT == pytest.approx(29)


def test_a_list_of_caps_only_where_a_user_can_give_one() -> None:
    slow = profile(
        network=network(Link(Cost(2.5 * UNIT, 1.0))), computed=computed(10, (11, 12, 13, 20), 20), replayed_ns=24.5,
        reduced_ns=24.5, step_ns=30,
    )  # fmt: skip
    buckets = choose_caps(slow, Setting(), AcceptedCaps(lists=False)).best.setting.buckets
    assert buckets is None or not buckets.list_mb


@pytest.mark.parametrize(
    ("torch", "framework", "is_compiled", "accepted"),
    [
        ("2.13.0+cpu", None, False, AcceptedCaps()),
        ("2.12.1", None, False, AcceptedCaps(lists=False)),
        ("2.13.0", "lightning", False, AcceptedCaps()),
        ("2.13.0", "accelerate", False, AcceptedCaps(lists=False, default_cap=False)),
        ("2.13.0", "transformers", False, AcceptedCaps(lists=False, default_cap=False)),
        ("2.13.0", None, True, AcceptedCaps(lists=False)),
    ],
)
def test_what_a_user_can_give(torch: str, framework: str | None, is_compiled: bool, accepted: AcceptedCaps) -> None:
    assert accepted_caps(torch, framework, is_compiled) == accepted
    assert accepted.has(None)
    assert accepted.has(BucketCaps(25)) is accepted.default_cap
    assert accepted.has(BucketCaps(list_mb=(1, 25))) is accepted.lists


def test_what_else_is_set_stays_set() -> None:
    asked = Setting(bytes_per_s=0.5e9, gradient_as_bucket_view=True)
    best = choose_caps(profile(), asked, AcceptedCaps()).best.setting
    assert replace(best, buckets=None) == asked
