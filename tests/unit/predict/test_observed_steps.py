"""What light recording and traces tell of a step, of all ranks together."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tables import backward_pass, forward, recorded

from ddpprof.model import UNKNOWN, RecordedStep, StepMode
from ddpprof.predict.observed_steps import backward_alone_ns, observe_gradients, observe_passes, observe_steps
from ddpprof.topics.buckets.traced import TracedPass, TracedPasses


def light(start: int, ready: Sequence[int | None], finished: Sequence[int | None], **changes: Any) -> RecordedStep:
    """Its times count from the step's start."""
    times = [None if ns is None else start + ns for ns in ready]
    buckets = [(0, i, start + 1, None if ns is None else start + ns) for i, ns in enumerate(finished)]
    forwards = (forward(start, start, start + 9, start + 10),)
    return recorded(**{
        "number": 4, "start": start, "end": start + 100, "mode": "light", "ready": {0: times}, "buckets": buckets,
        "forwards": forwards, "optimizers": ((start + 80, start + 90),), **changes,
    })  # fmt: skip


def test_a_bucket_waits_for_the_rank_that_has_its_gradient_last() -> None:
    (step,) = observe_steps({0: [light(0, (30, 40), (50, 70))], 1: [light(0, (35, 38), (50, 70))]})
    assert (step.ready_ns, step.computed_ns) == ((35, 40), 40)
    assert (step.finished_ns, step.reduced_ns, step.measured_ns, step.backward_ns) == ({0: 50, 1: 70}, 80, 100, 10)


def test_on_one_host_a_step_begins_where_its_first_rank_begins_it() -> None:
    """The second begins 6 later, and both have the buckets at the same time."""
    ranks = {0: [light(0, (30, 40), (50, 70))], 1: [light(6, (35, 38), (44, 64))]}
    (step,) = observe_steps(ranks, one_clock=True)
    assert (step.ready_ns, step.finished_ns) == ((41, 44), {0: 50, 1: 70})
    assert (step.reduced_ns, step.backward_ns, step.measured_ns) == (86, 16, 100)


def test_a_step_is_as_long_as_it_is_for_the_ranks_on_average() -> None:
    (step,) = observe_steps({0: [light(0, (30,), (50,), end=90)], 1: [light(6, (30,), (50,), end=106)]})
    assert step.measured_ns == 95


def alone(number: int, optimized: int | None, **changes: Any) -> RecordedStep:
    optimizers = () if optimized is None else ((optimized, optimized + 5),)
    return light(0, (), (), **{"number": number, "mode": "alone", "optimizers": optimizers, **changes})


def test_a_backward_pass_alone_lasts_from_the_forward_to_the_optimizer_on_the_rank_that_takes_longest() -> None:
    """Forwards end at 10, and one step without an optimizer at 100. Of 40, 44 and 90 the first quartile is 42; of the
    other rank's 50, 38 and 10 it is 24.
    """
    ranks = {0: [alone(5, 50), alone(6, 54), alone(7, None)], 1: [alone(5, 60), alone(6, 48), alone(7, 20)]}
    assert backward_alone_ns(ranks) == 42
    assert backward_alone_ns({1: ranks[1]}) == 24


def test_other_steps_do_not_tell_of_a_backward_pass_alone() -> None:
    assert backward_alone_ns({0: [light(0, (30,), (50,)), replace(alone(6, 50), mode=StepMode.BASELINE)]}) is None


def test_a_step_alone_that_had_no_forward_says_nothing_of_a_backward_pass() -> None:
    assert backward_alone_ns({0: [alone(5, 50), alone(6, 1, forwards=())]}) == backward_alone_ns({0: [alone(5, 50)]})
    assert backward_alone_ns({0: [alone(6, 1, forwards=())]}) is None


def test_of_several_backward_passes_without_communication_the_last_one_counts() -> None:
    twice = alone(5, 50, forwards=(forward(0, 0, 9, 10), forward(20, 20, 29, 30)))
    assert backward_alone_ns({0: [twice]}) == 20


def test_a_bucket_whose_end_one_rank_did_not_see_was_there_when_the_others_saw_it() -> None:
    (step,) = observe_steps({0: [light(0, (30, 40), (50, None))], 1: [light(0, (35, 38), (52, 70))]})
    assert step.finished_ns == {0: 52, 1: 70}


def test_a_gradient_that_no_rank_has_is_none() -> None:
    (step,) = observe_steps({0: [light(0, (30, None), (50,))], 1: [light(0, (28, None), (50,))]})
    assert step.ready_ns == (30, None)


