"""When a variant is given up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tables import record

from ddpprof.experiments.hopeless_variant import Steps, is_losing, start_spread, timed_blocks, timed_steps
from ddpprof.model import RecordedStep, StepMode


@pytest.mark.parametrize(
    ("own", "others", "spread", "losing"),
    [
        pytest.param([(103.0,) * 6] * 2, [(100.0,) * 6] * 2, 0.0, True, id="beyond-2-percent"),
        pytest.param([(300.0,) * 6], [(100.0,) * 6], 0.0, False, id="one-start-tells-nothing"),
        pytest.param([(101.5,) * 6] * 2, [(100.0,) * 6] * 2, 0.0, False, id="as-good"),
        pytest.param([(103.0,) * 6] * 2, [(100.0,) * 6] * 2, 0.05, False, id="starts-differ-by-more"),
        pytest.param(
            [(90.0, 95, 103, 110, 115, 120)] * 2, [(90.0, 92, 100, 110, 118, 119)] * 2, 0.0, False, id="noise"
        ),
        pytest.param([(50.0,) * 6] * 2, [(100.0,) * 6] * 2, 0.0, False, id="winning"),
        pytest.param([()], [(100.0,) * 6], 0.0, False, id="not-run"),
        pytest.param(
            [(50.0,), (200.0,) * 6, (200.0,) * 6], [(), (100.0,) * 6, (100.0,) * 6], 0.0, True, id="only-rounds-of-both"
        ),
        pytest.param([(111.0,)] * 2, [(100.0,)] * 2, 0.0, True, id="one-time-10-percent"),
        pytest.param([(109.0,)] * 2, [(100.0,)] * 2, 0.0, False, id="one-time-9-percent"),
    ],
)
def test_a_variant_loses_where_it_is_slower_beyond_doubt(
    own: list[Steps], others: list[Steps], spread: float, losing: bool
) -> None:
    assert is_losing(own, others, spread) is losing


def test_starts_differ_as_their_medians_do() -> None:
    assert start_spread([(100.0, 1.0, 200.0), (), (150.0,)]) == 0.5
    assert start_spread([]) == 0.0


def step(number: int, took: int, mode: str = "off") -> RecordedStep:
    return RecordedStep(number=number, mode=StepMode(mode), start_ns=1000 * number, end_ns=1000 * number + took)


def test_runs_of_consecutive_steps_are_blocks() -> None:
    steps = (step(3, 10), step(4, 12), step(5, 99, "without_ddp"), step(6, 98, "without_ddp"), step(9, 14))
    rank = replace(record(), steps=steps)
    assert timed_blocks([rank]) == ((10, 12), (14,))
    assert timed_blocks([rank], StepMode.WITHOUT_DDP) == ((99, 98),)
    assert timed_steps([rank]) == (10, 12, 14)


def test_of_several_ranks_the_mean_of_the_steps_that_all_have() -> None:
    ranks = [replace(record(), steps=(step(3, 10), step(4, 20))), replace(record(), steps=(step(4, 30), step(5, 1)))]
    assert timed_blocks(ranks) == ((25,),)


def test_without_ranks_or_timed_steps_there_are_none() -> None:
    assert timed_blocks([]) == ()
    assert timed_steps([replace(record(), steps=(step(1, 5, "light"),))]) == ()


def test_of_an_accelerators_steps_only_the_block_is_known() -> None:
    steps = (step(3, 1), step(4, 1), step(5, 28), step(9, 7, "without_ddp"), step(10, 9, "without_ddp"))
    rank = replace(record(device="cuda"), steps=steps)
    assert timed_blocks([rank]) == ((10,),)
    assert timed_blocks([rank], StepMode.WITHOUT_DDP) == ((8,),)
