"""Two reports side by side."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from reports import bucket, compare_runs, light_report, rank, report, step

from ddpprof.comparison import MEAN_STEP, Comparison, RunSet, compare, compare_kernels, compare_reports
from ddpprof.comparison.gate import GateResult, judge, overall, parse_conditions
from ddpprof.errors import DdpprofError
from ddpprof.model import Kernel
from ddpprof.model.whole_run import RankWholeRun, Stretch, WholeRun
from ddpprof.report import LightStepReport, Report
from ddpprof.statistics.between_runs import MOST_RUNS, Difference
from ddpprof.topics.kernels import MOST_KERNELS, KernelSummary

US, MS = 1000, 1_000_000


def with_idle(*idle_us: int, ranks: int = 1, **changes: Any) -> Report:
    """Steps that differ only in how long they idle; compute is 48 ms, communication 9 ms, 2.5 ms of it hidden."""
    steps = [step(12 + index, 48_000, 9_000, 2_500, 100, idle) for index, idle in enumerate(idle_us)]
    return report(ranks=tuple(rank(number, *steps) for number in range(ranks)), **changes)


def metric(comparison: Comparison, name: str) -> Any:
    return next(change for change in comparison.metrics if change.metric == name)


def runs(*step_us: int) -> RunSet:
    """Of one job, each with steps of one length, of which it idles what is more than 57 ms."""
    return RunSet(tuple(with_idle(*[us - 55_000] * 5) for us in step_us))


SAME = runs(60_000, 60_100, 59_900, 60_050, 59_950, 60_020)
SLOWER_BY_5_MS = runs(65_000, 65_100, 64_900, 65_050, 64_950, 65_020)


def test_what_grew_is_found_and_what_did_not_is_not() -> None:
    found = compare(SAME, SLOWER_BY_5_MS, ["step", "compute"])
    change = metric(found, "step")
    assert (change.num_steps_a, change.num_steps_b, change.runs_a_ns[0]) == (30, 30, 60 * MS)
    assert change.difference == Difference(5 * MS, 4.8 * MS, 5.2 * MS, is_measured=True)
    assert change.is_beyond_noise
    assert change.fraction == pytest.approx(5 / 60, abs=0.001)
    assert metric(found, "compute").difference == Difference(0, 0, 0, is_measured=True)
    assert metric(found, "compute").is_beyond_noise is False
    assert found.missing == ("A: 1 collective(s) still ran", "B: 1 collective(s) still ran")
    assert found.runs_needed is None


def test_the_side_with_fewer_runs_counts() -> None:
    more = runs(65_000, 65_100, 64_900, 65_050, 64_950, 65_020, 65_010)
    assert (metric(compare(SAME, more), "step").num_runs, metric(compare(more, SAME), "step").num_runs) == (6, 6)


def test_of_a_few_runs_the_steps_of_the_first_do_not_tell_what_is_noise() -> None:
    change = metric(compare(runs(60_000, 60_000), runs(60_000, 70_000)), "step")
    assert (change.of_steps, change.is_beyond_noise) == (None, None)


def test_what_nobody_asked_about_needs_more_runs() -> None:
    """Twelve intervals that hold together are wider than one."""
    idle = metric(compare(SAME, SLOWER_BY_5_MS), "idle")
    assert (idle.difference.is_measured, idle.is_beyond_noise) == (False, None)


def test_one_run_of_each_does_not_tell_whether_a_difference_is_noise() -> None:
    found = compare_runs(with_idle(1000, 1010, 990, 1005), with_idle(6000, 6010, 5990, 6005, 6001))
    change = metric(found, "step")
    assert (change.of_steps.is_beyond_noise, change.is_beyond_noise) == (True, None)
    assert metric(found, "compute").is_beyond_noise is False
    assert found.runs_needed == 6


def test_one_run_of_each_tells_what_noise_cannot_do() -> None:
    found = compare_runs(with_idle(1000, 1000, 1000, 1000), with_idle(400_000, 400_000, 400_000, 400_000))
    assert metric(found, "step").is_beyond_noise
    assert metric(found, "exposed").is_beyond_noise is False
    assert found.runs_needed is None


def test_runs_of_another_job_among_them_are_named() -> None:
    other = with_idle(1000, job=replace(report().job, world_size=4))
    found = compare(RunSet((with_idle(1000), other)), RunSet((with_idle(1000),)))
    assert "A: the runs are not from the same job: they differ in ranks" in found.missing


def test_kernels_that_not_all_runs_have_slower_are_no_change() -> None:
    def of_runs(*median_us: int) -> RunSet:
        return RunSet(tuple(with_idle(1000, kernels=(kernel("gemm", us),)) for us in median_us))

    assert compare(of_runs(100, 101, 180), of_runs(150, 152, 170)).kernels == ()
    assert len(compare(of_runs(100, 101, 120), of_runs(150, 152, 170)).kernels) == 1
    assert len(compare(of_runs(150, 152, 170), of_runs(100, 101, 120)).kernels) == 1, "a faster one is a change, too"


def test_a_run_equals_itself() -> None:
    found = compare_runs(report(), report())
    assert {change.difference.shift_ns for change in found.metrics if change.difference} == {0}
    assert found.settings == ()
    assert all(change.a == change.b for change in found.buckets)
    assert found.kernels == ()


def test_a_step_is_the_mean_over_its_ranks() -> None:
    a = report(ranks=(rank(0, step(12, 10, 4, 0, 0, 0)), rank(1, step(12, 20, 8, 0, 0, 0))))
    assert metric(compare_runs(a, a), "comm").a_ns == 6 * US


def test_lightly_recorded_runs_are_compared_by_their_host_times() -> None:
    found = compare_runs(light_report(), report())
    assert found.metrics == ()
    assert found.missing[-1] == "nothing to compare: the runs have no steps of the same kind"
    names = [change.metric for change in compare_runs(light_report(), light_report()).metrics]
    assert names == ["step", "fastest step", "forward", "backward and comm", "optimizer", "data", "other"]


def test_runs_of_which_one_is_recorded_lightly_are_compared_by_their_light_steps() -> None:
    light = light_report()
    both = replace(light, ranks=(replace(light.ranks[0], steps=report().ranks[0].steps),))
    change = metric(compare(RunSet((both, light)), RunSet((both,))), "step")
    assert change.runs_a_ns == (light.ranks[0].light_steps[0].duration_ns,) * 2
    assert "backward and comm" in [one.metric for one in compare_runs(both, light).metrics]
    assert "compute" in [one.metric for one in compare_runs(both, both).metrics]


def test_runs_without_any_step_are_not_compared() -> None:
    empty = report(ranks=())
    found = compare_runs(empty, empty)
    assert (found.metrics, found.runs_needed) == ((), None)
    assert found.missing[-1] == "nothing to compare: the runs have no steps of the same kind"


def test_pauses_that_the_median_leaves_out_count_in_the_mean_of_the_whole_run() -> None:
    def of_length(whole_ms: int) -> Report:
        stretch = Stretch(10, 100, 0, whole_ms * MS, 58 * MS, 300 * MS, 0, 0, 0, 0, None, None, 5)
        one = RankWholeRun(0, "node", 0, 10, 110, whole_ms * MS, "finished", "other", 0, stretch)
        return with_idle(3000, whole_run=WholeRun(110, 10, whole_ms * MS, (one,)))

    paused, steady = (RunSet(tuple(map(of_length, lengths))) for lengths in ((8200, 8000, 8100), (5800, 5900, 6000)))
    found = metric(compare(paused, steady), MEAN_STEP)
    assert (found.a_ns, found.b_ns) == (81 * MS, 59 * MS)
    assert metric(compare(paused, steady), "step").difference.shift_ns == 0
    assert MEAN_STEP not in [one.metric for one in compare(paused, runs(60_000)).metrics], "one side does not know it"


def test_of_each_run_the_fastest_step_is_compared() -> None:
    change = metric(compare(RunSet((with_idle(1000, 5000), with_idle(3000, 2000))), RunSet((with_idle(1000),))), "step")
    fastest = metric(
        compare(RunSet((with_idle(1000, 5000), with_idle(3000, 2000))), RunSet((with_idle(1000),))), "fastest step"
    )
    assert change.runs_a_ns == (58 * MS, 57.5 * MS)
    assert fastest.runs_a_ns == (56 * MS, 57 * MS)


def test_what_is_different_about_the_runs_is_named() -> None:
    a, b = report(), report()
    module = replace(b.job.modules[0], settings={"bucket_cap_mb": "5.0", "static_graph": "False"}, comm_hook="fp16")
    b = replace(b, job=replace(b.job, world_size=4, torch="2.14.0", modules=(module,)))
    a = replace(a, job=replace(a.job, modules=(replace(a.job.modules[0], settings={"bucket_cap_mb": "25.0"}),)))
    assert {(change.name, change.a, change.b) for change in compare_runs(a, b).settings} == {
        ("ranks", "2", "4"),
        ("torch", "2.13.0+cpu", "2.14.0"),
        ("comm hook", "-", "fp16"),
        ("bucket_cap_mb", "25.0", "5.0"),
        ("static_graph", "-", "False"),
    }


def test_buckets_are_matched_by_what_is_in_them() -> None:
    a = report(buckets=(bucket(0), bucket(1, first_parameter="a", last_parameter="b")))
    b = report(buckets=(bucket(0, first_parameter="a", last_parameter="b"), bucket(1, num_bytes=7)))
    pairs = [(x.a and x.a.index, x.b and x.b.index) for x in compare_runs(a, b).buckets]
    assert pairs == [(0, None), (1, 0), (None, 1)]


def test_buckets_of_which_only_a_trace_knows_are_matched_by_their_place() -> None:
    nameless = {"num_parameters": None, "first_parameter": None, "last_parameter": None}
    both = report(buckets=(bucket(0, **nameless), bucket(1, **nameless)))
    assert [(x.a and x.a.index, x.b and x.b.index) for x in compare_runs(both, both).buckets] == [(0, 0), (1, 1)]


def test_ddps_own_work_is_compared_as_far_as_both_runs_know_it() -> None:
    recorded = step(12, 48_000, 9_000, 2_500, 100, 1000)
    bare = replace(recorded, wrapper=replace(recorded.wrapper, pre_forward_ns=None))
    found = compare_runs(report(ranks=(rank(0, recorded),)), report(ranks=(rank(0, bare),)))
    wrapper = metric(found, "wrapper")
    assert wrapper.a_ns == wrapper.b_ns == recorded.wrapper.total_ns - (recorded.wrapper.pre_forward_ns or 0)


def test_steps_without_work_count_in_no_median() -> None:
    empty = replace(step(14, 0, 0, 0, None, 0), parts=None)
    whole = report(ranks=(rank(0, step(12, 40, 0, 0, 0, 0), step(13, 40, 0, 0, 0, 0), empty),))
    change = metric(compare_runs(whole, whole), "compute")
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
        "kernels (name, launch shape and input shapes) found in only one of the runs: "
        "1 only in A (0.02 ms per step; longest: gone, 0.02 ms), 1 only in B (0.03 ms per step; longest: new, 0.03 ms)"
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
        pytest.param(kernel("gemm", 100, spread=0.0), kernel("gemm", 100, spread=0.0), id="always-the-same"),
    ],
)
def test_noise_makes_no_kernel_slower(a: KernelSummary, b: KernelSummary) -> None:
    assert compare_kernels([a], [b]) == ((), None)


SLOWER = compare(SAME, SLOWER_BY_5_MS, ["step"])
NOISY = compare(
    runs(60_000, 66_000, 61_000, 64_000, 62_000, 63_000), runs(61_000, 67_000, 62_000, 65_000, 63_000, 64_000)
)
SINGLE = compare_runs(with_idle(1000, 1010, 990, 1005), with_idle(6000, 6010, 5990, 6005))


@pytest.mark.parametrize(
    ("comparison", "condition", "outcome", "because"),
    [
        pytest.param(
            SLOWER,
            "step>5%",
            GateResult.FAILED,
            "step changed by +5.00 ms, +8.3% (between +4.85 and +5.15 ms)",
            id="percent",
        ),
        pytest.param(SLOWER, "step > 10 %", GateResult.PASSED, "step changed by +5.00 ms, +8.3%", id="below"),
        pytest.param(SLOWER, "step>5.1ms", GateResult.FAILED, "step changed by +5.00 ms", id="perhaps-beyond"),
        pytest.param(SLOWER, "step>5300us", GateResult.PASSED, "step changed by +5.00 ms", id="surely-below"),
        pytest.param(SLOWER, "exposed>1s", GateResult.PASSED, "exposed changed by +0.00 ms", id="not-plausible"),
        pytest.param(NOISY, "step>1%", GateResult.UNKNOWN, "step changed by +1.00 ms, +1.6% (between", id="noise"),
        pytest.param(
            SINGLE,
            "step>5%",
            GateResult.UNKNOWN,
            "one run on each side is too few to tell whether this is noise",
            id="single",
        ),
        pytest.param(
            compare_runs(light_report(), light_report()),
            "exposed>1ms",
            GateResult.FAILED,
            "exposed is missing from A or B",
            id="absent",
        ),
    ],
)
def test_a_gate(comparison: Comparison, condition: str, outcome: GateResult, because: str) -> None:
    (verdict,) = judge(comparison, parse_conditions(condition))
    assert verdict.outcome is outcome
    assert because in verdict.because
    assert (verdict.runs_needed is not None) is (outcome is GateResult.UNKNOWN)


def test_a_limit_below_the_noise_says_that_runs_would_not_help() -> None:
    (verdict,) = judge(NOISY, parse_conditions("step>0.1%"))
    assert (verdict.outcome, verdict.runs_needed) == (GateResult.UNKNOWN, MOST_RUNS + 1)
    assert verdict.because.endswith("even 600 runs on each side would not be enough, because the runs vary too much")


def test_every_condition_is_judged_and_the_worst_counts() -> None:
    verdicts = judge(SLOWER, parse_conditions("step>50%,step>5%,exposed>2ms, backward and comm>1s"))
    assert [verdict.outcome.value for verdict in verdicts] == ["passed", "failed", "unknown", "failed"]
    assert overall(verdicts) is GateResult.FAILED
    assert overall(verdicts[2:3]) is GateResult.UNKNOWN
    assert overall(verdicts[:1]) is GateResult.PASSED


@pytest.mark.parametrize("text", ["", "step", "step>5", "step<5%", "step>-5%", "step>5%,", "speed>5%", "step>5%;x>1ms"])
def test_a_condition_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(DdpprofError, match="--fail-on"):
        parse_conditions(text)


def test_what_only_one_of_the_runs_knows_is_no_difference() -> None:
    bare = replace(report(), job=replace(report().job, modules=(), torch=None, command=()))
    assert compare_runs(report(), bare).settings == ()
    on_four = replace(bare, job=replace(bare.job, world_size=4))
    assert [(one.name, one.a, one.b) for one in compare_runs(report(), on_four).settings] == [("ranks", "2", "4")]


@pytest.mark.parametrize(("number", "name"), [(3, "a, b, c (3 runs)"), (4, "a, b, c … (4 runs)")])
def test_a_side_is_named_by_its_first_three_runs(number: int, name: str) -> None:
    reports = tuple(replace(report(), job=replace(report().job, name=one)) for one in "abcd"[:number])
    assert RunSet(reports).name == name


def test_runs_with_different_settings_are_not_of_one_job_in_any_order() -> None:
    plain = report()
    module = replace(plain.job.modules[0], comm_hook="fp16_compress_hook")
    hooked = replace(plain, job=replace(plain.job, modules=(module,)))
    said = "the runs are not from the same job: they differ in comm hook"
    for runs_of_one_side in ((plain, hooked), (hooked, plain)):
        assert said in RunSet(runs_of_one_side).missing


@pytest.mark.parametrize("sides", [([], report()), (report(), [])])
def test_a_job_without_a_report_is_refused(sides: tuple[Any, Any]) -> None:
    with pytest.raises(DdpprofError, match="Give at least one report of each job"):
        compare_reports(*sides)


def test_the_step_is_the_one_that_each_report_tells() -> None:
    """The mean of the usual steps: 65.2, as in the verdict, whatever an unusual step took."""
    made = report()
    longer = replace(made.ranks[0].steps[0], step=99, duration_ns=7 * 66_000_000)
    third = replace(made.ranks[0].steps[0], step=14, duration_ns=90_000_000)
    ranks = tuple(replace(rank, steps=(*rank.steps, third, longer)) for rank in made.ranks)
    run = replace(made, ranks=ranks, usual_steps=(12, 13, 14))
    [step] = [one for one in compare_reports(run, run).metrics if one.metric == "step"]
    assert step.a_ns == pytest.approx(run.step_ns)
    assert run.step_ns == pytest.approx((2 * 65.2e6 + 90e6) / 3)


def over_the_run(*stretches_ms: int) -> Report:
    """A run on CPU whose two timed steps took 80 ms, and whose stretches of ten steps had these medians."""
    stretches = tuple(
        Stretch(10 * index, 10, 0, 10 * ms * MS, ms * MS, ms * MS, 0, 0, 0, 0, None, None, 10 if ms == 300 else 0)
        for index, ms in enumerate(stretches_ms)
    )
    usual = [ms for ms in stretches_ms if ms != 300]
    whole = replace(stretches[0], num_steps=10 * len(stretches), num_flagged=10, median_ns=round(median(usual)) * MS)
    one = RankWholeRun(0, "node", 0, 10, 110, 5, "finished", "other", 0, whole, stretches)
    timed = tuple(LightStepReport(number, "off", 80 * MS, None) for number in (5, 6))
    made = with_idle(3000, whole_run=WholeRun(110, 10, 5, (one,)))
    return replace(made, ranks=tuple(replace(rank, light_steps=timed) for rank in made.ranks))


def test_the_step_of_training_on_cpu_is_that_of_the_whole_run() -> None:
    """A stretch in which ddpprof recorded does not count."""
    a, b = over_the_run(300, 60, 58, 62, 59, 61), over_the_run(300, 50, 49, 51, 48, 52)
    change = metric(compare_runs(a, b), "step")
    assert (change.a_ns, change.b_ns) == (a.step_ns, b.step_ns) == (60 * MS, 50 * MS)
    assert (change.num_steps_a, change.num_steps_b) == (50, 50)
    assert (change.of_steps.low, change.of_steps.high) == (-13 * MS, -7 * MS)
    several = metric(compare(RunSet((a, b, a)), RunSet((b,))), "step")
    assert several.runs_a_ns == (60 * MS, 50 * MS, 60 * MS)
    assert several.difference.shift_ns == -10 * MS
    unwatched = metric(compare_runs(a, replace(b, whole_run=None)), "step")
    assert (unwatched.a_ns, unwatched.b_ns) == (80 * MS, 80 * MS), "as both runs know it"
