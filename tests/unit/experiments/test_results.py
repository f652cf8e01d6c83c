"""Reports of experiments: overhead, scaling, sweep."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import tables
from experiments import MS, job, overhead_report, parts, planned, result, scaling_report, sweep_report
from tables import recorded

from ddpprof.experiments.overhead import OverheadReport
from ddpprof.experiments.plan import ExperimentKind, Trial, Variant
from ddpprof.experiments.results import build_experiment
from ddpprof.experiments.scaling import Scaling, ScalingReport
from ddpprof.experiments.sweep import SweepReport
from ddpprof.experiments.trials import trial_result
from ddpprof.layout import Line
from ddpprof.model import Rank, RecordedStep, StepMode
from ddpprof.render.sections.experiments import overhead_sections


def test_overhead_is_the_ratio_and_its_parts_explain_it() -> None:
    report = overhead_report()
    assert isinstance(report, OverheadReport)
    assert (report.ratio.ratio, report.ratio.num_pairs) == (pytest.approx(1.2), 6)
    assert report.overhead_ns == pytest.approx(2 * MS)
    assert report.explained_ns == pytest.approx(1.5 * MS)
    assert [(one.with_ns, one.without_ns, one.num_pairs) for one in report.rounds] == [(12 * MS, 10 * MS, 2)] * 3


def test_on_an_accelerator_host_work_explains_nothing_by_itself() -> None:
    report = overhead_report()
    assert isinstance(report, OverheadReport)
    assert replace(report, job=replace(report.job, device="gpu")).explained_ns is None


def test_jobs_apart_are_paired_by_round() -> None:
    experiment = planned(ExperimentKind.OVERHEAD, Variant(1), Variant(1, without_ddp=True), rounds=3)
    times = {(0, 0): 12, (1, 0): 10, (0, 1): 36, (1, 1): 30, (0, 2): 99}  # round 2 lacks its second job
    report = build_experiment(experiment, [result(v, r, (ms,)) for (v, r), ms in times.items()])
    assert isinstance(report, OverheadReport)
    assert (report.ratio.ratio, len(report.rounds)) == (pytest.approx(1.2), 2)
    assert report.missing == ("1 of 6 trials have not been run",)


def test_scaling_against_one_process_without_ddp() -> None:
    report = scaling_report()
    assert isinstance(report, ScalingReport)
    weak, strong = report.points
    assert (weak.scaling, strong.scaling) == (Scaling.WEAK, Scaling.STRONG)
    assert (weak.ideal_ns, weak.lost_ns) == (10 * MS, 4 * MS)
    assert (weak.speedup.ratio, weak.efficiency) == (pytest.approx(20 / 14), pytest.approx(10 / 14))
    assert (strong.ideal_ns, strong.lost_ns) == (5 * MS, 3 * MS)
    assert (strong.speedup.ratio, strong.efficiency) == (pytest.approx(10 / 8), pytest.approx(10 / 16))
    assert (weak.samples_per_s, strong.samples_per_s) == (pytest.approx(64 / 0.014), pytest.approx(32 / 0.008))


def test_at_best_a_step_takes_as_long_as_its_communication() -> None:
    report = scaling_report()
    assert isinstance(report, ScalingReport)
    weak, strong = report.points
    assert weak.most_speedup == pytest.approx(2 * 10 / 12), "12 ms of communication, 10 ms of computation"
    assert strong.most_speedup == pytest.approx(2), "2 ms of communication fit behind 5 ms of computation"
    assert replace(weak, transfer_ns=None).most_speedup is None


def test_the_parts_of_the_lost_time_add_up_to_it() -> None:
    report = scaling_report()
    assert isinstance(report, ScalingReport)
    for point in report.points:
        assert point.lost is not None
        assert sum(getattr(point.lost, part.name) for part in fields(point.lost)) == pytest.approx(point.lost_ns)


def test_each_part_of_the_lost_time_is_less_what_the_ideal_has_of_it() -> None:
    report = scaling_report()
    assert isinstance(report, ScalingReport)
    weak, strong = (
        [getattr(point.lost, part.name) / MS for part in fields(point.lost)] for point in report.points if point.lost
    )
    # wrapper, transfer, waiting, slowdown, data, compute
    assert weak == pytest.approx([1, 1.5, 0.5, 0.5, 0, 0.5])
    assert strong == pytest.approx([0.5, 1, 0.25, 0.5, 0, 0.75])


def test_slowdown_is_never_more_than_the_slower_computation() -> None:
    experiment = planned(ExperimentKind.SCALE, Variant(1, without_ddp=True), Variant(2), rounds=1)
    results = [
        result(0, 0, (10,), parts=parts(compute=10)),
        result(1, 0, (12,), parts=parts(transfer=2, compute=10), slowdown_ns=3.0 * MS),
    ]
    report = build_experiment(experiment, results)
    assert isinstance(report, ScalingReport)
    assert report.points[0].lost is not None
    assert report.points[0].lost.slowdown_ns == 0


def test_without_the_single_process_there_is_no_scaling() -> None:
    experiment = planned(ExperimentKind.SCALE, Variant(1, without_ddp=True), Variant(2), rounds=1)
    assert build_experiment(experiment, [result(1, 0, (12,))]) is None


def test_there_is_no_scaling_without_a_base() -> None:
    experiment = planned(ExperimentKind.SCALE, Variant(1, "a=1", without_ddp=True), Variant(2))
    assert build_experiment(experiment, [result(number, 0, (12,)) for number in range(2)]) is None


def test_a_sweep_is_compared_at_equal_totals() -> None:
    report = sweep_report()
    assert isinstance(report, SweepReport)
    assert [curve.configuration for curve in report.curves] == ["1 process", "2 processes"]
    assert [[point.size for point in curve.points] for curve in report.curves] == [[4, 8, 16, 32], [8, 16, 32, 64]]
    (found,) = report.crossovers
    assert (found.below, found.above) == ("1 process", "2 processes")
    assert (found.crossover.size, found.is_measured) == (pytest.approx(16), True)
    assert report.points[0].per_second == pytest.approx(500)


def test_what_counts_no_work_has_no_model() -> None:
    report = sweep_report("bucket_cap_mb", is_work=False)
    assert isinstance(report, SweepReport)
    assert (report.curves, report.crossovers) == ((), ())
    assert len(report.points) == 8


def test_a_crossover_outside_the_sizes_is_not_measured() -> None:
    variants = [
        Variant(1, f"b={size}", float(size), varied="b", configuration=name, is_work=True)
        for name in ("p", "q")
        for size in (1, 2, 3)
    ]
    times = [1 + 1 * size for size in (1, 2, 3)] + [9 + 0.5 * size for size in (1, 2, 3)]
    results = [result(number, 0, (ms,)) for number, ms in enumerate(times)]
    report = build_experiment(planned(ExperimentKind.SWEEP, *variants, rounds=1), results)
    assert isinstance(report, SweepReport)
    assert [(one.crossover.size, one.is_measured) for one in report.crossovers] == [(pytest.approx(16), False)]


def test_a_variant_that_fails_is_named_and_its_further_rounds_are_not_missed() -> None:
    experiment = planned(ExperimentKind.SWEEP, Variant(1, "a=1"), Variant(1, "a=2"))
    results = [result(0, 0, (5,)), result(0, 1, (5,)), result(1, 0, problem="exit code 1: boom")]
    report = build_experiment(experiment, results)
    assert report is not None
    assert report.missing == ("a=2, 1 process, round 1: exit code 1: boom",)


def test_of_nothing_there_is_no_report() -> None:
    for kind, variants in ((ExperimentKind.SWEEP, [Variant(1)]), (ExperimentKind.OVERHEAD, [Variant(1, ddp_blocks=1)])):
        assert build_experiment(planned(kind, *variants), []) is None


def test_a_trial_gives_its_blocks_and_the_parts_of_its_profiled_steps() -> None:
    timed = [RecordedStep(number=number, mode=StepMode.OFF, start_ns=0, end_ns=50 + number) for number in (3, 4)]
    bare = [RecordedStep(number=5, mode=StepMode.WITHOUT_DDP, start_ns=0, end_ns=40)]
    ranks = [Rank(0, tables.trace(), tables.record(steps=[*timed, recorded(number=10), *bare]))]
    made = trial_result(Trial(0, 0), tables.run(*ranks))
    assert (made.blocks_ns, made.without_ddp_ns, made.problem) == (((53, 54),), ((40,),), None)
    assert made.parts is not None
    assert made.parts.step_ns == pytest.approx(53.5)  # scaled to the timed steps


def test_a_trial_without_timed_steps_says_so() -> None:
    made = trial_result(Trial(0, 0), tables.run(Rank(0, None, tables.record(steps=[recorded(mode="light")]))))
    assert made.problem == "training ended before any step was timed"


def test_a_variant_whose_training_ended_early_is_named() -> None:
    experiment = planned(ExperimentKind.SWEEP, Variant(1, "a=1"), Variant(1, "a=2"), rounds=1)
    results = [result(0, 0, (5,) * 20, num_steps=20), result(1, 0, (5,) * 3, num_steps=3)]
    report = build_experiment(experiment, results)
    assert report is not None
    assert report.missing == ("a=2, 1 process: only 3 of 20 steps were timed before training ended",)
    blocks = planned(ExperimentKind.OVERHEAD, Variant(1, ddp_blocks=4), rounds=1)
    report = build_experiment(blocks, [result(0, 0, (5,), (5,), without_ddp_ns=((4,),))])
    assert report is not None
    assert report.missing == ("1 process: only 1 of 4 pairs of blocks were timed before training ended",)


def test_as_many_processes_as_the_script_started() -> None:
    experiment = planned(ExperimentKind.SWEEP, Variant(1, "a=1", any_number=True), rounds=1)
    report = build_experiment(experiment, [replace(result(0, 0, (5,)), job=job(3))])
    assert isinstance(report, SweepReport)
    assert (report.points[0].configuration, report.points[0].nproc) == ("3 processes", 3)


@pytest.mark.parametrize(
    ("transfer_ms", "least_ms"),
    [
        pytest.param(4, 10, id="can-be-hidden"),
        pytest.param(11, 11, id="longer-than-the-step"),
        pytest.param(None, None),
    ],
)
def test_overhead_at_best_and_in_samples(transfer_ms: float | None, least_ms: float | None) -> None:
    """A step takes 12 ms with DDP and 10 without."""
    transfer_ns = None if transfer_ms is None else transfer_ms * MS
    report = overhead_report(transfer_ns=transfer_ns, num_samples=60)
    assert isinstance(report, OverheadReport)
    assert (report.least_ns, report.num_samples) == (None if least_ms is None else least_ms * MS, 60)
    (said,) = [one.text for one in overhead_sections(report) if isinstance(one, Line) and "samples/s" in one.text]
    assert said == "5000 samples/s with DDP, 6000 without."
    two = replace(report, job=replace(report.job, world_size=2))
    texts = [one.text for one in overhead_sections(two) if isinstance(one, Line)]
    assert any(f"With DDP, a step takes at least {(least_ms or 0) / 10:.3f} × as long" in text for text in texts) is (
        least_ms is not None
    )


ONE, TWO = (((3, 2, 1, 0),),), (((3, 2), (1, 0)),)


@pytest.mark.parametrize(
    ("varied", "buckets", "is_said"),
    [
        pytest.param("bucket_cap_mb", (ONE, ONE), True, id="the-same"),
        pytest.param("bucket_cap_mb", (ONE, TWO), False, id="others"),
        pytest.param("static_graph", (ONE, ONE), False, id="of-another-setting"),
        pytest.param("bucket_cap_mb", ((), ()), False, id="unknown"),
    ],
)
def test_a_sweep_of_sizes_that_give_the_same_buckets_says_so(varied: str, buckets: Any, is_said: bool) -> None:
    variants = [Variant(1, label, varied=varied) for label in ("5", "25")]
    results = [result(number, round_, (10, 11), buckets=buckets[number]) for number in (0, 1) for round_ in range(2)]
    report = build_experiment(planned(ExperimentKind.SWEEP, *variants), results)
    assert isinstance(report, SweepReport)
    said = "DDP makes the same buckets with all values of bucket_cap_mb, so all differences are due to chance"
    assert report.missing == ((said,) if is_said else ())
