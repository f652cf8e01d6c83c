"""When buckets are sent: by hand, and by walking through time in small steps."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from predictions import MIB, UNIT, computed, training

from ddpprof.errors import DdpprofError
from ddpprof.model.ddp_module import Caps
from ddpprof.predict.replay import Bucket, Cost, Link, Replayed, joint, replay


def link(ns_per_byte: float, latency_ns: float = 0, at_once: int = 1, taken: float = 0, **costs: Cost) -> Link:
    return Link(Cost(latency_ns, ns_per_byte), taken=Cost(0, taken), at_once=at_once, **costs)


def test_one_bucket_takes_latency_and_its_bytes() -> None:
    replayed = replay([Bucket(10, 100)], 20, link(2, latency_ns=5))
    bucket = replayed.buckets[0]
    assert (bucket.launched_ns, bucket.started_ns, bucket.finished_ns) == (10, 10, 215)
    assert (replayed.computed_ns, replayed.end_ns) == (20, 215)


def test_nothing_to_send_ends_with_the_computation() -> None:
    assert replay([], 20, link(1)) == Replayed((), 20, 20)


def test_nccl_sends_one_after_the_other() -> None:
    first, second = replay([Bucket(10, 100), Bucket(10, 50)], 20, link(1, at_once=1)).buckets
    assert (first.finished_ns, second.launched_ns, second.started_ns, second.finished_ns) == (110, 10, 110, 160)


def test_gloo_sends_two_at_once_which_share_the_link() -> None:
    first, second, third = replay([Bucket(10, 100), Bucket(10, 50), Bucket(10, 10)], 20, link(1, at_once=2)).buckets
    assert second.finished_ns == pytest.approx(110), "50 bytes at half the rate"
    assert (third.started_ns, third.finished_ns) == pytest.approx((110, 130))
    assert first.finished_ns == pytest.approx(170), "all bytes of all three"


def test_a_bucket_waits_for_those_before_it() -> None:
    first, second = replay([Bucket(30, 10), Bucket(5, 10)], 40, link(1, at_once=2)).buckets
    assert (first.launched_ns, second.launched_ns) == (30, 30)


def test_what_is_sent_slows_the_computation() -> None:
    """A quarter of it is taken: from 10 on, 30 of computation take 40."""
    replayed = replay([Bucket(10, 100), Bucket(25, 50)], 40, link(1, taken=0.25))
    assert replayed.computed_ns == pytest.approx(50)
    assert replayed.buckets[1].launched_ns == pytest.approx(30)


def test_the_computation_never_stands_still() -> None:
    """2 ns taken for each that a byte is sent: a tenth is left, so that 100 bytes leave 10 of 400."""
    assert replay([Bucket(0, 100)], 400, link(1, taken=2)).computed_ns == pytest.approx(490)


def test_beside_computation_a_bucket_takes_longer() -> None:
    """Half of it is sent until 100, when computation is over; the other half goes at the link's own rate."""
    replayed = replay([Bucket(0, 100)], 100, link(1, busy=Cost(0, 2)))
    assert replayed.buckets[0].finished_ns == pytest.approx(150)
    assert replay([Bucket(0, 100)], 100, link(1, busy=Cost(0, 0.5))).end_ns == pytest.approx(100), "never faster"


def test_of_a_link_of_another_rate_part_of_what_is_taken_goes_with_its_bytes_and_part_with_the_time() -> None:
    known = Link(Cost(0, 2), taken=Cost(7, 0.5))
    assert [known.taken_at(rate).ns(10) for rate in (1, 2, 4)] == pytest.approx([7 + 4, 7 + 5, 7 + 7])
    assert link(0, taken=0.5).taken_at(1) == Cost(0, 0.5)


def test_a_slower_link_takes_longer_but_no_more_of_the_computation() -> None:
    ends = [replay([Bucket(0, 100)], 1000, link(slow, taken=0.5)).computed_ns for slow in (1, 2, 4)]
    assert ends == pytest.approx([1050, 1050, 1050])


