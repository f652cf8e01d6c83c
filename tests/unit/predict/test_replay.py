"""When buckets are sent: by hand, and by walking through time in small steps."""

import random
from collections.abc import Sequence

import pytest

from ddpprof.predict.replay import Bucket, Link, Replayed, replay


def test_one_bucket_takes_latency_and_its_bytes() -> None:
    replayed = replay([Bucket(10, 100)], 20, Link(latency_ns=5, ns_per_byte=2))
    bucket = replayed.buckets[0]
    assert (bucket.launched_ns, bucket.started_ns, bucket.finished_ns) == (10, 10, 215)
    assert (replayed.computed_ns, replayed.end_ns) == (20, 215)


def test_nothing_to_send_ends_with_the_computation() -> None:
    assert replay([], 20, Link(5, 1)) == Replayed((), 20)
    assert replay([], 20, Link(5, 1)).end_ns == 20


def test_nccl_sends_one_after_the_other() -> None:
    first, second = replay([Bucket(10, 100), Bucket(10, 50)], 20, Link(0, 1, at_once=1)).buckets
    assert (first.finished_ns, second.launched_ns, second.started_ns, second.finished_ns) == (110, 10, 110, 160)


def test_gloo_sends_two_at_once_which_share_the_link() -> None:
    first, second, third = replay([Bucket(10, 100), Bucket(10, 50), Bucket(10, 10)], 20, Link(0, 1, at_once=2)).buckets
    assert second.finished_ns == 110, "50 bytes at half the rate"
    assert (third.started_ns, third.finished_ns) == (110, 130)
    assert first.finished_ns == 170, "all bytes of all three"


def test_a_bucket_waits_for_those_before_it() -> None:
    first, second = replay([Bucket(30, 10), Bucket(5, 10)], 40, Link(0, 1, at_once=2)).buckets
    assert (first.launched_ns, second.launched_ns) == (30, 30)


def test_what_is_sent_slows_the_computation() -> None:
    """A quarter of it is taken: from 10 on, 30 of computation take 40."""
    replayed = replay([Bucket(10, 100), Bucket(25, 50)], 40, Link(0, 1, stolen_ns_per_byte=0.25))
    assert replayed.computed_ns == pytest.approx(50)
    assert replayed.buckets[1].launched_ns == pytest.approx(30)


def test_where_both_want_the_processor_each_has_half() -> None:
    """2 ns of processor a byte: 100 bytes need 200, and have half of 400."""
    replayed = replay([Bucket(0, 100)], 400, Link(0, 1, stolen_ns_per_byte=2))
    assert replayed.buckets[0].finished_ns == pytest.approx(400)
    assert replayed.computed_ns == pytest.approx(600)


def test_a_slower_link_takes_longer_but_no_more_of_the_computation() -> None:
    ends = [replay([Bucket(0, 100)], 1000, Link(0, slow, stolen_ns_per_byte=0.5)).computed_ns for slow in (1, 2, 4)]
    assert ends == pytest.approx([1050, 1050, 1050])


@pytest.mark.parametrize("seed", range(20))
def test_equals_a_walk_through_time(seed: int) -> None:
    chance = random.Random(seed)
    computed = sorted(chance.uniform(0, 1000) for _ in range(chance.randrange(1, 8)))
    buckets = [Bucket(ns, chance.choice([10, 100, 400])) for ns in computed]
    link = Link(chance.choice([0, 20]), chance.uniform(0.5, 3), chance.randrange(1, 4), chance.choice([0, 0.2, 1]))
    replayed = replay(buckets, 1000, link)
    finished, end = _walk(buckets, 1000, link)
    assert [bucket.finished_ns for bucket in replayed.buckets] == pytest.approx(finished, abs=1)
    assert replayed.computed_ns == pytest.approx(end, abs=1)


def _walk(buckets: Sequence[Bucket], computed_ns: float, link: Link, tick: float = 0.1) -> tuple[list[float], float]:
    now = done = 0.0
    left = [bucket.num_bytes for bucket in buckets]
    wait = [link.latency_ns for _ in buckets]
    finished, end = [-1.0] * len(buckets), -1.0
    while min([*finished, end]) < 0:
        due = [all(b.computed_ns <= done for b in buckets[: index + 1]) for index in range(len(buckets))]
        begun = [index for index, is_due in enumerate(due) if is_due and finished[index] < 0][: link.at_once]
        sending = [index for index in begun if wait[index] <= 0]
        wanted = link.stolen_ns_per_byte / link.ns_per_byte if sending and end < 0 else 0
        taken = min(wanted, 0.5)
        for index in begun:
            if index in sending:
                left[index] -= tick / link.ns_per_byte / len(sending) * (taken / wanted if wanted else 1)
            else:
                wait[index] -= tick
        now += tick
        done += tick * (1 - taken)
        for index in sending:
            if left[index] <= 0:
                finished[index] = now
        if end < 0 and done >= computed_ns:
            end = now
    return finished, end


def test_thousands_of_buckets_all_arrive_in_order() -> None:
    replayed = replay([Bucket(index * 1e3, 1e6) for index in range(4096)], 5e6, Link(100, 1e-3, 2, 1e-4))
    launches = [bucket.launched_ns for bucket in replayed.buckets]
    assert launches == sorted(launches)
    assert replayed.end_ns >= 4096 * 1e6 * 1e-3, "the link is never faster than it is"
