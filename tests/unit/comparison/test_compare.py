"""Two reports side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from reports import bucket, light_report, rank, report, step

from ddpprof.comparison.compare import Comparison, compare
from ddpprof.comparison.gate import judge, parse_conditions
from ddpprof.comparison.kernels import compare_kernels
from ddpprof.errors import DdpprofError
from ddpprof.events import Kernel
from ddpprof.measures.kernels import KernelSummary
from ddpprof.report import Report
from ddpprof.report.rank_summary import MOST_KERNELS

US, MS = 1000, 1_000_000


def with_idle(*idle_us: int, ranks: int = 1, **changes: Any) -> Report:
    """Steps that differ only in how long they idle; compute is 48 ms, communication 9 ms, 2.5 ms of it hidden."""
    steps = [step(12 + index, 48_000, 9_000, 2_500, 100, idle) for index, idle in enumerate(idle_us)]
    return report(ranks=tuple(rank(number, *steps) for number in range(ranks)), **changes)


def metric(comparison: Comparison, name: str) -> Any:
    return next(change for change in comparison.metrics if change.metric == name)


def test_what_grew_is_found_and_what_did_not_is_not() -> None:
    found = compare(with_idle(1000, 1010, 990, 1005), with_idle(6000, 6010, 5990, 6005, 6001))
    step_change = metric(found, "step")
    assert (step_change.num_steps_a, step_change.num_steps_b) == (4, 5)
    assert step_change.difference.shift == pytest.approx(5 * MS, abs=20 * US)
    assert step_change.difference.is_beyond_noise
    assert step_change.fraction == pytest.approx(5 / 56, abs=0.002)
    assert metric(found, "idle").difference.is_beyond_noise
    assert metric(found, "compute").difference.shift == 0
    assert not metric(found, "compute").difference.is_beyond_noise
    assert found.missing == ("A: 1 collective(s) still ran", "B: 1 collective(s) still ran")


def test_a_run_equals_itself() -> None:
    found = compare(report(), report())
    assert {change.difference.shift for change in found.metrics if change.difference} == {0}
    assert found.settings == ()
    assert all(change.a == change.b for change in found.buckets)
    assert found.kernels == ()


def test_a_step_is_the_mean_over_its_ranks() -> None:
    a = report(ranks=(rank(0, step(12, 10, 4, 0, 0, 0)), rank(1, step(12, 20, 8, 0, 0, 0))))
    assert metric(compare(a, a), "comm").a_ns == 6 * US


def test_lightly_recorded_runs_are_compared_by_their_host_times() -> None:
    found = compare(light_report(), report())
    assert found.metrics == ()
    assert found.missing[-1] == "nothing to compare: the runs have no steps of the same kind"
    names = [change.metric for change in compare(light_report(), light_report()).metrics]
    assert names == ["step", "forward", "backward and comm", "optimizer", "data", "other"]


def test_what_is_different_about_the_runs_is_named() -> None:
    a, b = report(), report()
    module = replace(b.job.modules[0], settings={"bucket_cap_mb": "5.0", "static_graph": "False"}, comm_hook="fp16")
    b = replace(b, job=replace(b.job, world_size=4, torch="2.14.0", modules=(module,)))
    a = replace(a, job=replace(a.job, modules=(replace(a.job.modules[0], settings={"bucket_cap_mb": "25.0"}),)))
    assert {(change.name, change.a, change.b) for change in compare(a, b).settings} == {
        ("ranks", "2", "4"),
        ("torch", "2.13.0+cpu", "2.14.0"),
        ("comm hook", "-", "fp16"),
        ("bucket_cap_mb", "25.0", "5.0"),
        ("static_graph", "-", "False"),
    }


def test_buckets_are_matched_by_what_is_in_them() -> None:
    a = report(buckets=(bucket(0), bucket(1, first_parameter="a", last_parameter="b")))
    b = report(buckets=(bucket(0, first_parameter="a", last_parameter="b"), bucket(1, num_bytes=7)))
    pairs = [(x.a and x.a.index, x.b and x.b.index) for x in compare(a, b).buckets]
    assert pairs == [(0, None), (1, 0), (None, 1)]


def test_ddps_own_work_is_compared_as_far_as_both_runs_know_it() -> None:
    recorded = step(12, 48_000, 9_000, 2_500, 100, 1000)
    bare = replace(recorded, wrapper=replace(recorded.wrapper, pre_forward_ns=None))
    found = compare(report(ranks=(rank(0, recorded),)), report(ranks=(rank(0, bare),)))
    wrapper = metric(found, "wrapper")
    assert wrapper.a_ns == wrapper.b_ns == recorded.wrapper.total_ns - (recorded.wrapper.pre_forward_ns or 0)


def test_steps_without_work_count_in_no_median() -> None:
    empty = replace(step(14, 0, 0, 0, None, 0), parts=None)
    whole = report(ranks=(rank(0, step(12, 40, 0, 0, 0, 0), step(13, 40, 0, 0, 0, 0), empty),))
    change = metric(compare(whole, whole), "compute")
    assert (change.num_steps_a, change.a_ns) == (2, 40 * US)


def kernel(name: str, median_us: int, runs: int = 20, spread: float | None = 0.02) -> KernelSummary:
    return KernelSummary(
        Kernel(name, "[1,1,1][128,1,1]"), "backward", 5, runs, median_us * runs * US, median_us * US, spread
    )


def test_slower_kernels_stand_by_the_time_that_they_cost() -> None:
    a = [kernel("gemm", 100), kernel("copy", 10), kernel("same", 50), kernel("faster", 30), kernel("gone", 5)]
    b = [kernel("gemm", 150), kernel("copy", 90), kernel("same", 50), kernel("faster", 20), kernel("new", 7)]
    changes, unmatched = compare_kernels(a, b)
    assert [(change.kernel.name, change.lost_ns_per_step) for change in changes] == [
        ("copy", 320 * US), ("gemm", 200 * US), ("faster", -40 * US),
    ]  # fmt: skip
    assert unmatched == (
        "kernels of one run only, by name, launch shape and input shapes: "
        "1 only in A (0.02 ms per step), 1 only in B (0.03 ms per step)"
    )


def test_of_lists_that_were_cut_none_is_said_to_lack_a_kernel() -> None:
    many = [kernel(f"k{n}", 5) for n in range(MOST_KERNELS)]
    assert compare_kernels(many, many[1:])[1] is None
    assert compare_kernels(many[1:], many[2:])[1] is not None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(kernel("gemm", 100, spread=0.5), kernel("gemm", 120, spread=0.5), id="within-the-spread"),
        pytest.param(kernel("gemm", 100, runs=2), kernel("gemm", 200, runs=2), id="too-few-runs"),
        pytest.param(kernel("gemm", 100, spread=None), kernel("gemm", 200), id="no-spread"),
    ],
)
def test_noise_makes_no_kernel_slower(a: KernelSummary, b: KernelSummary) -> None:
    assert compare_kernels([a], [b]) == ((), None)


SLOWER = compare(with_idle(1000, 1010, 990, 1005), with_idle(6000, 6010, 5990, 6005))
NOISY = compare(with_idle(1000, 60_000, 990, 30_005), with_idle(6000, 70_010, 5990, 40_005))


@pytest.mark.parametrize(
    ("comparison", "condition", "failed", "because"),
    [
        pytest.param(SLOWER, "step>5%", True, "step changed by +5.00 ms, +8.9%", id="percent"),
        pytest.param(SLOWER, "step > 10 %", False, "step changed by +5.00 ms, +8.9%", id="below"),
        pytest.param(SLOWER, "idle>4.9ms", True, "idle changed by +5.00 ms, +498.8%", id="ms"),
        pytest.param(SLOWER, "idle>5100us", False, "idle changed by +5.00 ms, +498.8%", id="us"),
        pytest.param(SLOWER, "exposed>0ms", False, "exposed changed by +0.00 ms, +0.0%", id="unchanged"),
        pytest.param(NOISY, "step>1%", False, "within the noise of the steps", id="noise"),
        pytest.param(
            compare(light_report(), light_report()), "exposed>1ms", True, "exposed is not in both", id="absent"
        ),
    ],
)
def test_a_gate(comparison: Comparison, condition: str, failed: bool, because: str) -> None:
    (verdict,) = judge(comparison, parse_conditions(condition))
    assert verdict.failed is failed
    assert because in verdict.because


def test_every_condition_is_judged() -> None:
    verdicts = judge(SLOWER, parse_conditions("step>5%,exposed>2ms, backward and comm>1s"))
    assert [verdict.failed for verdict in verdicts] == [True, False, True]


@pytest.mark.parametrize("text", ["", "step", "step>5", "step<5%", "step>-5%", "step>5%,", "speed>5%", "step>5%;x>1ms"])
def test_a_condition_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(DdpprofError, match="--fail-on"):
        parse_conditions(text)


def test_what_only_one_of_the_runs_knows_is_no_difference() -> None:
    bare = replace(report(), job=replace(report().job, modules=(), torch=None, command=()))
    assert compare(report(), bare).settings == ()