def test_small_buckets_all_take_as_long() -> None:
    slow_start = Link(Cost(5, 1, floor_ns=50))
    ends = [replay([Bucket(0, num_bytes)], 0, slow_start).end_ns for num_bytes in (1, 40, 100)]
    assert ends == pytest.approx([50, 50, 105])


def test_buckets_that_are_there_early_are_copied_while_the_last_is_sent() -> None:
    """The first is there at 30 and the second at 130: 40 of copying lie between, 10 behind."""
    replayed = replay([Bucket(10, 20, copied_ns=40), Bucket(30, 100, copied_ns=10)], 30, link(1))
    assert (replayed.computed_ns, replayed.buckets[1].finished_ns, replayed.end_ns) == (30, 130, 140)


def test_copies_are_computation_that_sending_slows() -> None:
    """Short copies are over before the second bucket is there; of long ones 400 bytes take 100 ns."""
    replayed = replay([Bucket(0, 20, copied_ns=60), Bucket(20, 400, copied_ns=1)], 20, link(1, taken=0.25, at_once=1))
    assert replayed.end_ns == pytest.approx(replayed.buckets[1].finished_ns + 1)
    long = replay([Bucket(0, 20, copied_ns=600), Bucket(20, 400, copied_ns=1)], 20, link(1, taken=0.25, at_once=1))
    assert long.end_ns - long.computed_ns == pytest.approx(600 + 400 * 0.25 + 1)


@pytest.mark.parametrize("seed", range(20))
def test_equals_a_walk_through_time(seed: int) -> None:
    chance = random.Random(seed)
    computed = sorted(chance.uniform(0, 1000) for _ in range(chance.randrange(1, 8)))
    buckets = [Bucket(ns, chance.choice([10, 100, 400]), chance.choice([0, 30, 200])) for ns in computed]
    rate = chance.uniform(0.5, 3)
    on = Link(
        Cost(chance.choice([0, 20]), rate, chance.choice([0, 40])),
        Cost(chance.choice([0, 50]), rate * chance.uniform(0.5, 2)),
        Cost(chance.choice([0, 5]), chance.choice([0, 0.2, 1])),
        chance.randrange(1, 4),
    )
    replayed = replay(buckets, 1000, on)
    finished, computed_ns, end_ns = _walk(buckets, 1000, on)
    assert [bucket.finished_ns for bucket in replayed.buckets] == pytest.approx(finished, abs=2)
    assert replayed.computed_ns == pytest.approx(computed_ns, abs=2)
    assert replayed.end_ns == pytest.approx(end_ns, abs=2)


def _walk(
    buckets: Sequence[Bucket], computed_ns: float, on: Link, tick: float = 0.1
) -> tuple[list[float], float, float]:
    now = done = 0.0
    left = [1.0 for _ in buckets]
    copies = [bucket.copied_ns for bucket in buckets]
    finished, computed_at, num_copied = [-1.0] * len(buckets), -1.0, 0
    while num_copied < len(buckets) or computed_at < 0:
        due = [all(b.computed_ns <= done for b in buckets[: index + 1]) for index in range(len(buckets))]
        sending = [index for index, is_due in enumerate(due) if is_due and finished[index] < 0][: on.at_once]
        works = computed_at < 0 or finished[num_copied] >= 0
        taken = 0.0
        for index in sending:
            size = buckets[index].num_bytes
            lasts = max(on.alone.ns(size), on.busy.ns(size) if works else 0)
            left[index] -= tick / lasts / len(sending)
            taken += on.taken.ns(size) / lasts / len(sending)
        speed = max(0.1, 1 - taken)
        now += tick
        if computed_at < 0:
            done += tick * speed
        elif works:
            copies[num_copied] -= tick * speed
        for index in sending:
            if left[index] <= 0:
                finished[index] = now
        if computed_at < 0 and done >= computed_ns:
            computed_at = now
        while computed_at >= 0 and num_copied < len(buckets) and finished[num_copied] >= 0 >= copies[num_copied]:
            num_copied += 1
    return finished, computed_at, now


