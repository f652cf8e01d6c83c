"""What is answered of a step under other settings: see `predictions` for the step."""

from dataclasses import replace
from typing import Any

import pytest
from predictions import MIB, UNIT, network, pass_profile, profile, training
from reports import report

from ddpprof.errors import DdpprofError
from ddpprof.layout import Line
from ddpprof.model.backends import Compression
from ddpprof.model.ddp_module import Gradient
from ddpprof.predict import Algorithm, BucketCaps, Setting
from ddpprof.predict.profile import Profile
from ddpprof.predict.replay import Cost, Link
from ddpprof.render.sections.whatif import whatif_sections
from ddpprof.report.run_profile import Profiled
from ddpprof.report.whatif import Asked, WhatIf, build_whatif

JOB = report().job


def answer(
    *buckets: BucketCaps, made: Profile | None = None, target: Any = None, label: str = "", **world: Any
) -> WhatIf:
    return build_whatif(JOB, Profiled(made or profile(), target), Asked(Setting(**world), label, buckets))


def steps(answered: WhatIf) -> dict[str, float]:
    return {one.label: round(one.prediction.step_ns / UNIT, 6) for one in answered.outcomes}


def test_a_series_of_caps_unless_some_are_asked_for() -> None:
    expected = {"bucket_cap_mb=None": 21, "bucket_cap_mb=1": 19, "bucket_cap_mb=2": 20, "bucket_cap_mb=5": 22}
    assert steps(answer()) == {"as recorded": 20, **expected}
    asked = steps(answer(BucketCaps(4), BucketCaps(list_mb=(3, 1))))
    assert asked == {"as recorded": 20, "bucket_cap_mb=4": 22, "bucket_cap_mb_list=[3, 1]": 21}


@pytest.mark.parametrize("is_compiled", [False, True])
def test_buckets_of_a_compiled_model_are_predicted_with_a_caveat(is_compiled: bool) -> None:
    answered = build_whatif(replace(JOB, is_compiled=is_compiled), Profiled(profile(), None), Asked(Setting(), "", ()))
    assert ("torch.compile splits the model at bucket boundaries" in answered.assumes[0]) is is_compiled


def test_gains_are_over_the_recorded_buckets_under_the_same_world() -> None:
    """Half the bandwidth: two MiB each are sent from 12 to 20, one each from 11 to 19."""
    answered = answer(BucketCaps(1), bytes_per_s=0.5e9)
    first, one_each = answered.outcomes
    assert (first.gain.gain_ns, first.prediction.step_ns / UNIT) == (0, pytest.approx(24))
    assert one_each.gain.gain_ns / UNIT == pytest.approx(24 - (11 + 8 + 4))


def test_the_best_is_looked_for_whatever_is_asked_for() -> None:
    best = answer(BucketCaps(4)).best
    assert best is not None
    assert (best.label, best.gain.gain_ns / UNIT) == ("bucket_cap_mb=1", pytest.approx(1))


def test_what_is_asked_for_may_be_the_best() -> None:
    """With a latency of half a unit the fourth bucket is not worth it: three are sent until 16.5 instead of 17."""
    slow = profile(network=network(Link(Cost(UNIT / 2, 1.0))), replayed_ns=17, reduced_ns=17)
    best = answer(BucketCaps(list_mb=(1, 1, 2)), made=slow).best
    assert best is not None
    assert best.label == "bucket_cap_mb_list=[1, 1, 2]"


def test_a_flat_optimum_is_told_as_a_range() -> None:
    """The replay missed by 3 units, more than the caps differ by."""
    unsure = answer(made=profile(replayed_ns=19))
    assert unsure.best is not None
    assert (unsure.best.label, unsure.equal_mb) == ("bucket_cap_mb=1", (1, 5))
    assert answer(made=profile()).equal_mb is None


def test_the_step_is_the_one_that_the_report_tells() -> None:
    """It was 857 in a prediction and 829 in the report of one run; gains do not depend on it."""
    answered = build_whatif(JOB, Profiled(profile(), None), Asked(Setting(), "", (BucketCaps(1),)), 24 * UNIT)
    assert steps(answered) == {"as recorded": 24, "bucket_cap_mb=1": 23}
    assert answered.measured_step_ns == 24 * UNIT
    said = [section.text for section in whatif_sections(answered) if isinstance(section, Line)]
    assert any(text.startswith("Replay of the recorded step: 25.2 ms, measured 25.2 ms ± ") for text in said)


def test_of_larger_batches_only_a_part_of_what_they_save_is_communication() -> None:
    """A step of 20 has 2 of exposed communication; 4 batches need 4 + 14 × 4 + 2, and each step the optimizer once."""
    answered = answer(accumulation=4, label="accumulation 4")
    [said] = [
        one.text for one in whatif_sections(answered) if isinstance(one, Line) and "communication. The" in one.text
    ]
    assert "Of the 4.72 ms saved, 1.57 ms is communication" in said
    assert "Each optimizer step then uses a batch 4 times as large." in said


def test_a_cap_is_named_where_one_holds_for_all_buckets() -> None:
    caps = [one.cap_mib for one in answer(BucketCaps(4), BucketCaps(None), BucketCaps(list_mb=(3, 1))).outcomes]
    assert (caps[0], caps[1], caps[3]) == (None, 4, None)


