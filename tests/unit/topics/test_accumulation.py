"""A step that reduces gradients several times although only their sum is used."""

from typing import Any

import pytest
from msgspec.structs import replace
from observations import MS, observed, only
from tables import backward_pass, ddp_module, forward, recorded

from ddpprof.engine.finding import Predicted, Predictions
from ddpprof.engine.topic import View
from ddpprof.model import RecordedStep
from ddpprof.report.topics import find_all
from ddpprof.topics.accumulation import (
    Accumulation,
    UnusedForwards,
    count_micro_steps,
    gradients_discarded,
    measure_accumulation,
    measure_unused_forwards,
    unused_forwards,
)


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
            recorded(forwards=(*[forward(synchronizes=False)] * 3, forward()), ready={0: (15,)}), 4, id="without-sync"
        ),
        pytest.param(
            recorded(forwards=(forward(synchronizes=False, has_gradients=False), forward()), ready={0: (15,)}), 1,
            id="an-evaluation-is-no-batch",
        ),
        pytest.param(twice((30, 35), (70, 80)), 1, id="two-parts-of-a-gan"),
        pytest.param(
            recorded(
                forwards=(*[forward(synchronizes=False)] * 3, forward(), forward(module=1)), ready={0: (15,), 1: (16,)}
            ),
            4,
            id="a-module-that-accumulates-beside-one-that-does-not",
        ),
    ],
)  # fmt: skip
def test_batches_that_a_step_accumulates(step: RecordedStep, expected: int) -> None:
    assert count_micro_steps([step]) == expected


MODULE = ddp_module([1_000_000, 3_000_000], [[1], [0]])
FOUR = (Accumulation(0, 4, 3, 9),)


def test_what_three_of_four_passes_send_is_sent_for_nothing() -> None:
    finding = only(observed(MODULE, accumulation=FOUR, exposed_ns=40 * MS))
    assert (finding.rule, finding.gain_ns) == ("reduces-every-pass", 30 * MS)
    assert finding.title == "Gradients accumulate over 4 backward passes, and every pass all-reduces them"
    assert finding.evidence == (
        "each pass sends 4.0 MB in 2 buckets, but the optimizer uses only the result of the last pass; seen in 9 "
        "recorded steps; 40.0 ms of communication per step is exposed"
    )
    assert "model.no_sync()" in finding.advice


def test_the_replay_says_how_much_where_it_can() -> None:
    predicted = Predicted(20 * MS, 15 * MS, 25 * MS)
    finding = only(observed(MODULE, accumulation=FOUR, exposed_ns=40 * MS, predictions=Predictions(no_sync=predicted)))
    assert (finding.gain_ns, finding.predicted) == (25 * MS, predicted)


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("accelerate", "Accelerator(gradient_accumulation_steps=…)"),
        ("transformers", "TrainingArguments(gradient_accumulation_steps=…)"),
        ("lightning", "Trainer(accumulate_grad_batches=…)"),
        ("fabric", "fabric.no_backward_sync(model)"),
    ],
)
def test_each_framework_has_its_own_words(framework: str, words: str) -> None:
    finding = only(observed(MODULE, accumulation=FOUR, exposed_ns=40 * MS, framework=framework))
    assert words in finding.advice


@pytest.mark.parametrize(
    ("framework", "limit"),
    [
        (None, "With static_graph=True, every pass of the first step must reduce"),
        ("accelerate", "Remove static_graph=True"),
    ],
)
def test_a_static_graph_limits_it(framework: str | None, limit: str) -> None:
    module = ddp_module([1_000_000, 3_000_000], [[1], [0]], static_graph=True)
    finding = only(observed(module, accumulation=FOUR, exposed_ns=40 * MS, framework=framework))
    assert limit in finding.advice


@pytest.mark.parametrize("exposed_ns", [pytest.param(0, id="all-hidden"), pytest.param(MS, id="hardly-any")])
def test_where_nothing_is_exposed_there_is_nothing_to_gain(exposed_ns: int) -> None:
    assert find_all(observed(MODULE, accumulation=FOUR, exposed_ns=exposed_ns)) == ()


