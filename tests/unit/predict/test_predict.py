"""The step under another setting, by arithmetic: see `predictions` for the step that all start from."""

from dataclasses import replace
from math import hypot
from typing import Any

import pytest
from predictions import MIB, UNIT, computed, network, pass_profile, profile, training

from ddpprof.errors import DdpprofError
from ddpprof.model.backends import TCP_PAYLOAD, Compression
from ddpprof.model.ddp_module import Caps, Gradient
from ddpprof.predict import Algorithm, BucketCaps, Setting, sent_share
from ddpprof.predict.predict import doubts_about, gain, predict
from ddpprof.predict.replay import Cost, Link


@pytest.mark.parametrize(
    ("setting", "step"),
    [
        pytest.param({}, 20, id="as-recorded"),
        pytest.param({"buckets": BucketCaps(1)}, 19, id="four-buckets-one-of-which-is-left"),
        pytest.param({"buckets": BucketCaps(4)}, 22, id="one-bucket-after-all-is-computed"),
        pytest.param({"buckets": BucketCaps()}, 21, id="ddp-s-own-caps-a-mib-and-the-rest"),
        pytest.param({"buckets": BucketCaps(list_mb=(3, 1))}, 21, id="three-from-13-to-16-then-one"),
        pytest.param({"overlaps": False}, 22, id="all-four-at-the-end"),
        pytest.param({"overlaps": False, "buckets": BucketCaps(1)}, 22, id="however-many-buckets"),
        pytest.param({"bytes_per_s": 2e9}, 19, id="twice-the-bandwidth"),
        pytest.param({"bytes_per_s": 0.5e9}, 24, id="half-of-it-and-the-second-waits-for-the-first"),
        pytest.param({"latency_ns": UNIT / 4}, 21, id="two-rounds-of-latency-for-each-bucket-in-a-queue"),
        pytest.param({"batch_scale": 2}, 34, id="gradients-twice-as-late"),
        pytest.param({"batch_scale": 0.5}, 14, id="at-5.5-to-7-and-sent-from-6-to-10"),
        pytest.param({"accumulation": 4}, 62, id="three-backward-passes-before"),
        pytest.param({"world_size": 1}, 18, id="nothing-to-send"),
        pytest.param({"world_size": 8}, 23, id="a-ring-of-8-carries-1.75-times-the-bytes"),
        pytest.param({"world_size": 8, "algorithm": Algorithm.TREE}, 24, id="a-tree-twice"),
        pytest.param({"world_size": 8, "algorithm": Algorithm.GATHER}, 72, id="the-root-14-times"),
        pytest.param({"world_size": 4096}, 12 + 8 * 4095 / 4096 + 4, id="thousands-of-ranks"),
        pytest.param({"compression": Compression.FP16}, 19, id="half-the-bytes"),
        pytest.param({"compression": Compression.BF16}, 19, id="likewise"),
        pytest.param({"compression": Compression.POWERSGD}, 18 + 1 / 128, id="4-KiB-of-each-MiB"),
        pytest.param({"gradient_as_bucket_view": True}, 20, id="nothing-was-copied"),
        pytest.param({"static_graph": True}, 20, id="nothing-was-searched"),
    ],
)
def test_the_step_under_another_setting(setting: dict[str, Any], step: float) -> None:
    prediction = predict(profile(), Setting(**setting))
    assert prediction.step_ns / UNIT == pytest.approx(step, rel=1e-6)
    assert sum(getattr(prediction.parts, name) for name in prediction.parts.__slots__) == pytest.approx(
        prediction.step_ns
    )
    assert prediction.low_ns <= prediction.step_ns <= prediction.high_ns


def test_the_parts_of_a_step() -> None:
    parts = predict(profile(), Setting()).parts
    assert (parts.forward_ns, parts.backward_ns, parts.slowed_ns, parts.exposed_ns, parts.rest_ns) == tuple(
        pytest.approx(time * UNIT) for time in (10, 4, 0, 2, 4)
    )