def test_what_was_measured() -> None:
    answered = answer(made=profile(reduced_ns=17, step_error_ns=0.5), label="bandwidth 1Gbit")
    assert (answered.measured_step_ns, answered.measured_error_ns) == (20 * UNIT, 0.5 * UNIT)
    assert (answered.replay_error, answered.num_steps, answered.world) == (-1 / 20, 4, "bandwidth 1Gbit")


def test_busbw_is_what_a_ring_s_links_carry() -> None:
    """Of 4 ranks one and a half times the bytes of a bucket, which takes 2 ns per byte."""
    of_four = network(Link(Cost(300.0, 2.0), taken=Cost(0.0, 0.25)), world_size=4, relative_error=0.1)
    told = answer(target=of_four).network
    assert (told.bus_bytes_per_s, told.ns_per_byte, told.taken_ns_per_byte) == (pytest.approx(0.75e9), 2, 0.25)
    assert (told.latency_ns, told.relative_error, told.world_size) == (300, 0.1, 4)


@pytest.mark.parametrize(("hook", "tells_busbw"), [(None, True), ("fp16_compress_hook", False)])
def test_busbw_is_not_told_of_gradients_that_a_hook_compresses(hook: str | None, tells_busbw: bool) -> None:
    """The report tells the rate of the bytes that are sent, and a prediction that of the gradients."""
    job = replace(JOB, modules=(replace(JOB.modules[0], comm_hook=hook),))
    made = replace(profile(), network=replace(profile().network, is_benched=False))
    answered = build_whatif(job, Profiled(made, None), Asked(Setting(), ""))
    [said] = [one.text for one in whatif_sections(answered) if isinstance(one, Line) and "Network among" in one.text]
    assert ("busbw" in said, "with sizes before fp16_compress_hook" in said) == (tells_busbw, not tells_busbw)


def test_traces_alone_have_no_best_and_no_other_caps() -> None:
    whole = profile(training=training(knows_parameters=False))
    answered = answer(made=whole)
    assert (list(steps(answered)), answered.best) == (["as recorded"], None)


def test_powersgd_takes_a_parameter_without_dimensions() -> None:
    gradients = (*training().gradients[:3], Gradient(4, "float32"))
    made = profile(training=training(gradients=gradients))
    assert answer(made=made, compression=Compression.POWERSGD).outcomes


@pytest.mark.parametrize(
    ("made", "asked", "says"),
    [
        pytest.param(
            {"knows_parameters": False}, {"buckets": (BucketCaps(1),)}, "record the job with ddpprof trace", id="caps"
        ),
        pytest.param(
            {"gradients": (Gradient(MIB),) * 4}, {"compression": Compression.POWERSGD}, "PowerSGD", id="no-shapes"
        ),
        pytest.param(
            {"comm_hook": "bf16"},
            {"compression": Compression.FP16},
            "already has a communication hook: bf16",
            id="two-hooks",
        ),
        pytest.param({"comm_hook": "mine"}, {"bytes_per_s": 1e9}, "so --bandwidth cannot be used", id="hook-and-rate"),
        pytest.param(
            {"backend": "gloo"}, {"compression": Compression.BF16}, "DDP does not support bf16", id="bf16-on-gloo"
        ),
    ],
)
def test_what_the_run_does_not_know_is_refused(made: dict[str, Any], asked: dict[str, Any], says: str) -> None:
    buckets = asked.pop("buckets", ())
    with pytest.raises(DdpprofError, match=says):
        answer(*buckets, made=profile(training=training(**made)), **asked)


@pytest.mark.parametrize(
    ("world", "says"),
    [
        ({}, "one all-reduce at a time"),
        ({"world_size": 8, "algorithm": Algorithm.TREE}, "with tree all-reduce"),
        ({"world_size": 8}, "no added rank is slower than the recorded ranks"),
        ({"batch_scale": 2.0}, "computation time grows with the batch size"),
    ],
)
def test_what_is_assumed(world: dict[str, Any], says: str) -> None:
    assert any(says in text for text in answer(**world).assumes)


def test_on_cpu_it_is_said_where_nobody_knows_what_sending_takes() -> None:
    on_cpu = profile(training=training(on_cpu=True, backend="gloo"))
    assert any("takes no CPU time" in text for text in answer(made=on_cpu).assumes)
    benched = replace(on_cpu, network=network(Link(Cost(0.0, 1.0), taken=Cost(0.0, 0.1))))
    assert "--baseline-steps 5 measures it" in answer(made=benched).assumes[-1]
    assert answer(made=replace(benched, knows_alone=True)).assumes == answer().assumes
    assert any("the CPU time of communication" in text for text in answer(made=on_cpu).outcomes[0].prediction.widened)


def test_accumulation_does_not_say_which_passes_of_a_gan_to_repeat() -> None:
    gan = replace(profile(step_ns=36.0), passes=(pass_profile(), pass_profile(training=training(modules=(1,)))))
    with pytest.raises(DdpprofError, match="backward passes through different DDP modules"):
        answer(accumulation=2, made=gan)
