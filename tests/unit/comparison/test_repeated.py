"""Runs of one job beside each other."""

from dataclasses import replace

import pytest
from reports import light_report, report

from ddpprof.comparison import RunSet
from ddpprof.comparison.repeated import RepeatedFinding, report_on_runs
from ddpprof.engine.finding import Finding
from ddpprof.render.json import render_json

COPIES = Finding("gradient-copies", "Gradients are copied", "", "", 10)
RANK_0, RANK_1 = (Finding("straggler", f"All ranks wait for rank {rank}", "", "", 10) for rank in (0, 1))


def test_findings_are_counted_over_runs() -> None:
    found = [(COPIES, RANK_0), (RANK_1, replace(COPIES, is_noise=True)), (COPIES,)]
    runs = RunSet(tuple(report(findings=findings) for findings in found))
    assert report_on_runs(runs, ["run-1", "run-2", "run-3"]).findings == (
        RepeatedFinding("gradient-copies", "Gradients are copied", 3, 2),
        RepeatedFinding("straggler", "All ranks wait for rank 0", 1, 1),
        RepeatedFinding("straggler", "All ranks wait for rank 1", 1, 1),
    )


@pytest.mark.parametrize("rule", ["straggler", "slow-rank"])
def test_another_rank_that_is_slow_is_another_finding(rule: str) -> None:
    of_ranks = [(Finding(rule, f"All ranks wait for rank {rank}", "", "", None),) for rank in (0, 1, 1)]
    runs = RunSet(tuple(report(findings=findings) for findings in of_ranks))
    found = report_on_runs(runs, ["run-1", "run-2", "run-3"]).findings
    assert [(one.title, one.num_runs) for one in found] == [
        ("All ranks wait for rank 1", 2),
        ("All ranks wait for rank 0", 1),
    ]


def test_a_loss_that_is_nan_is_one_finding_wherever_it_begins() -> None:
    of_ranks = [
        (Finding("nonfinite-loss", f"The loss was NaN, first on rank {rank}", "", "", None),) for rank in (0, 1)
    ]
    runs = RunSet(tuple(report(findings=findings) for findings in of_ranks))
    (found,) = report_on_runs(runs, ["run-1", "run-2"]).findings
    assert (found.title, found.num_runs) == ("The loss was NaN, first on rank 0", 2)


def test_of_each_run_its_profiled_steps_are_counted_or_else_the_light_ones() -> None:
    light = light_report()
    both = replace(light, ranks=(replace(light.ranks[0], steps=report().ranks[0].steps[:1]),))
    found = report_on_runs(RunSet((report(), light, both)), ["run-1", "run-2", "run-3"])
    assert [run.num_steps for run in found.runs] == [2, 3, 1]


def test_the_spread_is_that_of_the_runs_steps() -> None:
    found = report_on_runs(RunSet((report(), light_report())), ["run-1", "run-2"])
    steps = [run.step_ns or 0 for run in found.runs]
    assert found.spread == max(steps) / min(steps) - 1
    assert report_on_runs(RunSet((report(),)), ["run-1"]).spread is None


def test_a_folder_whose_name_is_not_utf_8() -> None:
    found = report_on_runs(RunSet((report(),), "runs/a\udcff"), ["run-1"])
    assert found.name == "a? (1 run)"
    assert '"a? (1 run)"' in render_json(found)
