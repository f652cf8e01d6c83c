"""Gradients that are reduced in every backward pass of a step."""

import pytest
from observations import MS, observed, only
from tables import ddp_module

from ddpprof.findings import find
from ddpprof.findings.predictions import Predicted, Predictions
from ddpprof.measures.step.accumulation import Accumulation

MODULE = ddp_module([1_000_000, 3_000_000], [[1], [0]])
FOUR = (Accumulation(0, 4, 3, 9),)


def test_what_three_of_four_passes_send_is_sent_for_nothing() -> None:
    finding = only(observed(MODULE, accumulation=FOUR, exposed_ns=40 * MS))
    assert (finding.rule, finding.gain_ns) == ("reduces-every-pass", 30 * MS)
    assert finding.title == "Gradients accumulate over 4 backward passes, and every pass all-reduces them"
    assert finding.evidence == (
        "each pass sends 4.0 MB in 2 buckets, but the optimizer uses only the result of the last pass, in 9 recorded "
        "steps; 40.00 ms of communication per step are exposed"
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
        (None, "With static_graph=True, let every pass of the first step reduce"),
        ("accelerate", "Drop static_graph=True"),
    ],
)
def test_a_static_graph_limits_it(framework: str | None, limit: str) -> None:
    module = ddp_module([1_000_000, 3_000_000], [[1], [0]], static_graph=True)
    finding = only(observed(module, accumulation=FOUR, exposed_ns=40 * MS, framework=framework))
    assert limit in finding.advice


@pytest.mark.parametrize("exposed_ns", [pytest.param(0, id="all-hidden"), pytest.param(MS, id="hardly-any")])
def test_where_nothing_is_exposed_there_is_nothing_to_gain(exposed_ns: int) -> None:
    assert find(observed(MODULE, accumulation=FOUR, exposed_ns=exposed_ns)) == ()


def test_of_a_module_that_a_killed_rank_did_not_describe_nothing_is_said() -> None:
    assert find(observed(MODULE, accumulation=(Accumulation(1, 4, 3, 9),), exposed_ns=40 * MS)) == ()
