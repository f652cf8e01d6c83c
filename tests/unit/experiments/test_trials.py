"""The steps of a trial that were timed."""

from __future__ import annotations

from msgspec.structs import replace
from tables import record

from ddpprof.experiments.trials import timed_blocks, timed_steps
from ddpprof.model import RecordedStep, StepMode


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
