"""Seven parts that add up to the step, whatever overlaps what."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import breakdown_of, collective, marks, trace

from ddpprof.model import Collectives, Mark, Phase, Trace, Work
from ddpprof.topics.steps.breakdown import Breakdown, usual_steps

F, B, Z, P, X = Phase.FORWARD, Phase.BACKWARD, Phase.FINALIZE, Phase.OPTIMIZER, Phase.OTHER


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param({}, Breakdown(0, 0, 0, 0, 0, 0, 0, 100), id="nothing-but-a-step"),
        pytest.param(
            {"compute": [(0, 10, F, 0), (20, 50, B, 0), (60, 65, Z, 0), (70, 90, P, 0), (95, 99, X, 0)]},
            Breakdown(10, 35, 0, 20, 0, 4, 0, 31),
            id="phases",
        ),
        pytest.param(
            {"compute": [(20, 50, B, 0)], "comm": [collective(30, 70)]},
            Breakdown(0, 30, 20, 0, 0, 0, 0, 50),
            id="only-exposed-communication",
        ),
        pytest.param(
            {"compute": [(10, 30, F, 0), (20, 40, B, 0)]},
            Breakdown(10, 20, 0, 0, 0, 0, 0, 70),
            id="backward-goes-first",
        ),
        pytest.param(
            {"comm": [collective(0, 20)], "host": [(Mark.DATA, 10, 40, 0)]},
            Breakdown(0, 0, 20, 0, 20, 0, 0, 60),
            id="waiting-for-data-under-communication-is-communication",
        ),
        pytest.param(
            {"compute": [(90, 130, F, 0)], "steps": [(0, 100), (100, 200)]},
            Breakdown(10, 0, 0, 0, 0, 0, 0, 90),
            id="cut-at-the-end-of-the-step",
        ),
    ],
)
def test_parts_on_cpu(made: dict[str, Any], expected: Breakdown) -> None:
    assert breakdown_of(trace(**made), 0) == expected


def test_an_accelerators_step_reaches_from_its_first_kernel_to_the_next_steps() -> None:
    made = trace(
        steps=[(0, 100), (100, 200)],
        device="gpu",
        compute=[(50, 80, F, 0), (80, 120, B, 0), (160, 200, F, 1)],
        comm=[collective(110, 130)],
        copies=[(40, 45, X, 0)],
        host=[(Mark.DATA, 115, 150, 1)],
    )
    # 40 … 160: copy 5, forward 30, backward 40, exposed 120-130, data 130-150 while the device has nothing to do
    assert breakdown_of(made, 0) == Breakdown(30, 40, 10, 0, 20, 0, 5, 15)
    assert breakdown_of(made, 1) == Breakdown(40, 0, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("cycles", "step_ns"), [pytest.param((0, 0), 190, id="same-window"), pytest.param((0, 1), 60, id="another-window")]
)
def test_an_accelerators_step_does_not_reach_into_another_window_of_the_profiler(
    cycles: tuple[int, int], step_ns: int
) -> None:
    made = trace(
        steps=[(0, 100, cycles[0]), (200, 300, cycles[1])],
        device="gpu",
        compute=[(10, 30, F, 0), (200, 210, F, 1)],
        comm=[collective(40, 70)],
    )
    parts = breakdown_of(made, 0)
    assert parts is not None
    assert parts.step_ns == step_ns
    assert breakdown_of(made, 1) == Breakdown(10, 0, 0, 0, 0, 0, 0, 0)


def test_communication_of_the_step_before_is_not_idle() -> None:
    """It goes on while the next batch is copied."""
    made = trace(
        steps=[(0, 100), (100, 200)],
        device="gpu",
        compute=[(0, 50, B, 0), (150, 180, F, 1)],
        copies=[(90, 100, X, 1)],
        comm=[collective(50, 120, step=0)],
    )
    assert breakdown_of(made, 0) == Breakdown(0, 50, 40, 0, 0, 0, 0, 0)
    assert breakdown_of(made, 1) == Breakdown(30, 0, 30, 0, 0, 0, 0, 30)


def test_an_accelerators_step_without_work_has_no_parts() -> None:
    assert breakdown_of(trace(steps=[(0, 50), (50, 90)], compute=[(0, 9, F, 0)], device="gpu"), 1) is None


SPAN = st.tuples(st.integers(-20, 220), st.integers(0, 60)).map(lambda s: (s[0], s[0] + s[1]))
OPS = st.lists(st.tuples(SPAN, st.sampled_from(Phase), st.integers(-1, 1)), max_size=8)


def made_from(ops: Any, comm: Any, data: Any, device: str, shift: int = 0) -> Trace:
    return trace(
        steps=[(shift, shift + 100), (shift + 100, shift + 200)],
        compute=[(a + shift, b + shift, phase, step) for (a, b), phase, step in ops],
        comm=[collective(a + shift, b + shift, phase, step) for (a, b), phase, step in comm],
        host=[(Mark.DATA, a + shift, b + shift, 0) for a, b in data],
        device=device,
    )


@given(OPS, OPS, st.lists(SPAN, max_size=3), st.sampled_from(["cpu", "gpu"]), st.integers(0, 1 << 60))
def test_parts_add_up_and_do_not_depend_on_the_clock(ops: Any, comm: Any, data: Any, device: str, shift: int) -> None:
    here, elsewhere = made_from(ops, comm, data, device), made_from(ops, comm, data, device, shift)
    for step in range(2):
        parts = breakdown_of(here, step)
        assert breakdown_of(elsewhere, step) == parts
        if parts is not None:
            assert all(getattr(parts, name) >= 0 for name in Breakdown.__slots__)
            assert parts.step_ns == 100 or device == "gpu"
    if device == "gpu" and (first := breakdown_of(here, 0)) and (second := breakdown_of(here, 1)):
        starts = [min(s for (s, e), _, step in [*ops, *comm] if step == i and e > s) for i in range(2)]
        if starts[1] > starts[0]:
            assert first.step_ns == starts[1] - starts[0]
        assert second.step_ns > 0


@given(OPS, OPS, st.randoms())
def test_the_order_of_rows_does_not_matter(ops: Any, comm: Any, random: Any) -> None:
    made = made_from(ops, comm, [], "gpu")

    def shuffled(table: Work | Collectives) -> Any:
        order = list(range(len(table)))
        random.shuffle(order)
        index = np.array(order, dtype=np.int64)
        return replace(table, **{name: getattr(table, name)[index] for name in type(table).__dataclass_fields__})

    again = replace(made, compute=shuffled(made.compute), collectives=shuffled(made.collectives))
    assert [breakdown_of(again, step) for step in range(2)] == [breakdown_of(made, step) for step in range(2)]


def test_waits_before_the_step_do_not_count() -> None:
    made = replace(trace(steps=[(100, 200)]), host_spans=marks((Mark.DATA, 50, 120, -1)))
    assert breakdown_of(made, 0) == Breakdown(0, 0, 0, 0, 20, 0, 0, 80)


def test_a_step_reaches_to_the_next_number_only() -> None:
    """Where a step's mark is missing, what follows is not known to be the next step's."""
    made = trace(steps=[(0, 100), (300, 400)], device="gpu", compute=[(10, 60, F, 0), (310, 350, F, 1)])
    gap = replace(made, steps=(made.steps[0], replace(made.steps[1], number=12)))
    assert [found.step_ns for found in (breakdown_of(made, 0), breakdown_of(gap, 0)) if found] == [300, 50]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        pytest.param([], (), id="none"),
        pytest.param([(12, 100)], (12,), id="one"),
        pytest.param([(12, 100), (13, 150), (14, 100)], (12, 13, 14), id="as-long-as-it-may-be"),
        pytest.param([(12, 100), (13, 151), (14, 100)], (12, 14), id="longer"),
        pytest.param([(12, 10), (13, 100), (14, 100)], (12, 13, 14), id="a-short-one-is-usual"),
        pytest.param([(12, 100), (12, 100), (13, 300), (13, 0), (14, 100), (14, 100)], (12, 13, 14), id="over-ranks"),
    ],
)
def test_usual_steps(lengths: list[tuple[int, int]], expected: tuple[int, ...]) -> None:
    assert usual_steps(lengths) == expected


@pytest.mark.parametrize(
    ("lengths", "evaluated", "expected"),
    [
        pytest.param([(12, 50), (13, 70)], {13}, (12,), id="longer-by-its-evaluation"),
        pytest.param([(12, 50), (13, 50)], {13}, (12, 13), id="no-longer-than-others"),
        pytest.param([(12, 85), (13, 85), (14, 50)], {12, 13}, (14,), id="most-of-them"),
        pytest.param([(12, 50), (13, 70)], {12, 13}, (12, 13), id="in-every-step"),
    ],
)
def test_an_evaluation_is_no_part_of_a_usual_step(
    lengths: list[tuple[int, int]], evaluated: set[int], expected: tuple[int, ...]
) -> None:
    assert usual_steps(lengths, evaluated) == expected