def test_buckets_are_those_that_ddp_makes() -> None:
    sizes = predict(profile(), Setting(buckets=BucketCaps(list_mb=(1, 2)))).bucket_bytes
    assert sizes == (MIB, 2 * MIB, MIB)


def test_latency_grows_with_rounds_and_only_where_it_was_measured() -> None:
    """2 rounds among 2 ranks took half a unit; among 5 a ring has 8, and 1.6 times the bytes."""
    slow = network(Link(Cost(UNIT / 2, 1.0)))
    was = profile(network=slow, replayed_ns=17, reduced_ns=17)
    of_bench = predict(was, Setting(world_size=5, buckets=BucketCaps(4)))
    assert of_bench.step_ns / UNIT == pytest.approx(3 + 14 + 2 + 4 * 1.6)
    of_run = replace(was, network=replace(slow, is_benched=False))
    assert predict(of_run, Setting(world_size=5, buckets=BucketCaps(4))).step_ns / UNIT == pytest.approx(
        3 + 14 + 0.5 + 4 * 1.6
    )


def test_another_latency_holds_beside_computation_too() -> None:
    far = Cost(UNIT, 1.0)
    was = profile(network=network(Link(far, busy=far)))
    near = profile(network=network(Link(Cost(0.0, 1.0), busy=Cost(0.0, 1.0))))
    asked = Setting(latency_ns=0.0, buckets=BucketCaps(1))
    assert predict(was, asked).step_ns == pytest.approx(predict(near, asked).step_ns)


def test_gloo_s_bandwidth_is_what_tcp_leaves_of_the_wire() -> None:
    """2 MiB are sent from 14 on at 0.96 bytes per ns; the first two were there before."""
    on_tcp = predict(profile(training=training(backend="gloo")), Setting(bytes_per_s=1e9))
    assert on_tcp.step_ns / UNIT == pytest.approx(4 + 12 + 4 / TCP_PAYLOAD)


def test_views_of_buckets_spare_the_copies_out_of_them() -> None:
    """A quarter of a ns per byte: the last bucket is copied from 16 to 16.5, when the first one long is."""
    copying = profile(copied_ns_per_byte=0.25, replayed_ns=16.5, reduced_ns=16.5)
    assert predict(copying, Setting()).step_ns / UNIT == pytest.approx(20)
    assert predict(copying, Setting(gradient_as_bucket_view=True)).step_ns / UNIT == pytest.approx(19.5)


def test_a_static_graph_spares_the_search_and_fills_buckets_as_gradients_come() -> None:
    """Buckets in the reverse of the definition wait for the gradient that comes last: 4 are sent from 14 to 18."""
    searching = training(find_unused_parameters=True, buckets=((2, 3), (0, 1)))
    was = profile(training=searching, replayed_ns=18, reduced_ns=18, step_ns=22, searched_ns=0.5)
    assert predict(was, Setting()).step_ns / UNIT == pytest.approx(22)
    assert predict(was, Setting(static_graph=True)).step_ns / UNIT == pytest.approx(22 - 2 - 0.5)
    assert predict(was, Setting(static_graph=True)).bucket_bytes == (2 * MIB, 2 * MIB)


def test_other_ranks_must_know_the_same_gradients() -> None:
    with pytest.raises(DdpprofError, match="have different numbers of gradients"):
        profile().without_others(profile(computed=computed(10, (11, 12), 14)))


def test_what_is_sent_slows_the_computation_beside_it() -> None:
    """Of 2 units of sending, from 12 on, an eighth each is taken: the last gradient comes at 14.25."""
    taking = network(Link(Cost(0.0, 1.0), taken=Cost(0.0, 0.125)))
    was = profile(network=taking, replayed_ns=16.25, reduced_ns=16.25)
    assert predict(was, Setting()).parts.slowed_ns / UNIT == pytest.approx(0.25)


