"""Which settings are tried: of a real run, whose predictions say what they say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from predictions import profile as of_four

from ddpprof.model.bucket_assignment import Caps, Gradient, final_buckets
from ddpprof.model.comm_hooks import Compression
from ddpprof.pipeline.analysis import AnalysisOptions, analysed
from ddpprof.predict.candidates import Candidate, Knobs, Shortlist, shortlist, spread
from ddpprof.predict.caps import AcceptedCaps
from ddpprof.predict.profile import Profile
from ddpprof.predict.search import choose_caps
from ddpprof.predict.setting import Setting
from ddpprof.predict.training import Training
from ddpprof.report.run_profile import profile_run

SAMPLE = Path(__file__).parents[3] / "sample_traces" / "convnet-gloo-2ranks"
MB = 1 << 20
PLAIN = Knobs(view=False, static_graph=False, compression=None, accepted=AcceptedCaps(), drops_list=False)
ALL = Knobs(view=True, static_graph=True, compression=Compression.FP16, accepted=AcceptedCaps(), drops_list=True)


@pytest.fixture(scope="module")
def profile() -> Profile:
    with analysed(SAMPLE, AnalysisOptions(use_cache=False, jobs=1)) as analysis:
        known = analysis.to_replay()
        return profile_run(known).profile


def steps(listed: Shortlist) -> list[float]:
    return [one.forecast.step_ns for one in listed.chosen if one.forecast is not None]


@pytest.mark.parametrize("knobs", [PLAIN, ALL], ids=["caps-alone", "all"])
@pytest.mark.parametrize("most", [1, 4])
def test_few_are_chosen_and_each_is_predicted_to_be_faster(profile: Profile, knobs: Knobs, most: int) -> None:
    listed = shortlist(profile, knobs, most)
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
def test_the_caps_that_a_report_advises_are_tried_first(profile: Profile, most: int) -> None:
    """They were 1 in the report and a list of three in the tuning of one model."""
    for made in (profile, of_four()):
        advised = choose_caps(made, Setting(), AcceptedCaps()).best.setting.buckets
        listed = shortlist(made, PLAIN, most)
        [first, *_] = [one.arguments for one in listed.chosen]
        assert not listed.promises or advised is None or first == {"bucket_cap_mb": advised.cap_mb}


def test_only_what_may_be_turned_is(profile: Profile) -> None:
    names = {name for one in shortlist(profile, PLAIN, 4).chosen for name in one.arguments}
    assert names <= {"bucket_cap_mb", "bucket_cap_mb_list"}
    assert not any(one.comm_hook for one in shortlist(profile, PLAIN, 4).chosen)


def test_more_knobs_are_more_settings(profile: Profile) -> None:
    all_knobs, caps_alone = (shortlist(profile, knobs, 4) for knobs in (ALL, PLAIN))
    assert len(all_knobs.others) > len(caps_alone.others) > 0
    for listed in (all_knobs, caps_alone):
        labels = [one.label for one in (listed.now, *listed.chosen, *listed.others)]
        assert len(set(labels)) == len(labels)


def test_without_predictions_no_cap_is_tried_that_a_user_cannot_give() -> None:
    for default_cap in (True, False):
        by_default = replace(training(30), buckets=((0,), tuple(range(1, 30))))  # as no cap alone makes them
        listed = spread(by_default, replace(PLAIN, accepted=AcceptedCaps(default_cap=default_cap)), 20)
        assert ({"bucket_cap_mb": 25} in [one.arguments for one in (*listed.chosen, *listed.others)]) is default_cap


def test_caps_one_by_one_only_where_torch_takes_them(profile: Profile) -> None:
    for lists in (True, False):
        listed = shortlist(profile, replace(PLAIN, accepted=AcceptedCaps(lists=lists)), 4)
        names = {name for one in (*listed.chosen, *listed.others) for name in one.arguments}
        assert names == {"bucket_cap_mb", *(["bucket_cap_mb_list"] if lists else [])}


def training(num: int) -> Training:
    gradients = tuple(Gradient(4 * MB) for _ in range(num))
    buckets = final_buckets(gradients, Caps.of(25), range(num), rebuilt=True)
    return Training(gradients, buckets, Caps.of(25), 2, "nccl", on_cpu=False)


def test_without_predictions_caps_are_tried_that_make_other_buckets() -> None:
    listed = spread(
        training(30),
        Knobs(view=True, static_graph=False, compression=None, accepted=AcceptedCaps(), drops_list=False),
        4,
    )
    assert [one.arguments for one in listed.chosen] == [
        {"bucket_cap_mb": 5}, {"bucket_cap_mb": 100}, {"bucket_cap_mb": 10}, {"gradient_as_bucket_view": True},
    ]  # fmt: skip
    assert [one.num_buckets for one in listed.chosen] == [15, 2, 10, 5]
    lossy = spread(training(30), ALL, 4)
    assert [one.comm_hook for one in lossy.chosen] == [None, None, None, "fp16_compress_hook"]


def test_caps_that_make_the_same_buckets_are_not_tried() -> None:
    assert spread(training(1), PLAIN, 4).chosen == ()


def test_a_list_in_the_script_makes_way_for_a_cap() -> None:
    first = spread(training(30), ALL, 4).chosen[0]
    assert first.label == "bucket_cap_mb=5, bucket_cap_mb_list=None"


def test_the_label_is_what_one_writes() -> None:
    candidate = Candidate({"bucket_cap_mb_list": [0.25, 5]}, "fp16_compress_hook")
    assert candidate.label == "bucket_cap_mb_list=[0.25, 5], fp16_compress_hook"
