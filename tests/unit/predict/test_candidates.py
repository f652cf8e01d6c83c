"""Which settings are tried: of a real run, whose predictions say what they say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from predictions import MIB, UNIT, computed, network, profile, training
from predictions import profile as of_four

from ddpprof.model.backends import Compression
from ddpprof.model.ddp_module import Caps, Gradient, final_buckets
from ddpprof.pipeline.analysis import AnalysisOptions, analysed
from ddpprof.predict import AcceptedCaps, BucketCaps, Setting, accepted_caps
from ddpprof.predict.candidates import (
    Candidate,
    Knobs,
    SearchedSetting,
    Shortlist,
    choose_caps,
    shortlist,
    spread,
    try_caps,
)
from ddpprof.predict.predict import gain, predict
from ddpprof.predict.profile import Profile
from ddpprof.predict.replay import Cost, Link, Training
from ddpprof.report.run_profile import profile_run

SAMPLE = Path(__file__).parents[3] / "sample_traces" / "convnet-gloo-2ranks"
MB = 1 << 20
PLAIN = Knobs(view=False, without_search={}, compression=None, accepted=AcceptedCaps(), drops_list=False)
ALL = Knobs(
    view=True,
    without_search={"static_graph": True},
    compression=Compression.FP16,
    accepted=AcceptedCaps(),
    drops_list=True,
)


@pytest.fixture(scope="module")
def of_sample() -> Profile:
    with analysed(SAMPLE, AnalysisOptions(use_cache=False, jobs=1)) as analysis:
        known = analysis.to_replay()
        return profile_run(known).profile


def steps(listed: Shortlist) -> list[float]:
    return [one.forecast.step_ns for one in listed.chosen if one.forecast is not None]


@pytest.mark.parametrize("knobs", [PLAIN, ALL], ids=["caps-alone", "all"])
@pytest.mark.parametrize("most", [1, 4])
def test_few_are_chosen_and_each_is_predicted_to_be_faster(of_sample: Profile, knobs: Knobs, most: int) -> None:
    listed = shortlist(of_sample, knobs, most)
    assert listed.now.forecast is not None
    assert listed.now.arguments == {}
    assert 1 <= len(listed.chosen) <= most
    assert len({one.label for one in listed.chosen}) == len(listed.chosen)
    assert steps(listed) == sorted(steps(listed)) or listed.promises
    if listed.promises:
        assert max(steps(listed)) < listed.now.forecast.step_ns
    else:
        assert len(listed.chosen) == 1


@pytest.mark.parametrize("most", [1, 4])
def test_the_caps_that_a_report_advises_are_tried_first(of_sample: Profile, most: int) -> None:
    """They were 1 in the report and a list of three in the tuning of one model."""
    for made in (of_sample, of_four()):
        advised = choose_caps(made, Setting(), AcceptedCaps()).best.setting.buckets
        listed = shortlist(made, PLAIN, most)
        [first, *_] = [one.arguments for one in listed.chosen]
        assert not listed.promises or advised is None or first == {"bucket_cap_mb": advised.cap_mb}


def test_only_what_may_be_turned_is(of_sample: Profile) -> None:
    names = {name for one in shortlist(of_sample, PLAIN, 4).chosen for name in one.arguments}
    assert names <= {"bucket_cap_mb", "bucket_cap_mb_list"}
    assert not any(one.comm_hook for one in shortlist(of_sample, PLAIN, 4).chosen)


def test_more_knobs_are_more_settings(of_sample: Profile) -> None:
    all_knobs, caps_alone = (shortlist(of_sample, knobs, 4) for knobs in (ALL, PLAIN))
    assert len(all_knobs.others) > len(caps_alone.others) > 0
    for listed in (all_knobs, caps_alone):
        labels = [one.label for one in (listed.now, *listed.chosen, *listed.others)]
        assert len(set(labels)) == len(labels)


def test_without_predictions_no_cap_is_tried_that_a_user_cannot_give() -> None:
    for default_cap in (True, False):
        by_default = replace(equal_gradients(30), buckets=((0,), tuple(range(1, 30))))  # as no cap alone makes them
        listed = spread(by_default, replace(PLAIN, accepted=AcceptedCaps(default_cap=default_cap)), 20)
        assert ({"bucket_cap_mb": 25} in [one.arguments for one in (*listed.chosen, *listed.others)]) is default_cap


def test_caps_one_by_one_only_where_torch_takes_them(of_sample: Profile) -> None:
    for lists in (True, False):
        listed = shortlist(of_sample, replace(PLAIN, accepted=AcceptedCaps(lists=lists)), 4)
        names = {name for one in (*listed.chosen, *listed.others) for name in one.arguments}
        assert names == {"bucket_cap_mb", *(["bucket_cap_mb_list"] if lists else [])}


def equal_gradients(num: int) -> Training:
    gradients = tuple(Gradient(4 * MB) for _ in range(num))
    buckets = final_buckets(gradients, Caps.of(25), range(num), rebuilt=True)
    return Training(gradients, buckets, Caps.of(25), 2, "nccl", on_cpu=False)


def test_without_predictions_caps_are_tried_that_make_other_buckets() -> None:
    listed = spread(
        equal_gradients(30),
        Knobs(view=True, without_search={}, compression=None, accepted=AcceptedCaps(), drops_list=False),
        4,
    )
    assert [one.arguments for one in listed.chosen] == [
        {"bucket_cap_mb": 5}, {"bucket_cap_mb": 100}, {"bucket_cap_mb": 10}, {"gradient_as_bucket_view": True},
    ]  # fmt: skip
    assert [one.num_buckets for one in listed.chosen] == [15, 2, 10, 5]
    lossy = spread(equal_gradients(30), ALL, 4)
    assert [one.comm_hook for one in lossy.chosen] == [None, None, None, "fp16_compress_hook"]


def test_caps_that_make_the_same_buckets_are_not_tried() -> None:
    assert spread(equal_gradients(1), PLAIN, 4).chosen == ()


def test_a_list_in_the_script_makes_way_for_a_cap() -> None:
    first = spread(equal_gradients(30), ALL, 4).chosen[0]
    assert first.label == "bucket_cap_mb=5, bucket_cap_mb_list=None"


def test_the_label_is_what_one_writes() -> None:
    candidate = Candidate({"bucket_cap_mb_list": [0.25, 5]}, "fp16_compress_hook")
    assert candidate.label == "bucket_cap_mb_list=[0.25, 5], fp16_compress_hook"


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


def test_of_caps_that_may_cost_time_and_others_that_surely_save_some_a_sure_one_is_chosen() -> None:
    """One bucket of 128 MiB says little about buckets of 16 MiB, and more about those of 64."""
    large, scale = tuple(Gradient(16 * MIB, "float32", shape=(8192, 512)) for _ in range(8)), 16
    ready = tuple(scale * (11 + place) for place in range(8))
    one_bucket = of_four(
        training=training(gradients=large, buckets=(tuple(range(8)),), caps=Caps.of(1000)),
        computed=computed(10 * scale, ready, 18 * scale),
        network=network(num_sizes=1, least_bytes=128 * MIB, most_bytes=128 * MIB, is_benched=False),
        step_ns=30 * scale, replayed_ns=26 * scale, reduced_ns=26 * scale,
    )  # fmt: skip
    as_it_is = predict(one_bucket, Setting())
    saves = {
        one.setting.buckets.cap_mb: gain(as_it_is, one.prediction)
        for one in try_caps(one_bucket, Setting())
        if one.setting.buckets is not None
    }
    assert saves[10].gain_ns > saves[50].gain_ns > saves[50].low_ns > 0 > saves[10].low_ns
    chosen = choose_caps(one_bucket, Setting(), AcceptedCaps()).best.setting.buckets
    assert chosen is not None
    assert chosen.cap_mb == 50