def test_of_a_link_of_half_the_rate_more_is_taken_per_byte_but_not_twice_as_much() -> None:
    """1.4 × an eighth, of buckets that take twice as long, and a little more beside computation."""
    taking = network(Link(Cost(0.0, 1.0), taken=Cost(0.0, 0.125)))
    slower = predict(profile(network=taking, replayed_ns=16.25, reduced_ns=16.25), Setting(bytes_per_s=0.5e9))
    assert slower.parts.slowed_ns / UNIT == pytest.approx(2 / (1 - 0.175 / hypot(2, 0.175)) - 2)


def test_what_made_the_recorded_steps_longer_makes_others_so() -> None:
    """The backward pass ended at 16.8 instead of 16; in one bucket it would end at 18."""
    slowed = profile(reduced_ns=16.8, step_ns=20.8)
    assert predict(slowed, Setting()).step_ns / UNIT == pytest.approx(20.8)
    in_one = predict(slowed, Setting(buckets=BucketCaps(4)))
    assert in_one.step_ns / UNIT == pytest.approx(4 + 1.05 * 18)
    assert in_one.parts.rest_ns / UNIT == pytest.approx(4)
    assert in_one.missed_ns / UNIT == pytest.approx(0.8 * 18 / 16)


def test_what_takes_much_longer_than_the_replay_says_does_something_else() -> None:
    """A tenth is the machine's pace: 1.6 of the 16 that nothing explains, and 0.2 more in one bucket."""
    waiting = profile(reduced_ns=32, step_ns=36)
    assert predict(waiting, Setting()).step_ns / UNIT == pytest.approx(36)
    assert predict(waiting, Setting(buckets=BucketCaps(4))).step_ns / UNIT == pytest.approx(36 + 2 * 1.1)


def test_without_the_others_is_as_if_they_were_like_these() -> None:
    """Gradients of the others come 3 later; without them two buckets are sent from 9 to 13."""
    late = profile()
    early = profile(computed=computed(7, (8, 9, 10, 11), 11))
    assert predict(late.without_others(early), Setting()).step_ns / UNIT == pytest.approx(17)


def test_a_gain_is_what_the_step_becomes_shorter_by() -> None:
    base = predict(profile(), Setting())
    assert gain(base, predict(profile(), Setting(buckets=BucketCaps(1)))).gain_ns == pytest.approx(UNIT)
    costs = gain(base, predict(profile(), Setting(buckets=BucketCaps(4))))
    assert costs.low_ns <= costs.gain_ns == pytest.approx(-2 * UNIT)
    nothing = gain(base, base)
    assert (nothing.low_ns, nothing.gain_ns, nothing.high_ns) == (0, 0, 0)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        pytest.param({"buckets": BucketCaps(list_mb=(0.25, 2))}, None, id="half-as-large-is-near-enough"),
        pytest.param({"world_size": 64}, "the network was measured with 2 ranks, not with 64", id="ranks"),
        pytest.param({"bytes_per_s": 0.1e9}, "the bandwidth was specified, not measured", id="bandwidth"),
        pytest.param({"batch_scale": 4}, "computation time is assumed to grow with the batch size", id="batch"),
        pytest.param({"compression": Compression.FP16}, "the hook's computation time is ignored", id="hook"),
    ],
)
def test_outside_what_was_measured_the_interval_is_wider_and_says_why(setting: dict[str, Any], why: str | None) -> None:
    base, one = predict(profile(), Setting()), predict(profile(), Setting(**setting))
    if why is None:
        assert one.widened == base.widened == ()
    else:
        assert any(text.startswith(why) for text in one.widened)


def test_what_a_hook_computes_is_as_uncertain_in_the_gain() -> None:
    """It goes twice through 4 MiB at 0.25 ns per byte: 2 units, of which 1 may not be so."""
    copied = profile(copied_ns_per_byte=0.25, replayed_ns=17, reduced_ns=17)
    base, one = predict(copied, Setting()), predict(copied, Setting(compression=Compression.FP16))
    assert one.guessed_ns / UNIT == pytest.approx(1)
    assert any(text.startswith("the hook's computation time is estimated") for text in one.widened)
    found = gain(base, one)
    assert found.gain_ns - found.low_ns > 0.99 * UNIT


