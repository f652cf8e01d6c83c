"""Gradients that hooks of the script reduce, without torch's DDP: recognised, measured, nothing else taken for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tables import collective, run, trace

from ddpprof.engine.topic import View
from ddpprof.layout import Line, Table
from ddpprof.load.classify import classify
from ddpprof.model import UNKNOWN, CollectiveKind, Mark, Phase, Rank, Trace
from ddpprof.render.sections import sections
from ddpprof.report.build import build_report
from ddpprof.topics.buckets.steps import reduces_without_ddp
from ddpprof.topics.own_reduction import OWN_REDUCTION, OwnReduction, measure_own_reduction
from ddpprof.topics.own_reduction import own_reduction as rule
from ddpprof.topics.steps.overlap import measure_trailing

NAMES = ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "autograd::engine::evaluate_function: AddmmBackward0",
         "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad")  # fmt: skip
NODE, HOOK = 1, 2
MIB = 1 << 20


def apex(comm: Sequence[dict[str, int]] | None = None, host: Sequence[Any] = (), **changes: Any) -> Trace:
    """Two steps of 1000. Backward on the host from 100, on the device 150-600; buckets launched at 200 and 400.

    The first all-reduce hides until 450, the second one runs on the side until 700; optimizer at 720.
    """
    made, marks, compute = [], list(host), []
    for step, at in ((0, 0), (1, 1000)):
        made += [
            collective(at + 250, at + 450, step=step, launched=at + 200, num_bytes=2 * MIB),
            collective(at + 500, at + 700, step=step, launched=at + 400, num_bytes=MIB),
        ]
        marks += [
            (Mark.BACKWARD, at + 100, at + 190, step, NODE), (Mark.BACKWARD, at + 195, at + 210, step, HOOK),
            (Mark.BACKWARD, at + 390, at + 410, step, HOOK), (Mark.FLATTEN, at + 196, at + 199, step),
            (Mark.FLATTEN, at + 420, at + 425, step),
        ]  # fmt: skip
        compute += [(at + 150, at + 600, Phase.BACKWARD, step), (at + 720, at + 800, Phase.OPTIMIZER, step)]
    return trace(steps=[(0, 1000), (1000, 2000)], comm=made if comm is None else comm, host=marks, compute=compute,
                 device="gpu", names=NAMES, backend="nccl", **changes)  # fmt: skip


def test_what_it_costs() -> None:
    assert measure_own_reduction(apex(), [0, 1]) == OwnReduction(2, 3 * MIB, 400, 100, None)
    assert measure_own_reduction(replace(apex(), device="cpu"), [0]) == OwnReduction(2, 3 * MIB, 400, 100, 8)
    assert measure_trailing(apex(), 0) == 100


def test_medians_are_over_steps_that_reduce() -> None:
    comm = [collective(0, 30, launched=200), collective(1000, 1010, launched=1200, num_bytes=MIB, step=1)]
    assert measure_own_reduction(apex(comm), [0, 1]) == OwnReduction(1, None, 20, 20, None)
    assert measure_own_reduction(apex(comm[:1]), [0, 1]) == OwnReduction(1, None, 30, 30, None)
    assert measure_own_reduction(apex(comm[:1]), [1]) is None


def test_the_rank_that_exposes_least() -> None:
    few, many = OwnReduction(1, None, 9, 3, None), OwnReduction(1, None, 9, 8, None)
    assert OWN_REDUCTION.of_ranks is not None
    assert OWN_REDUCTION.of_ranks([many, few]) == few


IN_HOOK, IN_NODE = {"launched": 200}, {"launched": 150}


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(apex(host=[(Mark.FORWARD, 0, 50, 0)]), id="ddp"),
        pytest.param(apex(host=[(Mark.BUCKET_COPY_IN, 300, 310, 0)]), id="ddp-by-its-reducer"),
        pytest.param(apex(host=[(Mark.DATA_PARALLEL, 0, 50, 0)]), id="data-parallel"),
        pytest.param(apex(host=[(Mark.SHARDED, 0, 50, 0)]), id="fsdp"),
        pytest.param(apex([collective(250, 450, **IN_HOOK, num_bytes=MIB),
                           collective(450, 460, **IN_HOOK, kind=CollectiveKind.REDUCE_SCATTER)]), id="shards"),
        pytest.param(apex([collective(250, 450, **IN_HOOK, num_bytes=MIB, phase=Phase.OTHER)]), id="another-thread"),
        pytest.param(apex([collective(820, 900, launched=810, num_bytes=MIB, phase=Phase.OTHER)]), id="parameters"),
        pytest.param(apex([collective(250, 450, **IN_NODE, num_bytes=MIB)]), id="another-node"),
        pytest.param(apex([collective(250, 260, **IN_HOOK, num_bytes=4)]), id="a-number"),
        pytest.param(apex([]), id="nothing"),
        pytest.param(trace(comm=[collective(10, 20, num_bytes=MIB)]), id="no-marks"),
    ],
)  # fmt: skip
def test_what_is_not_taken_for_it(made: Trace) -> None:
    assert not reduces_without_ddp(made)
    assert measure_own_reduction(made, [0, 1]) is None


def test_sizes_need_not_be_known() -> None:
    assert reduces_without_ddp(apex([collective(250, 450, **IN_HOOK, num_bytes=UNKNOWN)]))


def test_the_report_says_so_and_has_its_buckets() -> None:
    report = build_report(run(Rank(0, apex(), None)))
    assert report.own_reduction == OwnReduction(2, 3 * MIB, 400, 100, None)
    assert [(b.num_bytes, b.launched_ns, b.finished_ns) for b in report.buckets] == [
        (2 * MIB, 100, 350),
        (MIB, 300, 600),
    ]
    assert "own-reduction" in [finding.rule for finding in report.findings]
    shown = sections(report)
    assert any("all-reduced without torch's DDP" in part.text for part in shown if isinstance(part, Line))
    titles = [part.title for part in shown if isinstance(part, Table)]
    assert [title for title in titles if "after the backward pass began" in title] == [
        "Gradient buckets on the host, ms after the backward pass began (medians)",
        "Gradient buckets on the device, ms after the backward pass began (medians)",
    ]


def test_ddps_buckets_still_count_from_its_forward() -> None:
    report = build_report(run(Rank(0, apex(host=[(Mark.FORWARD, 0, 50, 0), (Mark.FORWARD, 1000, 1050, 1)]), None)))
    assert report.own_reduction is None
    assert [bucket.launched_ns for bucket in report.buckets] == [150, 350]


def test_the_finding() -> None:
    observed = View(2, 1_000_000)
    (finding,) = rule(OwnReduction(3, 2_000_000, 500_000, 100_000, 20_000), observed)
    assert finding.gain_ns is None
    assert finding.evidence == (
        "3 all-reduces per step of 2.0 MB in all, launched inside the backward pass; 0.10 ms of 0.50 ms is exposed; "
        "the training thread spends 0.02 ms flattening gradients"
    )
    assert "gradient_as_bucket_view=True" in finding.advice
    (unknown,) = rule(OwnReduction(3, None, 5, 1, None), observed)
    assert "flattening" not in unknown.evidence


@pytest.mark.parametrize(
    ("category", "name", "mark"),
    [
        ("user_annotation", "FullyShardedDataParallel.forward", Mark.SHARDED),
        ("user_annotation", "FSDP::post_backward_reduce", Mark.SHARDED),
        ("cpu_op", "aten::flatten_dense_tensors", Mark.FLATTEN),
        ("cpu_op", "aten::unflatten_dense_tensors", Mark.FLATTEN),
        ("cpu_op", "aten::flatten", None),
    ],
)
def test_marks(category: str, name: str, mark: Mark | None) -> None:
    made = classify(category, name)
    assert (made.mark, made.is_op) == (mark, category == "cpu_op")