def test_thousands_of_buckets_all_arrive_in_order() -> None:
    replayed = replay([Bucket(index * 1e3, 1e6) for index in range(4096)], 5e6, link(1e-3, 100, at_once=2, taken=1e-4))
    launches = [bucket.launched_ns for bucket in replayed.buckets]
    assert launches == sorted(launches)
    assert replayed.end_ns >= 4096 * 1e6 * 1e-3, "the link is never faster than it is"


@pytest.mark.parametrize(
    ("ready", "launches"),
    [
        pytest.param((1, 2, 3, 4), [2, 4], id="by-their-last-gradients"),
        pytest.param((1, 9, 3, 4), [9, 9], id="none-before-the-one-before-it"),
        pytest.param((1, None, 3, 4), [1, 4], id="an-unused-parameter"),
        pytest.param((1, 2, None, None), [2, 2], id="a-bucket-without-gradients"),
        pytest.param((None, None, 3, 4), [0, 4], id="the-first-without"),
    ],
)
def test_launches(ready: tuple[float | None, ...], launches: list[float]) -> None:
    assert training().launches(ready) == launches


def test_sizes() -> None:
    assert training().bucket_bytes == (2 * MIB, 2 * MIB)
    assert training().gradient_bytes == 4 * MIB


@pytest.mark.parametrize(
    ("settings", "is_rebuilt"),
    [
        ({}, True),
        ({"find_unused_parameters": True}, False),
        ({"find_unused_parameters": True, "static_graph": True}, True),
    ],
)
def test_buckets_are_rebuilt_unless_ddp_searches(settings: dict[str, bool], is_rebuilt: bool) -> None:
    assert training(**settings).is_rebuilt == is_rebuilt


def test_a_hook_sends_a_share_and_copies_all() -> None:
    """Of two MiB half is sent from 14 to 15, and all copied, at half a ns per byte, until 16."""
    replayed = training().replay(computed(10, (11, 12, 13, 14), 14), Link(Cost(0.0, 1.0)), 0.5, sent_share=0.5)
    assert replayed.buckets[1].finished_ns / UNIT == pytest.approx(15)
    assert replayed.end_ns / UNIT == pytest.approx(16)


def test_all_of_it_comes_sooner_but_nothing_before_the_step() -> None:
    assert computed(2, (11, None, 1, 14), 14).sooner(3 * UNIT) == computed(0, (8, None, 0, 11), 11)


def test_modules_launch_their_buckets_independently() -> None:
    """The second bucket of the first module waits for its first; the other module's does not."""
    both = joint([training(), training(buckets=((0, 1, 2, 3),), modules=(2,))])
    assert (both.modules, both.further_modules_at, both.buckets) == ((0, 2), (4,), ((0, 1), (2, 3), (4, 5, 6, 7)))
    assert both.launches((5, 9, 3, 4, 1, 1, 1, 2)) == [9, 9, 2]
    assert both.bucket_bytes_by_module == {0: (2 * MIB, 2 * MIB), 2: (4 * MIB,)}


def test_buckets_of_several_modules_are_sent_in_the_order_in_which_they_are_there() -> None:
    """One module has 4 MiB ready at 2, the other 2 MiB at 9 and at 12; the link takes a ns per byte."""
    both = joint([training(), training(buckets=((0, 1, 2, 3),), modules=(1,))])
    replayed = both.replay(computed(1, (8, 9, 11, 12, 1, 1, 2, 2), 12), Link(Cost(0.0, 1.0)), 0.0)
    assert [one.finished_ns / UNIT for one in replayed.buckets] == pytest.approx([11, 14, 6])
    assert replayed.end_ns / UNIT == pytest.approx(14)


def test_each_module_has_its_own_buckets_under_other_caps() -> None:
    both = joint([training(), training(buckets=((0, 1, 2, 3),), modules=(1,))])
    assert both.remade(Caps.of(3), (7, 6, 3, 5, 4, 2, 1, 0)) == ((3, 2, 1), (0,), (7, 6, 5), (4,))


def test_modules_with_different_settings_are_not_replayed_together() -> None:
    with pytest.raises(DdpprofError, match="different settings"):
        joint([training(), training(gradient_as_bucket_view=True)])
