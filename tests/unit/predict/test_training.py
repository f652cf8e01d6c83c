"""What was run: when its buckets are launched, and how they are replayed."""

import pytest
from predictions import MIB, UNIT, computed, training

from ddpprof.errors import DdpprofError
from ddpprof.model.ddp_module import Caps
from ddpprof.predict.replay import Cost, Link, joint


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