def test_of_traces_the_size_of_a_number_is_not_known() -> None:
    whole = profile(training=training(knows_parameters=False))
    assert "32-bit" in predict(whole, Setting(compression=Compression.FP16)).widened[-1]


def test_a_run_that_accumulates_has_all_its_passes_already() -> None:
    """Of the 14 until the backward pass ends, each of two passes takes 7."""
    twice = profile(accumulation=2)
    assert predict(twice, Setting()).step_ns / UNIT == pytest.approx(20)
    for passes, step in ((1, 13), (2, 20), (3, 27), (4, 34)):
        assert predict(twice, Setting(accumulation=passes)).step_ns / UNIT == pytest.approx(step)


def test_as_many_ranks_train_as_in_the_run_whatever_the_network_was_measured_among() -> None:
    """A ring of 8 carries 1.75 times the bytes of one of 2, so that this is the network of 2."""
    of_eight = network(Link(Cost(0.0, 1.75)), world_size=8)
    prediction = predict(profile(), Setting(), of_eight)
    assert prediction.step_ns / UNIT == pytest.approx(20)
    assert prediction.widened == ("the network was measured with 8 ranks, not with 2",)


def test_one_rank_on_a_cpu_leaves_nothing_to_doubt() -> None:
    alone = predict(profile(training=training(on_cpu=True, backend="gloo")), Setting(world_size=1))
    assert alone.widened == ()
    assert alone.low_ns == alone.high_ns


def test_open_buckets_of_several_kinds_stay_in_the_order_that_was_recorded() -> None:
    """In which order gradients of the two kinds came the buckets do not tell."""
    kinds = tuple(Gradient(MIB, kind) for kind in ("a", "b", "a", "b"))
    mixed = training(gradients=kinds, buckets=((0, 2), (1, 3)), caps=Caps.of(16))
    one = predict(profile(training=mixed), Setting(buckets=BucketCaps(16)))
    assert one.step_ns == predict(profile(training=mixed), Setting()).step_ns


def width(**setting: Any) -> float:
    prediction = predict(profile(), Setting(**setting))
    return (prediction.high_ns - prediction.low_ns) / UNIT


def test_the_further_outside_the_wider() -> None:
    assert width() < width(world_size=8) < width(world_size=64)
    assert width() < width(bytes_per_s=0.5e9) < width(bytes_per_s=0.1e9)
    assert width() < width(batch_scale=2) < width(batch_scale=4)


def test_sizes_far_from_those_that_were_measured_widen_it() -> None:
    narrow = profile(network=network(least_bytes=8 * MIB, most_bytes=16 * MIB))
    prediction = predict(narrow, Setting(buckets=BucketCaps(1)))
    assert prediction.widened == (
        "some buckets are outside the range of sizes for which the network was measured (8.39 to 16.8 MB)",
    )
    known = predict(profile(), Setting(buckets=BucketCaps(1)))
    assert prediction.high_ns - prediction.low_ns > known.high_ns - known.low_ns


def test_noise_and_what_the_replay_misses_widen_it() -> None:
    """A standard error of 1: 2 to each side; the replay ends 2 early: 2 more, at right angles."""
    noisy = predict(profile(step_error_ns=1, reduced_ns=18), Setting(world_size=1))
    assert (noisy.high_ns - noisy.step_ns) / UNIT == pytest.approx(8**0.5)


