"""What becomes of promises that were tried: steps made by hand, in ms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from experiments import MS, planned, result

from ddpprof import rundir
from ddpprof.engine.finding import (
    Change,
    ChangeKind,
    Finding,
    Predicted,
    compilation_change,
    ddp_change,
    environment_change,
    loader_change,
    sparse_embeddings_change,
    sync_batch_norm_change,
)
from ddpprof.errors import DdpprofError
from ddpprof.experiments.plan import ExperimentKind, Trial, Variant
from ddpprof.experiments.trials import TrialResult, problems
from ddpprof.experiments.trying import (
    Promise,
    TriedPromise,
    Trying,
    TryPlan,
    keep_in_run,
    promise_of,
    promise_of_script,
    variant_with,
)
from ddpprof.layout import Line
from ddpprof.model.json_files import Outcome, TriedChange
from ddpprof.render.sections.experiments import trying_sections

NOW = (100, 101, 99, 100)
PREDICTED = Promise("bucket_cap_mb=1", "DistributedDataParallel(model, bucket_cap_mb=1)", 1, "rule", "title", 10 * MS,
                    Predicted(10 * MS, 4 * MS, 12 * MS))  # fmt: skip
BOUND = Promise("static_graph=True", "static_graph=True", 2, "rule", "title", 10 * MS)

TIDY = Promise("find_unused_parameters=False", "find_unused_parameters=False", 3, "rule", "title")


def trying(promise: Promise, steps: Any, losses: Any = (), **of_plan: Any) -> Trying:
    given = {"rounds": len(NOW), **of_plan}
    experiment = planned(ExperimentKind.TRY, Variant(2), Variant(2, promise.label), **given)
    results = [result(0, number, (ms,)) for number, ms in enumerate(NOW)]
    results += [result(1, number, (ms,)) for number, ms in enumerate(steps)]
    return Trying(experiment, TryPlan("runs/a", (promise,)), results, dict(losses))


def tried(promise: Promise, *rounds: float, **given: Any) -> TriedPromise:
    (one,) = trying(promise, rounds, **given).report().tried
    return one


@pytest.mark.parametrize(
    ("promise", "rounds", "outcome"),
    [
        pytest.param(PREDICTED, (90, 91, 89, 90), Outcome.CONFIRMED, id="as-predicted"),
        pytest.param(PREDICTED, (70, 71, 69, 70), Outcome.CONFIRMED, id="more-than-predicted"),
        pytest.param(PREDICTED, (98, 99, 97, 98), Outcome.SMALLER, id="less-than-the-least-that-was-promised"),
        pytest.param(PREDICTED, (100, 101, 99, 100), Outcome.NO_DIFFERENCE, id="nothing"),
        pytest.param(PREDICTED, (120, 121, 119, 120), Outcome.SLOWER, id="slower"),
        pytest.param(PREDICTED, (70, 130, 80, 110), Outcome.CANNOT_TELL, id="noise"),
        pytest.param(PREDICTED, (90, 90), Outcome.CANNOT_TELL, id="two-rounds-do-not-show-how-much-they-differ"),
        pytest.param(BOUND, (98, 99, 97, 98), Outcome.CONFIRMED, id="any-part-of-a-bound"),
        pytest.param(TIDY, (98, 99, 97, 98), Outcome.CONFIRMED, id="a-gain-that-nobody-promised"),
        pytest.param(TIDY, (100.1, 101, 99, 99.9), Outcome.NO_DIFFERENCE, id="nothing-promised-and-nothing-gained"),
    ],
)
def test_outcomes(promise: Promise, rounds: tuple[float, ...], outcome: Outcome) -> None:
    one = tried(promise, *rounds)
    assert one.outcome is outcome
    assert (one.more_rounds is not None) == (outcome is Outcome.CANNOT_TELL)


@pytest.mark.parametrize(
    ("rounds", "is_decided"), [((90, 91, 89, 90), True), ((120, 121, 119, 120), True), ((70, 130, 80, 110), False)]
)
def test_as_many_rounds_again_are_run_only_if_the_first_cannot_tell(rounds: Any, is_decided: bool) -> None:
    one = trying(PREDICTED, rounds, rounds=8, enough_rounds=4)
    assert one.is_decided is is_decided
    report = one.report()
    assert (report.rounds, report.missing) == (4, ()), "the later rounds are not missed"


def test_a_second_look_at_the_rounds_makes_the_interval_wider() -> None:
    def interval(**of_plan: Any) -> int:
        (one,) = trying(PREDICTED, (90, 92, 88, 90), **of_plan).report().tried
        assert one.measured is not None
        assert one.measured.low_ns is not None
        assert one.measured.high_ns is not None
        return one.measured.high_ns - one.measured.low_ns

    once, twice = interval(num_looks=1), interval(rounds=8, enough_rounds=4)
    assert twice / once == pytest.approx(4.177 / 3.182, rel=0.01), "Student's t of 3 degrees, for 1.25 % and 2.5 %"


def test_the_gain_is_in_ns_of_the_step_as_it_is() -> None:
    one = tried(PREDICTED, 90, 91, 89, 90)
    assert one.measured is not None
    assert one.measured.low_ns is not None
    assert one.measured.high_ns is not None
    assert one.measured.gain_ns == pytest.approx(10 * MS, rel=0.01)
    assert one.measured.low_ns < one.measured.gain_ns < one.measured.high_ns
    assert one.measured.num_rounds == 4


def losses(ours: float) -> dict[Trial, Any]:
    return {Trial(0, 0): {0: ((2.0,),)}, Trial(0, 1): {0: ((2.0,),)}, Trial(1, 0): {0: ((ours,),)}}


def test_a_change_of_the_losses_is_no_advice() -> None:
    assert tried(PREDICTED, 90, 91, 89, 90, losses=losses(2.0)).outcome is Outcome.CONFIRMED
    assert tried(PREDICTED, 90, 91, 89, 90, losses=losses(1.5)).outcome is Outcome.OTHER_RESULTS


def test_trials_that_are_not_needed_any_more_are_not_missed() -> None:
    """The only change has failed, so the unchanged job is not run again."""
    experiment = planned(ExperimentKind.TRY, Variant(2), Variant(2, "changed"), rounds=5)
    results = [result(0, 0, (100.0,) * 20), TrialResult(Trial(1, 0), problem="exit code 1")]
    assert problems(experiment, results) == ("changed, 2 processes, round 1: exit code 1",)
    sweep = replace(experiment, kind=ExperimentKind.SWEEP)
    assert problems(sweep, results)[1:] == ("4 of 10 trials have not been run",)


def test_another_number_of_threads_may_round_otherwise() -> None:
    """As in an agent's trial: a difference of 1.3e-7 between the losses."""
    finding = Finding("threads-exceed-cores", "t", "e", "a", None, change=environment_change(OMP_NUM_THREADS="1"))
    assert finding.change is not None
    promise = promise_of(1, finding, finding.change, 2)
    assert tried(promise, 90, 91, 89, 90, losses=losses(2.0 * (1 + 1.3e-7))).outcome is Outcome.CONFIRMED
    assert tried(promise, 90, 91, 89, 90, losses=losses(1.5)).outcome is Outcome.OTHER_RESULTS