def test_of_a_module_that_a_killed_rank_did_not_describe_nothing_is_said() -> None:
    assert find_all(observed(MODULE, accumulation=(Accumulation(1, 4, 3, 9),), exposed_ns=40 * MS)) == ()


NET = ddp_module((400, 600), ((0, 1),))


@pytest.mark.parametrize(
    ("used", "discarded", "gain_ms"),
    [
        pytest.param(5, 5, 4, id="half"),
        pytest.param(12, 4, 2, id="a-quarter"),
        pytest.param(19, 4, None, id="few"),
        pytest.param(2, 2, None, id="too-few-to-tell"),
        pytest.param(0, 5, None, id="the-optimizer-may-have-copies"),
    ],
)
def test_gradients_that_are_reduced_and_discarded(used: int, discarded: int, gain_ms: int | None) -> None:
    networks = [replace(NET, name="G", num_used_passes=used, num_discarded_passes=discarded)]
    found = list(gradients_discarded(networks, View(2, 8 * MS)))
    assert [one.gain_ns for one in found] == ([] if gain_ms is None else [gain_ms * MS])


def test_of_two_networks_the_costs_are_added() -> None:
    half, most = {"num_used_passes": 4, "num_discarded_passes": 4}, {"num_used_passes": 2, "num_discarded_passes": 6}
    networks = [replace(NET, name="G", **half), replace(ddp_module((3000,), ((0,),)), name="D", **most)]
    (found,) = gradients_discarded(networks, View(2, 8 * MS))
    assert found.title == "DDP reduces gradients of G, D that are then discarded"
    assert found.gain_ns == round(8 * MS * (4 * 1000 + 6 * 3000) / (8 * 1000 + 8 * 3000))
    assert found.evidence.startswith("G: 4 of 8 recorded passes; D: 6 of 8 recorded passes; ")


USED, UNUSED = forward(reaches_backward=True), forward(20, 22, 30, 37, reaches_backward=False)


@pytest.mark.parametrize(
    ("forwards", "expected"),
    [
        pytest.param((USED, UNUSED), (UnusedForwards(0, 2, 1, 17, 3),), id="for-metrics"),
        pytest.param((USED, UNUSED, UNUSED), (UnusedForwards(0, 3, 2, 34, 3),), id="twice"),
        pytest.param((USED, USED), (), id="both-used"),
        pytest.param((USED, forward(reaches_backward=None)), (), id="unknown"),
        pytest.param((USED, replace(UNUSED, has_gradients=False)), (), id="without-gradients"),
        pytest.param((UNUSED,), (), id="no-backward-at-all"),
    ],
)
def test_forward_passes_that_no_backward_pass_uses(forwards: Any, expected: tuple[UnusedForwards, ...]) -> None:
    assert measure_unused_forwards([recorded(number, forwards=forwards) for number in range(3)]) == expected


def test_a_forward_pass_that_is_unused_in_few_steps_is_not_reported() -> None:
    steps = [recorded(0, forwards=(USED, UNUSED)), recorded(1, forwards=(USED,)), recorded(2, forwards=(USED,))]
    assert measure_unused_forwards(steps) == ()


def test_the_finding_on_unused_forward_passes() -> None:
    view = observed(modules=(ddp_module(),), step_ns=100 * MS)
    (found,) = unused_forwards((UnusedForwards(0, 3, 2, 8 * MS, 9), UnusedForwards(1, 2, 1, 8 * MS, 9)), view)
    assert found.title == "2 of 3 forward passes of Net per step are not used by a backward pass"
    assert (found.gain_ns, found.subject) == (8 * MS, {"module": "Net"})
    assert not list(unused_forwards((UnusedForwards(0, 3, 2, MS - 1, 9),), view)), "less than 1 %"