@pytest.mark.parametrize(
    ("gradient", "hook", "rank", "share"),
    [
        (Gradient(400, shape=(10, 10)), None, 1, 1),
        (Gradient(400, shape=(10, 10)), Compression.FP16, 1, 0.5),
        (Gradient(200, item_bytes=2, shape=(10, 10)), Compression.FP16, 1, 1),
        (Gradient(800, item_bytes=8, shape=(10, 10)), Compression.BF16, 1, 0.25),
        (Gradient(400, shape=(10, 10)), Compression.POWERSGD, 1, 20 / 100),
        (Gradient(400, shape=(10, 10)), Compression.POWERSGD, 2, 40 / 100),
        (Gradient(400, shape=(10, 10)), Compression.POWERSGD, 3, 1),
        (Gradient(400, shape=(100,)), Compression.POWERSGD, 1, 1),
        (Gradient(4000, shape=(10, 10, 10)), Compression.POWERSGD, 2, 220 / 1000),
    ],
)
def test_the_share_that_a_hook_sends(gradient: Gradient, hook: Compression | None, rank: int, share: float) -> None:
    assert sent_share([gradient], hook, rank) == pytest.approx(share)


def test_a_hook_sends_each_gradient_as_it_can() -> None:
    gradients = [Gradient(400, shape=(10, 10)), Gradient(100, shape=(25,))]
    assert sent_share(gradients, Compression.POWERSGD, 1) == pytest.approx(180 / 500)


def test_of_several_reduced_passes_each_takes_as_long_and_the_rest_of_the_step_once() -> None:
    """Two passes of 16 in a step of 36: views save what each copies, 4 bytes a ns for 4 MiB."""
    twice = profile(step_ns=36.0, num_reduced=2, copied_ns_per_byte=0.0)
    assert predict(twice, Setting()).step_ns == pytest.approx(36 * UNIT)
    assert predict(twice, Setting()).parts.rest_ns == pytest.approx(4 * UNIT)


def test_reducing_only_in_the_last_pass_spares_the_communication_of_the_others() -> None:
    """Each computes until 14, and its last bucket is there at 16."""
    twice = profile(step_ns=36.0, num_reduced=2)
    once = predict(twice, Setting(accumulation=2))
    assert once.step_ns == pytest.approx((4 + 14 + 16) * UNIT)
    assert gain(predict(twice, Setting()), once).gain_ns == pytest.approx(2 * UNIT)


def test_passes_through_different_modules_add_up() -> None:
    """Two passes take 16 of the 36 each. With buckets of a MiB each takes one less, and without overlap two more."""
    turns = (pass_profile(), pass_profile(training=training(modules=(1,))))
    both = replace(profile(step_ns=36.0), passes=turns)
    for setting in ({}, {"buckets": BucketCaps(1)}, {"overlaps": False}, {"bytes_per_s": 2e9}):
        alike = predict(profile(step_ns=36.0, num_reduced=2), Setting(**setting))
        apart = predict(both, Setting(**setting))
        assert (apart.step_ns, apart.low_ns, apart.high_ns) == (alike.step_ns, alike.low_ns, alike.high_ns)
        assert apart.parts == alike.parts
        assert apart.bucket_bytes == alike.bucket_bytes * 2


def test_errors_of_different_passes_do_not_cancel() -> None:
    """The replay makes one pass 3 longer than it was, and the other 4 shorter."""
    errors = (pass_profile(reduced_ns=13), pass_profile(reduced_ns=20, training=training(modules=(1,))))
    both = replace(profile(step_ns=37.0), passes=errors)
    assert predict(both, Setting()).missed_ns / UNIT == pytest.approx(5)


@pytest.mark.parametrize(("fit", "error"), [(0.0, 0.02), (0.3, 0.3)])
def test_the_interval_reaches_as_far_as_the_worse_of_a_slower_and_a_faster_network(fit: float, error: float) -> None:
    """Two buckets that end at 14 + 2 × the time for a MiB, which is not hidden."""
    made = predict(profile(network=network(relative_error=fit)), Setting())
    slower, faster = (ns / UNIT for ns in made.doubted_ns)
    assert slower == pytest.approx(20 + 4 * error)
    assert faster > 20 - (slower - 20)
    assert (made.high_ns - made.step_ns) / UNIT == pytest.approx(slower - 20)
    assert (made.step_ns - made.low_ns) / UNIT == pytest.approx(slower - 20)


