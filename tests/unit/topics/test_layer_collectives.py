"""Collectives of a model's own layers: which they are, and what they cost; tables made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tables import collective, forward, record, recorded, trace

from ddpprof.engine.finding import NewBuckets, Predicted, Predictions, sync_batch_norm_change
from ddpprof.engine.topic import View
from ddpprof.model import CodeSamples, CollectiveKind, Mark, Phase, Rank, Step, Trace
from ddpprof.topics.layer_collectives import (
    LAYER_COLLECTIVES,
    LayerCalls,
    doubted,
    layer_collectives,
    measure_layer_calls,
)

NODE, HOOK = (
    f"autograd::engine::evaluate_function: {name}"
    for name in ("SyncBatchNormBackward", "torch::autograd::AccumulateGrad")
)


def step(*comm: dict[str, int], host: Any = (), **changes: Any) -> Trace:
    """0-1000: forward 0-200; in the backward a node 200-300, then a hook 300-400, and computation 250-260."""
    marks = [(Mark.FORWARD, 0, 200, 0), (Mark.BACKWARD, 200, 300, 0, 1), (Mark.BACKWARD, 300, 400, 0, 2), *host]
    compute = [(250, 260, Phase.BACKWARD, 0)]
    return trace([(0, 1000)], comm=comm, host=marks, names=("x", NODE, HOOK), compute=compute, **changes)


GATHER = collective(20, 60, launched=20, phase=Phase.FORWARD, kind=CollectiveKind.ALL_GATHER)
OF_NODE = collective(240, 290, launched=240, phase=Phase.BACKWARD)
OF_HOOK = collective(310, 380, launched=310, phase=Phase.BACKWARD)
BUFFERS = collective(5, 15, launched=5, phase=Phase.FORWARD, kind=CollectiveKind.BROADCAST)


def test_calls_of_layers_are_told_from_those_of_ddp() -> None:
    assert measure_layer_calls(step(BUFFERS, GATHER, OF_NODE, OF_HOOK), 0) == LayerCalls(
        "SyncBatchNorm", num_forward=1, num_backward=1, time_ns=90, exposed_ns=80
    )
    bucket = collective(230, 380, launched=310, phase=Phase.BACKWARD)
    waiting = measure_layer_calls(step(OF_NODE, bucket), 0)
    assert waiting is not None
    assert waiting.exposed_ns == 40, "the layer also waits while a bucket is sent"
    assert measure_layer_calls(step(BUFFERS, OF_HOOK), 0) is None


def test_of_two_steps_the_larger_number_of_calls_counts() -> None:
    """The first step calls a collective in the forward pass, the second one in the backward pass."""
    assert LAYER_COLLECTIVES.of_rank is not None
    later = collective(1240, 1290, launched=1240, phase=Phase.BACKWARD, step=1)
    marks = [(Mark.FORWARD, 1000, 1200, 1), (Mark.BACKWARD, 1200, 1300, 1, 1), (Mark.BACKWARD, 1300, 1400, 1, 2)]
    both = replace(step(GATHER, later, host=marks), steps=(Step(10, 0, 1000), Step(11, 1000, 2000)))
    found = LAYER_COLLECTIVES.of_rank(Rank(0, both, None), [0, 1], ())
    assert found is not None
    assert (found.num_forward, found.num_backward) == (1, 1)


@pytest.mark.parametrize(("device", "ends_us"), [("cpu", (20, 40, 1000)), ("cuda", (20, 21, 1000))])
def test_the_line_that_calls_them(device: str, ends_us: tuple[int, int, int]) -> None:
    """On CPU, a line waits from 20 to 40 µs, most of the gather; a GPU's host is there only when it is launched."""
    assert LAYER_COLLECTIVES.of_rank is not None
    gather = collective(20_000, 45_000, launched=20_000, phase=Phase.FORWARD, kind=CollectiveKind.ALL_GATHER)
    made = trace([(0, 1_000_000)], comm=[gather], device=device, epoch=1000)
    model, loss = "/a/model.py:53 in forward", "/a/train.py:9 in main"
    samples = CodeSamples(1000, ends_us, (1, 0, 1), (model, loss), (True, True))
    found = LAYER_COLLECTIVES.of_rank(Rank(0, made, record(code_samples=samples)), [0], ())
    assert found is not None
    assert found.line == model
    (finding,) = layer_collectives(found, View(2, step_ns=100_000))
    assert finding.evidence.startswith("1 in the forward pass (at model.py:53 in forward) and 0 in the backward pass")
    (of_norms,) = layer_collectives(replace(found, layer="SyncBatchNorm"), View(2, step_ns=100_000))
    assert "model.py" not in of_norms.evidence, "the script has many of these lines"


def test_what_ddp_does_around_the_modules_forward_is_its_own() -> None:
    made = step(GATHER, epoch=1000)
    assert measure_layer_calls(made, 0, recorded(forwards=(forward(1000, 1030, 1190, 1200),))) is None


def test_without_hooks_nothing_in_the_backward_is_known_to_be_a_layers() -> None:
    made = step(OF_NODE)
    host = made.host_spans
    kept = np.flatnonzero(host.name != 2)
    without = replace(made, host_spans=replace(host, **{
        name: getattr(host, name)[kept] for name in ("start_ns", "end_ns", "mark", "name", "step", "thread")
    }))  # fmt: skip
    assert measure_layer_calls(without, 0) is None


def test_layers_that_communicate_in_the_backward_pass_may_wait_for_buckets() -> None:
    """With 48 exchanges at 1 Gbit/s, smaller buckets saved 61 of 150 predicted ms."""
    predicted = Predicted(150, 131, 193)
    made = Predictions(best_buckets=NewBuckets("bucket_cap_mb=1", (1, 1), predicted), compression=predicted)
    found = doubted(made, LayerCalls("Exchange", 24, 24, 90, 80))
    assert found.best_buckets is not None
    assert found.best_buckets.predicted == Predicted(150, 0, 193)
    assert found.compression == predicted
    assert doubted(made, LayerCalls("Exchange", 24, 0, 90, 80)) == doubted(made, None) == made


def test_the_finding() -> None:
    calls = LayerCalls("SyncBatchNorm", 53, 53, 30_000_000, 20_000_000)
    (found,) = layer_collectives(calls, View(2, step_ns=100_000_000))
    assert found.title == "SyncBatchNorm calls 106 collectives per step, and computation waits for the results"
    assert found.change == sync_batch_norm_change()
    assert (found.gain_ns, found.may_be_meant) == (20_000_000, True)
    assert found.advice.startswith(
        "If a single rank's batch is large enough for batch statistics, do not call convert_"
    )
    (found,) = layer_collectives(replace(calls, layer=None), View(2, step_ns=100_000_000))
    assert found.title.startswith("The model's layers call 106 collectives")
    assert list(layer_collectives(calls, View(2, step_ns=100_000_000_000))) == [], "too little to say"
    assert list(layer_collectives(calls, View(2, step_ns=100_000_000, is_compiled=True))) == []