def test_workers_may_draw_other_augmentations() -> None:
    loading = Finding("idle-for-data", "t", "e", "a", 9 * MS)
    promise = promise_of(1, loading, loader_change(None, 4, True), 2)
    assert tried(promise, 90, 91, 89, 90, losses=losses(1.5)).outcome is Outcome.CONFIRMED


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        pytest.param(
            ddp_change(None, bucket_cap_mb_list=(1.0, 5.0)), {"ddp": {"bucket_cap_mb_list": [1.0, 5.0]}}, id="ddp"
        ),
        pytest.param(
            Change(ChangeKind.COMM_HOOK, {"fp16_compress_hook": True}, "", is_lossy=True),
            {"comm_hook": "fp16_compress_hook"},
            id="hook",
        ),
        pytest.param(environment_change(OMP_NUM_THREADS="2"), {"variables": {"OMP_NUM_THREADS": "2"}}, id="variable"),
        pytest.param(
            loader_change(None, 4, True), {"loader": {"num_workers": 4, "persistent_workers": True}}, id="loader"
        ),
        pytest.param(
            compilation_change(optimize_ddp="ddp_optimizer"), {"optimize_ddp": "ddp_optimizer"}, id="compilation"
        ),
        pytest.param(
            Change(ChangeKind.COMPILATION, {"optimize_ddp": "ddp_optimizer", "bucket_cap_mb_list": (1, 3)}, "both"),
            {"optimize_ddp": "ddp_optimizer", "ddp": {"bucket_cap_mb_list": [1, 3]}},
            id="compilation-and-buckets",
        ),
        pytest.param(compilation_change(compile_order="model_first"), {"compile_order": "model_first"}, id="order"),
        pytest.param(sync_batch_norm_change(), {"switches": {"sync_batch_norm": False}}, id="batch-norm"),
        pytest.param(sparse_embeddings_change(), {"switches": {"sparse_embeddings": True}}, id="embeddings"),
        pytest.param(Change(ChangeKind.NO_SYNC, {"num_passes": 4}, "once"), {"passes_per_reduction": 4}, id="no-sync"),
    ],
)  # fmt: skip
def test_changes_become_variants(change: Change, changed: dict[str, Any]) -> None:
    variant = variant_with(Variant(2), change)
    assert {name: getattr(variant, name) for name in changed} == changed
    assert variant.label