def test_a_tiny_bucket_does_not_make_the_others_uncertain() -> None:
    """Of 4 MiB and a kB, the kB was 13 doublings below what was measured, and the rest within it."""
    sizes = (*training().gradients, Gradient(1024))
    tiny = training(gradients=sizes, buckets=((0, 1), (2, 3), (4,)))
    ready = computed(10, (11, 12, 13, 14, 14), 14)
    with_tiny = predict(profile(network=network(least_bytes=MIB), training=tiny, computed=ready), Setting())
    without = predict(profile(), Setting())
    assert with_tiny.high_ns - with_tiny.low_ns == pytest.approx(without.high_ns - without.low_ns, rel=0.02)


def rate_error(ns_per_byte: float, **changes: Any) -> float:
    """Return by how much slower the slower network sends buckets of 1 MiB, if one of 8 MiB was measured."""
    link = Link(Cost(0.0, ns_per_byte))
    doubts = doubts_about(
        network(link, least_bytes=8 * MIB, most_bytes=8 * MIB, num_sizes=1), link, Setting(), training(**changes)
    )
    return doubts.links[0].alone.ns_per_byte / ns_per_byte - 1


def test_the_rate_of_a_wire_hardly_depends_on_the_size() -> None:
    """Buckets of 2 MiB are two doublings below the measured 8 MiB."""
    assert rate_error(1.0) == pytest.approx(0.02 + 0.2)
    assert rate_error(8.0) == pytest.approx(0.02 + 0.2), "ranks of one host may only be busy"
    assert rate_error(1.0, crosses_hosts=True) == pytest.approx(0.02 + 0.2)
    assert rate_error(8.0, crosses_hosts=True) == pytest.approx(0.02 + 0.06)


@pytest.mark.parametrize(
    ("round_trip_ns", "on_cpu", "latency_ns"),
    [
        pytest.param(None, False, 2 * 10e6, id="unknown"),
        pytest.param(50_000, False, 2 * 0.15e6, id="accelerator"),
        pytest.param(50_000, True, 2 * 2.05e6, id="threads-may-wait-for-a-core"),
        pytest.param(60_000_000, False, 2 * 10e6, id="between-continents"),
    ],
)
def test_a_round_trip_limits_the_latency(round_trip_ns: int | None, on_cpu: bool, latency_ns: float) -> None:
    """A bucket of 16 MiB at 8 ns per byte takes 134 ms, two rounds of messages among two ranks included."""
    size = 16 * MIB
    of_run = network(Link(Cost(0.0, 8.0)), least_bytes=size, most_bytes=size, num_sizes=1, is_benched=False)
    doubts = doubts_about(of_run, of_run.link, Setting(), training(round_trip_ns=round_trip_ns, on_cpu=on_cpu))
    alone = doubts.links[-1].alone
    assert alone.constant_ns == pytest.approx(latency_ns)
    assert alone.ns(size) == pytest.approx(8.0 * size)


@pytest.mark.parametrize(
    ("constant_ns", "round_trip_ns", "num_links"),
    [
        pytest.param(0.0, 50_000, 3, id="not-in-the-fit"),
        pytest.param(1e6, 50_000, 2, id="in-the-fit"),
        pytest.param(0.0, None, 2, id="no-round-trip"),
    ],
)
def test_a_fit_without_latency_is_doubted(constant_ns: float, round_trip_ns: int | None, num_links: int) -> None:
    """Sizes of 1 to 16 MiB separate latency and bandwidth, but noise may hide the latency."""
    of_run = network(Link(Cost(constant_ns, 8.0)), most_bytes=16 * MIB, is_benched=False)
    doubts = doubts_about(of_run, of_run.link, Setting(), training(round_trip_ns=round_trip_ns))
    assert len(doubts.links) == num_links
