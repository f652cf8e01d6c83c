"""A step that reduces gradients several times although only their sum is used."""

from typing import Any

import pytest
from tables import backward_pass, forward, recorded

from ddpprof.measures.step.accumulation import Accumulation, count_micro_steps, measure_accumulation
from ddpprof.model import RecordedStep


def twice(*optimizers: tuple[int, int], adds_up: bool = True, **changes: Any) -> RecordedStep:
    """Two backward passes, with gradients at 20 and at 60."""
    passes = (backward_pass((15, 20)), backward_pass((55, 60), origin=50, adds_up=adds_up))
    return recorded(forwards=(forward(), forward(40, 42, 50, 51)), passes=passes, optimizers=optimizers, **changes)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param(twice((70, 80)), (Accumulation(0, 2, 1, 1),), id="the-optimizer-steps-once-behind-both"),
        pytest.param(twice((30, 35), (70, 80)), (), id="an-optimizer-steps-between-them"),
        pytest.param(twice((70, 80), adds_up=False), (), id="gradients-were-thrown-away-between-them"),
        pytest.param(recorded(ready={0: (15, 20)}, optimizers=((70, 80),)), (), id="one-pass"),
        pytest.param(
            recorded(
                passes=(backward_pass((None,)), backward_pass((55, 60), origin=50, adds_up=True)),
                optimizers=((70, 80),),
            ),
            (),
            id="a-pass-without-gradients",
        ),
        pytest.param(recorded(), (), id="no-pass"),
    ],
)
def test_accumulation(step: RecordedStep, expected: tuple[Accumulation, ...]) -> None:
    assert measure_accumulation([step]) == expected


def test_what_half_of_the_steps_or_fewer_do_is_not_usual() -> None:
    once = recorded(ready={0: (15, 20)}, optimizers=((70, 80),))
    assert measure_accumulation([once, once, twice((70, 80))]) == ()
    assert measure_accumulation([once, twice((70, 80)), twice((70, 80))]) == (Accumulation(0, 2, 1, 3),)


def test_each_module_counts_on_its_own() -> None:
    passes = (
        backward_pass((15,)),
        backward_pass((25,), origin=20, module=1),
        backward_pass((55,), origin=50, module=1, adds_up=True),
    )
    assert measure_accumulation([recorded(passes=passes, optimizers=((70, 80),))]) == (Accumulation(1, 2, 1, 1),)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param(recorded(ready={0: (15,)}), 1, id="none"),
        pytest.param(twice((70, 80)), 2, id="reduced-every-time"),
        pytest.param(
            recorded(forwards=(*[forward(synchronises=False)] * 3, forward()), ready={0: (15,)}), 4, id="without-sync"
        ),
        pytest.param(
            recorded(forwards=(forward(synchronises=False, has_gradients=False), forward()), ready={0: (15,)}), 1,
            id="an-evaluation-is-no-batch",
        ),
        pytest.param(twice((30, 35), (70, 80)), 1, id="two-parts-of-a-gan"),
        pytest.param(
            recorded(
                forwards=(*[forward(synchronises=False)] * 3, forward(), forward(module=1)), ready={0: (15,), 1: (16,)}
            ),
            4,
            id="a-module-that-accumulates-beside-one-that-does-not",
        ),
    ],
)  # fmt: skip
def test_batches_that_a_step_accumulates(step: RecordedStep, expected: int) -> None:
    assert count_micro_steps([step]) == expected
