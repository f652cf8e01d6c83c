from __future__ import annotations

from pulses import MS, steps_of

from ddpprof.model.pulse import StepFlag
from ddpprof.monitor.job_steps import common_steps


def test_the_job_has_the_steps_that_all_ranks_have() -> None:
    ranks = {0: steps_of([{}] * 5, first=3), 1: steps_of([{"forward": 24.0}] * 5, first=5)}
    steps = common_steps(ranks)
    assert steps is not None
    assert steps.number.tolist() == [5, 6, 7]
    assert steps.length_ns.tolist() == [62 * MS] * 3
    assert steps.ranks[0].number.tolist() == steps.ranks[1].number.tolist()


def test_a_flag_of_one_rank_is_that_of_all() -> None:
    steps = common_steps({0: steps_of([{}, {}]), 1: steps_of([{}, {"flags": StepFlag.SAVED}])})
    assert steps is not None
    assert steps.is_usual.tolist() == [True, False]


def test_there_are_no_steps_without_ranks() -> None:
    assert common_steps({}) is None