@pytest.mark.parametrize(("world_size", "keeps"), [(2, True), (4, False), (None, True)])
def test_other_buckets_add_in_another_order_only_on_more_than_two_ranks(world_size: int | None, keeps: bool) -> None:
    finding = Finding("better-buckets", "t", "e", "a", MS)
    assert promise_of(1, finding, ddp_change(None, bucket_cap_mb=1), world_size).keeps_order is keeps


def test_what_is_printed() -> None:
    lines = [one.text for one in trying_sections(trying(PREDICTED, (90, 91, 89, 90)).report()) if isinstance(one, Line)]
    assert lines[1].startswith("Finding 1, bucket_cap_mb=1: promised 10.0 ms per step (4.00–12.0), measured 10.0 ms")
    assert lines[1].endswith(": confirmed")
    assert lines[2] == "Code: DistributedDataParallel(model, bucket_cap_mb=1)"


def test_what_could_not_be_told_and_what_failed_is_kept_in_the_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    unclear, failing = trying(PREDICTED, (70, 130, 80, 110)), trying(BOUND, ())
    failing = replace(failing, results=[*failing.results, TrialResult(Trial(1, 0), problem="exit code 1")])
    for one in (unclear, failing):
        keep_in_run(replace(one.report(), run=str(tmp_path)))
    kept = rundir.read_json(tmp_path / rundir.TRIED_FILE, list[TriedChange])
    assert kept is not None
    assert [(one.code, one.measured.outcome) for one in kept] == [
        (PREDICTED.code, Outcome.CANNOT_TELL),
        (BOUND.code, Outcome.FAILED),
    ]
    assert kept[1].measured.gain_ns is None


def test_long_steps_count_if_the_finding_is_about_them() -> None:
    """One of four steps takes 300 ms longer, and the change removes that; the medians are equal."""
    rounds = [result(0, number, (100, 100, 400, 100 + number)) for number in range(4)]
    rounds += [result(1, number, (100, 100, 100, 101 + number)) for number in range(4)]
    promise = replace(BOUND, gain_ns=75 * MS)

    def measured(**of_plan: Any) -> TriedPromise:
        experiment = planned(ExperimentKind.TRY, Variant(2), Variant(2, "b"), rounds=4, **of_plan)
        (one,) = Trying(experiment, TryPlan("runs/a", (promise,)), rounds, {}).report().tried
        return one

    with_means = measured(uses_means=True)
    assert with_means.outcome is Outcome.CONFIRMED
    assert with_means.measured is not None
    assert with_means.measured.gain_ns == pytest.approx(74.75 * MS, rel=0.01)
    assert measured().outcome is Outcome.NO_DIFFERENCE


def test_another_script_may_follow_a_finding() -> None:
    finding = Finding("straggler", "All ranks wait for rank 1", "", "", 60 * MS)
    alone, with_finding = promise_of_script("b.py", "title", None, None), promise_of_script("b.py", "", 2, finding)
    assert (alone.code, alone.number, alone.gain_ns) == ("b.py", None, None)
    assert (with_finding.label, with_finding.code, with_finding.number) == ("b.py", "", 2)
    assert (with_finding.rule, with_finding.gain_ns) == ("straggler", 60 * MS)
    assert not alone.keeps_order, "an edited script may add in another order"
    lines = [
        one.text for one in trying_sections(trying(with_finding, (40, 41, 39, 40)).report()) if isinstance(one, Line)
    ]
    assert lines[1].startswith("Finding 2, b.py: promised up to 60.0 ms per step, measured 60.0 ms per step")
    assert not any(line.startswith("Code:") for line in lines)


def test_without_times_of_the_job_as_it_is_nothing_is_said() -> None:
    experiment = planned(ExperimentKind.TRY, Variant(2), Variant(2, "x"), rounds=1)
    nothing = Trying(experiment, TryPlan("runs/a", (PREDICTED,)), [result(0, 0, problem="exit code 1: boom")], {})
    with pytest.raises(DdpprofError, match="boom"):
        nothing.report()