def test_without_an_optimizer_after_it_reduction_ends_with_the_step() -> None:
    (step,) = observe_steps({0: [light(0, (30,), (50,), optimizers=((5, 9),))]})
    assert step.reduced_ns == 100


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(light(0, (30,), (50,), mode="profiled"), id="profiled"),
        pytest.param(light(0, (30,), (50,), number=5), id="of-another-rank-only"),
        pytest.param(light(0, (None,), ()), id="no-gradient"),
        pytest.param(
            light(0, (30,), (50,), passes=(backward_pass((30,)), backward_pass((20,), module=1))), id="another-module"
        ),
        pytest.param(light(0, (), (), passes=(backward_pass((30,)), backward_pass((40,)))), id="no-forward-between"),
        pytest.param(light(0, (30,), (50,), forwards=(forward(synchronizes=False),)), id="not-synchronized"),
    ],
)
def test_other_steps_do_not_count(other: RecordedStep) -> None:
    assert observe_steps({0: [light(0, (30,), (50,))], 1: [other]}) == ()


def test_backward_passes_before_the_one_that_is_reduced() -> None:
    accumulating = (forward(0, 0, 9, 10, synchronizes=False), forward(40, 40, 49, 50))
    (step,) = observe_steps({0: [light(0, (60,), (70,), forwards=accumulating)]})
    assert step.backward_ns == 50


def traced(*times: tuple[int, int, int], start: int = -100_000, end: int = 900_000, **changes: Any) -> TracedPass:
    """Launch, start and end of each bucket, in ns since the forward ended."""
    return TracedPass(**{
        "step": 0, "number": 10, "index": 0, "sizes": (100,) * len(times), "origin_ns": 0, "times_ns": times,
        "spans_forwards": False, "step_start_ns": start, "step_end_ns": end, "backward_end_ns": 500_000, **changes,
    })  # fmt: skip


def passes(*rows: TracedPass) -> TracedPasses:
    return TracedPasses(0, rows)


def test_a_bucket_is_there_when_its_kernel_starts() -> None:
    (step,) = observe_passes({0: passes(traced((0, 100_000, 200_000), (250_000, 350_000, 600_000)))})
    assert (step.ready_ns, step.finished_ns) == ((200_000, 450_000), {0: 300_000, 1: 700_000})
    assert (step.backward_ns, step.backward_end_ns, step.reduced_ns) == (100_000, 600_000, 700_000)
    assert step.measured_ns == 1_000_000


def test_one_that_was_queued_was_there_as_long_after_its_launch_as_the_others() -> None:
    """The second starts 10 µs after the first one's end; launched at 50 and 100 behind, it was there at 150."""
    (step,) = observe_passes({0: passes(traced((0, 100_000, 200_000), (50_000, 210_000, 300_000)))})
    assert step.ready_ns == (200_000, 250_000)


def test_ranks_begin_together_where_kernels_end_together() -> None:
    """The other rank has its gradients 50 µs later, and all-reduces that end with the first one's."""
    first, late = traced((0, 100_000, 300_000)), traced((0, 150_000, 300_000))
    (step,) = observe_passes({0: passes(first), 1: passes(late)})
    assert (step.ready_ns, step.finished_ns) == ((250_000,), {0: 400_000})


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"backward_end_ns": None}, id="no-end-of-the-backward-pass"),
        pytest.param({"spans_forwards": True}, id="two-forwards"),
        pytest.param({"number": 11}, id="of-another-rank-only"),
    ],
)
def test_other_passes_do_not_count(other: dict[str, Any]) -> None:
    one = (0, 100_000, 200_000)
    assert observe_passes({0: passes(traced(one)), 1: passes(traced(one, **other))}) == ()
    assert observe_passes({0: passes()}) == observe_passes({}) == ()


def test_sizes_that_are_not_known_fit_any() -> None:
    one = (0, 100_000, 200_000)
    assert len(observe_passes({0: passes(traced(one)), 1: passes(traced(one, sizes=(UNKNOWN,)))})) == 1


def hosted(*ready: int | None, number: int = 10) -> RecordedStep:
    """A profiled step whose gradients were there for the host so long after the forward, which ended at 1000."""
    times = [None if ns is None else 1000 + ns for ns in ready]
    ended = forward(0, 0, 1000, 1001)
    return recorded(number=number, start=0, end=2_000_000, mode="profiled", ready={0: times}, forwards=(ended,))


def test_gradients_lie_between_the_buckets_as_they_did_for_the_host() -> None:
    """The host had the first bucket after 100 µs and the second after 300, the device after 200 and after 500."""
    one = passes(traced((100_000, 200_000, 250_000), (300_000, 500_000, 600_000)))
    steps = observe_gradients({0: one}, {0: {10: hosted(50_000, 100_000, 200_000, 300_000)}}, ((0, 1), (2, 3)))
    assert steps[0].ready_ns == pytest.approx((200_000, 300_000, 450_000, 600_000)), (
        "since the step began, 100 µs before"
    )
    assert steps[0].finished_ns == {0: 350_000, 1: 700_000}


def test_a_gradient_is_there_when_the_last_rank_has_it() -> None:
    one = passes(traced((100_000, 200_000, 250_000)))
    late = passes(traced((100_000, 300_000, 350_000)))
    recorded_steps = {0: {10: hosted(100_000, None)}, 1: {10: hosted(100_000, None)}}
    (step,) = observe_gradients({0: one, 1: late}, recorded_steps, ((0, 1),))
    assert step.ready_ns == (400_000, None)


