"""What steps would be if nothing were sent: see `predictions` for the units."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from predictions import MIB, UNIT, network, observed_step, training

from ddpprof.errors import DdpprofError
from ddpprof.model.ddp_module import Gradient
from ddpprof.predict.observed_steps import ObservedStep
from ddpprof.predict.profile import ObservedPasses, PassProfile, Profile, profile_of
from ddpprof.predict.replay import Cost, Link, Training

READY, FINISHED = (11, 12, 13, 14), {0: 14, 1: 16}
STEP = observed_step(READY, FINISHED)
RECORDED = training()


def made(
    *steps: ObservedStep,
    measured: Sequence[float] = (20,),
    training: Training = RECORDED,
    each: int = 1,
    **changes: Any,
) -> Profile:
    given = {"network": network(), "copied_ns": 0.0, **changes}
    return profile_of([ObservedPasses(training, steps, each)], [time * UNIT for time in measured], **given)


def only(profile: Profile) -> PassProfile:
    (one,) = profile.passes
    return one


def test_where_sending_takes_nothing_it_is_what_was_observed() -> None:
    profile = made(STEP)
    computed = only(profile).computed
    assert computed.gradients_ns == STEP.ready_ns
    assert (computed.forward_end_ns, computed.end_ns) == (10 * UNIT, 14 * UNIT)
    assert (only(profile).replayed_ns, only(profile).reduced_ns, profile.replay_error) == (16 * UNIT, 16 * UNIT, 0)


def test_what_sending_took_until_then_is_taken_away() -> None:
    """An eighth of a ns per byte: of the two MiB from 12 to 14 half by 13, all by 14."""
    taking = network(Link(Cost(0.0, 1.0), taken=Cost(0.0, 0.125)))
    computed = only(made(STEP, network=taking)).computed
    assert [ns / UNIT for ns in computed.gradients_ns if ns is not None] == pytest.approx([11, 12, 12.875, 13.75])
    assert computed.end_ns / UNIT == pytest.approx(13.75)


def test_a_backward_pass_is_as_long_as_without_communication() -> None:
    """It took 4 of the 14, alone 3: gradients that came 1, 2, 3 and 4 after the forward come three quarters of it."""
    taking = network(Link(Cost(0.0, 1.0), taken=Cost(0.0, 0.0625)))
    computed = only(made(STEP, network=taking, alone_ns=3 * UNIT)).computed
    assert computed.end_ns / UNIT == pytest.approx(13)
    assert computed.gradients_ns[0] is not None
    assert computed.gradients_ns[0] / UNIT == pytest.approx(10 + 3 / (4 - 0.125))


def test_but_it_copies_gradients_into_buckets_which_it_does_not_alone() -> None:
    computed = only(made(STEP, copied_ns=2 * MIB, alone_ns=UNIT)).computed
    assert computed.end_ns / UNIT == pytest.approx(13)


def test_communication_makes_no_computation_faster() -> None:
    assert only(made(STEP, alone_ns=30 * UNIT)).computed.end_ns == 14 * UNIT


def test_what_sending_takes_from_steps_with_it_and_without() -> None:
    """Of the four MiB 3 are sent by 15, at a MiB in 1; alone the backward pass takes 1.5 less."""
    step = observed_step((11, 12, 13, 15), {0: 14, 1: 17})
    link = made(step, training=training(on_cpu=True, buckets=((0,), (1,), (2, 3))), alone_ns=3.5 * UNIT).network.link
    assert link.taken == Cost(0.0, pytest.approx(0.75))


def test_of_little_that_was_sent_by_then_it_cannot_be_told() -> None:
    together = training(on_cpu=True, buckets=((0,), (1, 2, 3)))
    assert made(STEP, training=together, alone_ns=2 * UNIT).network.link.taken == Cost()


def test_the_replay_of_the_recorded_buckets_is_then_what_was_observed() -> None:
    taking = network(Link(Cost(0.0, 1.0), taken=Cost(0.0, 0.125)))
    assert only(made(STEP, network=taking)).replayed_ns / UNIT == pytest.approx(16)


def test_medians_over_steps_and_a_gradient_that_most_lack_is_none() -> None:
    """The fourth comes in one of three: the backward pass of the median step ends with the third."""
    steps = [
        observed_step((11, 12, 13, 14), FINISHED), observed_step((12, 13, 14, None), FINISHED),
        observed_step((13, 14, 15, None), FINISHED),
    ]  # fmt: skip
    computed = only(made(*steps)).computed
    assert computed.gradients_ns == (12 * UNIT, 13 * UNIT, 14 * UNIT, None)
    assert computed.end_ns == 14 * UNIT


def test_gradients_in_the_order_in_which_they_come() -> None:
    assert only(made(observed_step((14, 12, None, 11), FINISHED))).order == (3, 1, 0)


def test_copies_take_what_the_trace_says() -> None:
    assert only(made(STEP, copied_ns=MIB)).copied_ns_per_byte == 0.25


def test_copies_that_no_trace_tells_are_what_ends_the_replay_when_the_steps_did() -> None:
    """The last bucket of two MiB is there at 16, and DDP is done at 17."""
    profile = made(observed_step(READY, FINISHED, reduced_ns=17), copied_ns=None)
    assert only(profile).copied_ns_per_byte == pytest.approx(0.5, abs=1e-6)
    assert profile.replay_error == pytest.approx(0, abs=1e-6)


def test_what_takes_longer_than_copies_could_is_no_copy() -> None:
    profile = made(observed_step(READY, FINISHED, reduced_ns=60), copied_ns=None)
    assert only(profile).copied_ns_per_byte == pytest.approx(4)
    assert profile.replay_error < -0.5


def test_views_of_buckets_are_not_copied() -> None:
    views = training(gradient_as_bucket_view=True)
    assert only(made(STEP, training=views, copied_ns=None)).copied_ns_per_byte == 0


def test_the_error_of_a_median_from_the_spread() -> None:
    profile = made(STEP, measured=(18, 20, 22, 20))
    assert profile.step_ns == 20 * UNIT
    assert profile.step_error_ns / UNIT == pytest.approx(1.25 * (8 / 3) ** 0.5 / 2)
    assert made(STEP).step_error_ns / UNIT == pytest.approx(1.25), "a twentieth, of one whose spread nobody knows"


def test_several_backward_passes_of_a_step_are_reduced_alike() -> None:
    """Two steps of two passes; what DDP copies in a step it copies in two parts."""
    steps = [observed_step(READY, FINISHED, step=number) for number in (3, 3, 5, 5)]
    profile = made(*steps, each=2, copied_ns=2 * MIB, searched_ns=4 * UNIT)
    assert (only(profile).num_reduced, only(profile).searched_ns, profile.num_steps) == (2, 2 * UNIT, 2)
    assert profile.batches_per_step == 2
    assert only(profile).copied_ns_per_byte == 0.25


def test_passes_through_several_modules_are_profiled_each_on_its_own() -> None:
    """A step of one pass through a module of four MiB and two through another of two: eight MiB are reduced."""
    small = training(gradients=(Gradient(2 * MIB),), buckets=((0,),), modules=(1,))
    kinds = [
        ObservedPasses(training(), [observed_step(READY, FINISHED, step=3)], 1),
        ObservedPasses(small, [observed_step((14,), {0: 16}, step=3)] * 2, 2),
    ]
    profile = profile_of(kinds, [60 * UNIT], network(), copied_ns=4 * MIB, searched_ns=3 * UNIT)
    assert [one.num_reduced for one in profile.passes] == [1, 2]
    assert [one.copied_ns_per_byte for one in profile.passes] == [0.5, 0.5]
    assert [one.searched_ns for one in profile.passes] == [UNIT, UNIT]
    assert (profile.num_steps, profile.batches_per_step, profile.training) == (1, None, training())
    assert profile.replay_error == pytest.approx(((17 - 16) + 2 * (17 - 16)) / 60)


def test_gradients_without_bytes_are_nothing_to_replay() -> None:
    nothing = replace(RECORDED, gradients=(Gradient(0),) * len(RECORDED.gradients))
    with pytest.raises(DdpprofError, match="are empty"):
        made(STEP, training=nothing)
