"""Who is late, by how much, in what, since when; and nobody where it may be chance."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import own
from tables import collective, ddp_module, forward, recorded, trace

from ddpprof.model import Phase, RecordedStep, Trace
from ddpprof.topics.ranks.own_time import StepProgress, measure_progress
from ddpprof.topics.ranks.stragglers import LateGradient, OwnTimePart, Stragglers, find_late_gradients, find_stragglers

MS = 1_000_000
Progress = dict[int, list[StepProgress]]


def noisy_job(
    num_ranks: int = 4,
    num_steps: int = 13,
    *,
    late: Callable[[int, int], int] = lambda _rank, _step: 0,
    part: str = "backward",
    seed: int = 0,
    tail_ns: float = 5 * MS,
) -> Progress:
    """Steps of half a second, of which the forward takes 100 ms and the backward 200; delays have a long tail."""
    random = np.random.default_rng(seed)
    made: Progress = {rank: [] for rank in range(num_ranks)}
    for step in range(num_steps):
        for rank, rows in made.items():
            delay = round(random.exponential(tail_ns))
            parts = {"forward": 100 * MS, "backward": 200 * MS + delay, "data": MS, "optimizer": 9 * MS, "other": MS}
            parts[part] += late(rank, step)
            rows.append(own(step, step_ns=500 * MS, **parts))
    return made


def found(progress: Progress) -> Stragglers:
    stragglers = find_stragglers(progress)
    assert stragglers is not None
    return stragglers


@pytest.mark.parametrize("part", list(OwnTimePart))
def test_a_rank_that_sleeps_in_every_step(part: OwnTimePart) -> None:
    (one,) = found(noisy_job(late=lambda rank, _: 200 * MS * (rank == 1), part=part)).stragglers
    assert (one.rank, one.part, one.num_last, one.num_steps, one.since_step) == (1, part, 13, 13, None)
    assert one.late_ns == pytest.approx(200 * MS, abs=10 * MS)
    assert one.part_late_ns == pytest.approx(200 * MS, abs=10 * MS)
    assert one.p_value < 1e-6


def test_exact_numbers() -> None:
    ranks = {0: [own(s, backward=100) for s in range(3)], 1: [own(s, backward=100) for s in range(3)]}
    ranks[2] = [own(s, backward=100, data=20 + s) for s in range(3)]
    result = found(ranks)
    assert [(one.rank, one.num_last, one.late_ns) for one in result.ranks] == [(0, 0, -10), (1, 0, -10), (2, 3, 21)]
    assert result.step_ns == 1000
    (one,) = result.stragglers
    # above the others' mean by 20, 21, 22: t = 21·√3 = 36.37, two degrees of freedom; times 4 tests and 3 ranks
    assert one.p_value == pytest.approx(0.00038 * 12, rel=0.01)


def test_equal_ranks_are_no_stragglers_however_many_steps() -> None:
    assert found({rank: [own(step, backward=100) for step in range(500)] for rank in range(4)}).stragglers == ()


@pytest.mark.parametrize(("num_ranks", "num_steps"), [(2, 7), (4, 13), (4, 200), (8, 30)])
def test_noise_is_no_straggler(num_ranks: int, num_steps: int) -> None:
    jobs = (noisy_job(num_ranks, num_steps, seed=seed, tail_ns=40 * MS) for seed in range(100))
    assert sum(bool(found(job).stragglers) for job in jobs) <= 1


def test_late_by_less_than_a_hundredth_of_the_step_is_not_late() -> None:
    def job(late_ns: int) -> Progress:
        return {rank: [own(step, backward=100 + late_ns * rank) for step in range(9)] for rank in range(2)}

    assert found(job(10)).stragglers == ()
    assert [one.rank for one in found(job(11)).stragglers] == [1]


def test_late_now_and_then_is_chance() -> None:
    progress = noisy_job(late=lambda rank, step: 200 * MS * (rank == 1 and step in (2, 7)))
    assert found(progress).stragglers == ()


def test_since_when() -> None:
    (one,) = found(noisy_job(late=lambda rank, step: 80 * MS * (rank == 3 and step >= 8))).stragglers
    assert (one.rank, one.since_step, one.num_last, one.num_steps) == (3, 8, 5, 5)
    assert one.late_ns == pytest.approx(80 * MS, abs=10 * MS)


def test_a_rank_that_was_late_before_and_is_later_now_was_late_all_along() -> None:
    (one,) = found(noisy_job(late=lambda rank, step: (50 + 20 * (step >= 8)) * MS * (rank == 3))).stragglers
    assert (one.since_step, one.num_steps) == (None, 13)


def test_two_stragglers_the_latest_first() -> None:
    result = found(noisy_job(late=lambda rank, _: 60 * MS * (rank == 1) + 150 * MS * (rank == 2)))
    assert [one.rank for one in result.stragglers] == [2, 1]


def test_a_rank_that_is_slower_in_everything_is_late_in_no_part() -> None:
    made = noisy_job()
    made[2] = [
        replace(r, forward_ns=r.forward_ns + 40 * MS, backward_ns=r.backward_ns + 50 * MS, data_ns=31 * MS)
        for r in made[2]
    ]
    (one,) = found(made).stragglers
    assert (one.rank, one.part) == (2, None)
    assert one.part_late_ns == pytest.approx(50 * MS, abs=10 * MS)


def test_of_two_ranks_the_slower_one() -> None:
    (one,) = found(noisy_job(2, late=lambda rank, _: 50 * MS * (rank == 0))).stragglers
    assert (one.rank, one.part) == (0, OwnTimePart.BACKWARD)


def test_a_rank_that_is_faster_than_all_others_is_nothing_to_complain_of() -> None:
    assert found(noisy_job(late=lambda rank, _: -50 * MS * (rank == 0))).stragglers == ()


def test_steps_are_compared_only_where_all_ranks_saw_them_alike() -> None:
    ranks = {
        0: [own(1, backward=5), own(2, backward=5), own(3, backward=5)],
        1: [own(1, backward=5), own(2, traced=False, backward=9), own(3, backward=5), own(4, backward=9)],
    }
    assert found(ranks).num_steps == 2


@pytest.mark.parametrize(
    "progress",
    [
        pytest.param({}, id="no-rank"),
        pytest.param({0: [own(1), own(2)]}, id="one-rank"),
        pytest.param({0: [own(1), own(2)], 1: []}, id="one-rank-with-steps"),
        pytest.param({0: [own(1)], 1: [own(1)]}, id="one-step"),
        pytest.param({0: [own(1), own(2)], 1: [own(3), own(4)]}, id="no-step-in-common"),
    ],
)
def test_too_little_to_judge_by(progress: Progress) -> None:
    assert find_stragglers(progress) is None


def accelerator(sleeps_ns: int, waits_ns: int, kernels: int = 20) -> Trace:
    """Three steps: forward, a host that sleeps, backward of many kernels, all-reduce, optimizer.

    The all-reduce of the first half of the gradients runs beside the second half, the other one behind it.
    """
    compute, launched, comm, steps = [], [], [], []
    now = 0
    for step in range(3):
        begin = now
        compute.append((now, now + 100 * MS, Phase.FORWARD, step))
        launched.append(now)
        now += 100 * MS + sleeps_ns
        for index in range(kernels):
            compute.append((now, now + 10 * MS, Phase.BACKWARD, step))
            launched.append(now)
            now += 11 * MS  # a millisecond late each time
            if index == kernels // 2:
                first = now
        comm.append(collective(first, max(first + 9 * MS, first + waits_ns), step=step))
        comm.append(collective(now, now + waits_ns + 30 * MS, step=step, launched=now - MS))
        launched.append(now)  # the optimizer, long before it can begin
        now += waits_ns + 30 * MS
        compute.append((now, now + 5 * MS, Phase.OPTIMIZER, step))
        now += 5 * MS
        steps.append((begin, now))
    made = trace(device="gpu", steps=steps, compute=compute, comm=comm)
    return replace(made, compute=replace(made.compute, launched_ns=np.array(launched)))


def test_an_accelerator_whose_host_sleeps_in_the_backward_pass() -> None:
    traces = [accelerator(200 * MS * (rank == 2), 200 * MS * (rank != 2)) for rank in range(4)]
    assert len({one.steps for one in traces}) == 1
    (one,) = found({rank: list(measure_progress(of_rank)) for rank, of_rank in enumerate(traces)}).stragglers
    assert (one.rank, one.part, one.late_ns, one.part_late_ns, one.num_last) == (2, "backward", 200 * MS, 200 * MS, 3)


@given(st.permutations(range(4)), st.integers(-(1 << 60), 1 << 60), st.sampled_from([0, 2, 3]))
def test_neither_order_nor_clocks_nor_a_rank_that_is_in_time_matter(order: list[int], by_ns: int, dropped: int) -> None:
    made = noisy_job(late=lambda rank, step: 100 * MS * (rank == 1 and step > 4))
    expected = found(made)
    assert found({rank: made[rank] for rank in order}) == expected
    made[1] = [replace(row, arrival_ns=row.arrival_ns + by_ns) for row in made[1]]
    assert found(made) == expected
    del made[dropped]
    (before,), (after,) = expected.stragglers, found(made).stragglers
    assert (after.rank, after.part, after.since_step) == (before.rank, before.part, before.since_step)
    assert after.late_ns == pytest.approx(before.late_ns, abs=10 * MS)


THREE = ddp_module((4, 4, 4), ((2, 1, 0),))
"""Gradients become ready from p2 to p0."""


def step(number: int, ready: Sequence[int | None], origin: int = 0, module: int = 0, **changes: Any) -> RecordedStep:
    times = {module: [None if time is None else origin + time for time in ready]}
    return recorded(number, ready=times, forwards=(forward(inner_end=origin, module=module),), **changes)


def late(
    *ready: Sequence[int | None], usual: Sequence[int | None] = (30, 20, 10), **changes: Any
) -> tuple[LateGradient, ...] | None:
    """Of rank 1 with those delays in steps 0, 1, …, among four ranks."""
    ranks = {rank: [step(number, usual, rank * 1000) for number in range(len(ready))] for rank in range(4)}
    ranks[1] = [step(number, delays, 7_000_000, **changes) for number, delays in enumerate(ready)]
    return find_late_gradients([THREE], ranks, 1)


def test_between_two_gradients() -> None:
    assert late((130, 120, 10)) == (LateGradient(0, "p1", "p2", 100, 100, 1),)


def test_before_the_first_gradient() -> None:
    assert late((130, 120, 110)) == (LateGradient(0, "p2", None, 100, 100, 1),)


def test_in_several_places_the_largest_first() -> None:
    assert late((230, 70, 10)) == (LateGradient(0, "p0", "p1", 150, 200, 1), LateGradient(0, "p1", "p2", 50, 50, 1))


def test_what_it_catches_up_is_no_jump() -> None:
    found = late((60, 120, 10))
    assert found is not None
    assert [one.parameter for one in found] == ["p1"]


def test_small_jumps_beside_a_large_one_are_noise() -> None:
    found = late((140, 120, 11))
    assert found is not None
    assert [(one.parameter, one.jump_ns) for one in found] == [("p1", 99)]


def test_medians_over_steps() -> None:
    found = late((130, 120, 10), (9030, 9020, 10), (131, 121, 10), (30, 20, 10), (130, 120, 10))
    assert found == (LateGradient(0, "p1", "p2", 100, 100, 5),)


def test_a_rank_in_time() -> None:
    assert late((30, 20, 10)) == ()
    assert late((25, 18, 9)) == ()


def test_parameters_without_gradient_are_passed_over() -> None:
    assert late((130, None, 10), (130, None, 10)) == (LateGradient(0, "p0", "p2", 100, 100, 2),)
    found = late((130, None, 10), (130, 120, 10))
    assert found == (LateGradient(0, "p1", "p2", 100, 100, 1),)


def test_only_steps_that_others_have_too() -> None:
    ranks = {0: [step(1, (30, 20, 10))], 1: [step(1, (130, 120, 10)), step(2, (990, 980, 10))]}
    assert find_late_gradients([THREE], ranks, 1) == (LateGradient(0, "p1", "p2", 100, 100, 1),)


def test_modules_stand_apart() -> None:
    modules = [THREE, ddp_module((4,), ((0,),))]
    ranks = {rank: [step(1, (30, 20, 10)), step(2, (30 + 50 * rank,), module=1)] for rank in range(2)}
    assert find_late_gradients(modules, ranks, 1) == (LateGradient(1, "p0", None, 50, 50, 1),)


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param({}, id="no-ranks"),
        pytest.param({0: [step(1, (30, 20, 10))]}, id="the-rank-is-missing"),
        pytest.param({1: [step(1, (30, 20, 10))]}, id="no-other-rank"),
        pytest.param({0: [step(2, (30, 20, 10))], 1: [step(1, (30, 20, 10))]}, id="no-step-in-common"),
        pytest.param({0: [step(1, (30, 20, 10))], 1: [step(1, (30, 20))]}, id="another-number-of-parameters"),
        pytest.param({rank: [step(1, (30,), module=5)] for rank in range(2)}, id="a-module-that-nobody-described"),
        pytest.param(
            {r: [recorded(1, ready={0: (3, 2, 1)}, forwards=(forward(synchronizes=False),))] for r in range(2)},
            id="no-sync",
        ),
    ],
)
def test_nothing_to_compare(ranks: dict[int, list[RecordedStep]]) -> None:
    assert find_late_gradients([THREE], ranks, 1) is None


@given(st.permutations(range(4)), st.integers(0, 3), st.integers(0, 1 << 40))
def test_neither_order_nor_clocks_matter(order: list[int], shifted: int, by_ns: int) -> None:
    def ranks(shift: int) -> dict[int, list[RecordedStep]]:
        return {rank: [step(1, (130 if rank == 1 else 30 + rank, 20, 10), shift * (rank == shifted))] for rank in order}

    assert find_late_gradients([THREE], ranks(by_ns), 1) == find_late_gradients([THREE], ranks(0), 1)