@pytest.mark.parametrize(
    ("recorded_steps", "buckets"),
    [
        pytest.param({0: {11: hosted(100_000)}}, ((0,),), id="another-step"),
        pytest.param({1: {10: hosted(100_000)}}, ((0,),), id="another-rank"),
        pytest.param({0: {10: hosted(100_000, 200_000)}}, ((0,), (1,)), id="other-buckets"),
    ],
)
def test_gradients_need_the_record_of_the_same_steps(
    recorded_steps: dict[int, dict[int, RecordedStep]], buckets: tuple[tuple[int, ...], ...]
) -> None:
    one = passes(traced((100_000, 200_000, 250_000)))
    assert observe_gradients({0: one}, recorded_steps, buckets) == ()


def test_a_step_of_two_reduced_passes_is_two_parts() -> None:
    """The first ends where the second's forward begins, the second where the optimizer does."""
    passes = (backward_pass((25, 30), buckets=[(0, 31, 35)]), backward_pass((65, 70), 60, buckets=[(0, 71, 76)]))
    step = light(0, (), (), passes=passes, forwards=(forward(0, 1, 9, 10), forward(40, 41, 59, 60)))
    first, second = observe_steps({0: [step]})
    assert (first.measured_ns, first.backward_ns, first.ready_ns, first.reduced_ns) == (40, 10, (25, 30), 40)
    assert (second.measured_ns, second.backward_ns, second.ready_ns, second.reduced_ns) == (60, 20, (25, 30), 40)
    assert (first.finished_ns, second.finished_ns) == ({0: 35}, {0: 36})
    assert first.step == second.step == 4


def test_an_evaluation_inside_a_step_is_no_backward_pass() -> None:
    evaluation = forward(15, 15, 19, 20, synchronizes=False, has_gradients=False)
    (step,) = observe_steps({0: [light(0, (30,), (50,), forwards=(forward(0, 0, 9, 10), evaluation))]})
    assert step.num_accumulated == 1


def test_a_backward_pass_through_the_outputs_of_two_forwards_is_one_pass() -> None:
    both = (forward(0, 0, 9, 10), forward(10, 10, 19, 20))
    (step,) = observe_steps({0: [light(0, (30,), (50,), forwards=both)]})
    assert (step.backward_ns, step.num_accumulated) == (20, 1)


def test_accumulated_passes_are_counted_for_each_module() -> None:
    """Both modules run in each of three batches, and pairs of inputs go through the second one."""
    forwards = [
        forward(start, start, start + 4, start + 5, module=module, synchronizes=start == 40)
        for start in (0, 20, 40)
        for module in (0, 1, 1)
    ]
    passes = (backward_pass((60, 65), 45), backward_pass((55,), 45, module=1))
    (step,) = observe_steps({0: [light(0, (), (), passes=passes, forwards=tuple(forwards))]}, (1, 1))
    assert step.num_accumulated == 3


def test_two_backward_passes_after_both_forwards_are_not_one() -> None:
    """DDP waits for the first module's buckets before the second pass begins, which the replay does not know."""
    passes = (backward_pass((30,), 19), replace(backward_pass((60,), 19, module=1), call=1))
    both = (forward(0, 0, 9, 10), forward(10, 10, 19, 20, module=1))
    assert observe_steps({0: [light(0, (), (), passes=passes, forwards=both)]}, (1, 1)) == ()


def test_modules_that_are_trained_in_turn_are_two_parts() -> None:
    passes = (backward_pass((25, 30)), backward_pass((65,), 60, module=1, buckets=[(0, 71, 76)]))
    step = light(0, (), (), passes=passes, forwards=(forward(0, 1, 9, 10), forward(40, 41, 59, 60, module=1)))
    first, second = observe_steps({0: [step]}, (1, 1))
    assert (first.modules, first.ready_ns, first.measured_ns) == ((0,), (25, 30), 40)
    assert (second.modules, second.ready_ns, second.finished_ns, second.reduced_ns) == ((1,), (25,), {0: 36}, 40)


def test_a_backward_pass_through_two_modules_is_one_part() -> None:
    """As in a GAN: gradients go through the discriminator, module 1, and on through the generator, module 0."""
    passes = (
        backward_pass((45, 50), 10, buckets=[(0, 45, 60), (1, 50, 65)]),
        backward_pass((30,), 20, module=1, buckets=[(0, 30, 40)]),
    )
    both = (forward(0, 0, 9, 10), forward(10, 10, 19, 20, module=1))
    (step,) = observe_steps({0: [light(0, (), (), passes=passes, forwards=both)]}, (2, 1))
    assert (step.modules, step.ready_ns, step.finished_ns) == ((0, 1), (45, 50, 30), {0: 60, 1: 65, 2: 40})
    assert (step.backward_ns, step.reduced_ns, step.num_accumulated) == (20, 80, 1)
