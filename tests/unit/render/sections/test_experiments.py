"""Experiments in words, as JSON and as pictures."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import matplotlib
import pytest
from experiments import choice, job, overhead_report, scaling_report, steps, sweep_report, tuning, tuning_report
from reports import GOLDEN, HOSTILE

from ddpprof.experiments.overhead import OverheadReport
from ddpprof.experiments.results import ExperimentReport
from ddpprof.experiments.scaling import ScalingReport
from ddpprof.experiments.sweep import SweepPoint, SweepReport
from ddpprof.measures.statistics.joint_ratios import joint_ratios
from ddpprof.measures.statistics.paired_ratio import Ratio
from ddpprof.predict.candidates import Candidate
from ddpprof.render.json import render_json
from ddpprof.render.json_documents import schema
from ddpprof.render.markdown import render_markdown
from ddpprof.render.plot import can_plot, plot
from ddpprof.render.sections.experiments import experiment_sections
from ddpprof.render.sections.overhead import interval
from ddpprof.render.terminal import render_terminal

CHECKOUT = Path(__file__).parents[4]
REPORTS = {
    "overhead": overhead_report(),
    "scaling": scaling_report(),
    "sweep": sweep_report(),
    "tuning": tuning_report(),
}
each = pytest.mark.parametrize("name", REPORTS)


def drawn(report: ExperimentReport, width: int = 80) -> str:
    file = io.StringIO()
    render_terminal(experiment_sections(report), file, width)
    return file.getvalue()


@each
def test_terminal(expect_golden: Callable[[Path, str], None], name: str) -> None:
    expect_golden(GOLDEN / f"{name}.txt", drawn(REPORTS[name]))


def test_markdown(expect_golden: Callable[[Path, str], None]) -> None:
    expect_golden(GOLDEN / "scaling.md", render_markdown("scaling", experiment_sections(REPORTS["scaling"])))


@each
def test_reports_are_as_their_schemas_say(name: str) -> None:
    of = schema(type(REPORTS[name]))
    jsonschema.Draft202012Validator(of).validate(json.loads(render_json(REPORTS[name])))


def test_an_interval_that_holds_1_is_no_overhead() -> None:
    report = overhead_report()
    assert isinstance(report, OverheadReport)
    none = replace(report, ratio=replace(report.ratio, low=0.97, high=1.03))
    assert "as long as without it, as far as" in drawn(none)
    unsure = replace(report, ratio=replace(report.ratio, low=0.9, high=1.4))
    said = " ".join(drawn(unsure).split())
    assert "6 pairs are not enough to tell whether a step takes longer with DDP, on one rank: " in said
    unknown = replace(report, ratio=replace(report.ratio, low=None, high=None, num_pairs=1))
    assert "1 pair is not enough to tell" in drawn(unknown)


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_names_stay_text(name: str) -> None:
    report = replace(sweep_report(varied=f"--{name}"), missing=(name,), job=job(torch=name))
    shown = drawn(report, 120)
    assert "\x1b" not in shown
    assert "\r" not in shown
    for line in render_markdown("sweep", experiment_sections(report)).splitlines():
        assert "<script" not in line.replace(r"\<", "")


@pytest.mark.parametrize("name", ["scaling", "sweep"])
def test_pictures_are_drawn(tmp_path: Path, name: str) -> None:
    report = replace(REPORTS[name], missing=())
    assert can_plot(report)
    plot(report, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", [*HOSTILE.values(), "$x_", r"\frac{"], ids=[*HOSTILE, "dollar", "command"])
def test_no_name_is_mathematics(tmp_path: Path, name: str) -> None:
    plot(sweep_report(varied=f"--{name}"), tmp_path / "plot.png")


def test_settings_of_the_current_folder_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `matplotlibrc` in it, which may be a stranger's, can let LaTeX run."""
    monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)
    monkeypatch.setenv("PATH", str(tmp_path))  # without LaTeX
    plot(sweep_report(varied="--size"), tmp_path / "plot.png")
    assert matplotlib.rcParams["text.usetex"]


def test_there_is_no_picture_of_an_overhead() -> None:
    assert not can_plot(REPORTS["overhead"])
    assert not can_plot(sweep_report("bucket_cap_mb", is_work=False))


@pytest.mark.parametrize(
    ("rounds_ms", "says"),
    [
        pytest.param([(7, 8, 9), (5, 5.7, 6.5)], "Fastest: a=1: 0.714 (0.704 – 0.729) × the time of a=0.", id="clear"),
        pytest.param([(5, 6, 7), (7, 8.3, 9.9)], "Fastest: a=0. All others are slower beyond noise.", id="the-first"),
        pytest.param([(5, 7, 6), (6, 8, 5)], "None is faster than a=0 beyond noise: 3 rounds would", id="not-clear"),
        pytest.param([(5,), (7,)], "Lowest median: a=0, 5.00 ms. Fewer than three rounds", id="one-round"),
    ],
)
def test_the_fastest_is_named_if_chance_is_ruled_out(rounds_ms: list[tuple[float, ...]], says: str) -> None:
    (compared,) = joint_ratios(*rounds_ms[:1], rounds_ms[1:])
    points = tuple(
        SweepPoint(f"a={index}", "1 process", 1, None, rounds[0] * 1e6, tuple(ms * 1e6 for ms in rounds), ratio)
        for index, (rounds, ratio) in enumerate(zip(rounds_ms, (None, compared), strict=True))
    )
    report = replace(sweep_report("bucket_cap_mb", is_work=False), points=points)
    assert says in drawn(report, 200)


@pytest.mark.parametrize(
    ("rounds_ms", "says"),
    [
        pytest.param([(7, 8, 9), (10, 11.4, 13)],
                     "Fastest: b=64: 0.357 (0.352 – 0.365) × the time of b=16 for the same work.", id="faster-by-work"),
        pytest.param([(7, 8, 9), (70, 80, 90)], "Fastest: b=16. All others are slower for the same work", id="slower"),
        pytest.param([(8,), (16,)],
                     "Lowest median for the same work: b=64, 4.00 ms for what b=16 does in a step.", id="one-round"),
    ],
)  # fmt: skip
def test_variants_that_do_unequal_work_are_compared_for_the_same_work(
    rounds_ms: list[tuple[float, ...]], says: str
) -> None:
    (compared,) = joint_ratios(*rounds_ms[:1], rounds_ms[1:])
    points = tuple(
        SweepPoint(f"b={size}", "1 process", 1, size, rounds[0] * 1e6, tuple(ms * 1e6 for ms in rounds), ratio)
        for size, rounds, ratio in zip((16, 64), rounds_ms, (None, compared), strict=True)
    )
    report = replace(sweep_report("b"), points=points, curves=(), crossovers=())
    assert says in drawn(report, 200)


def test_a_crossover_that_is_not_bounded_is_none() -> None:
    report = sweep_report()
    assert isinstance(report, SweepReport)
    (found,) = report.crossovers
    unsure = replace(found, crossover=replace(found.crossover, low=None))
    assert "These sizes do not show whether" in drawn(replace(report, crossovers=(unsure,)), 200)


@pytest.mark.parametrize(
    ("rounds_ms", "says"),
    [
        pytest.param((80, 81, 79), "In the script: DistributedDataParallel(model, bucket_cap_mb=5)", id="faster"),
        pytest.param((99, 101, 100), "No setting is faster than the job as it is (100.00 ms per step)", id="as-fast"),
        pytest.param((80, 101, 100), "Closest: bucket_cap_mb=5, 1.000 (0.", id="closest"),
        pytest.param((80, 81), "2 rounds do not show how much is chance", id="two-rounds"),
    ],
)
def test_a_setting_is_advised_where_it_is_faster_beyond_noise(rounds_ms: tuple[float, ...], says: str) -> None:
    report = tuning(choice(Candidate({"bucket_cap_mb": 5})), *steps(0, 100, 101, 99), *steps(1, *rounds_ms))
    assert says in drawn(report, 200)


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        pytest.param({}, "settings are unverified", id="none-seen"),
        pytest.param({0: ((2.0,),)}, "too much to tell anything. Does the script set a seed?", id="no-seed"),
    ],
)
def test_what_losses_cannot_tell_is_said(losses: dict[int, tuple[tuple[float, ...], ...]], says: str) -> None:
    results = [*steps(0, 100, 101, 99), *steps(1, 80, 81, 79)]
    of_trials = {one.trial: {0: ((3.0 + one.trial.round,),)} if losses else {} for one in results}
    report = tuning(choice(Candidate({"bucket_cap_mb": 5})), *results, losses=of_trials, profile_losses=losses)
    assert says in drawn(report, 200)
    assert "In the script: DistributedDataParallel(model, bucket_cap_mb=5)" in drawn(report, 200)
    assert ("It is unknown whether it keeps the losses" in drawn(report, 200)) == (report.best is not None)


def test_an_efficiency_above_the_ideal_is_explained() -> None:
    assert "Efficiency above 100%" not in drawn(scaling_report())
    report = scaling_report()
    assert isinstance(report, ScalingReport)
    faster = tuple(replace(point, speedup=Ratio(2.9, 2.7, 3.1, 3)) for point in report.points)
    said = " ".join(drawn(replace(report, points=faster)).split())
    assert "145%" in said
    assert (
        "Efficiency above 100% means that each of several processes does more per second than the one process" in said
    )


def test_an_overhead_is_one_time_against_the_other() -> None:
    assert "12.00 against 10.00 ms" in " ".join(drawn(overhead_report()).split())


def test_an_interval_that_says_nothing_is_not_printed() -> None:
    assert interval(Ratio(0.746, 0.059, 6.886, 5)) == "0.75 (trials vary too much to tell)"
    assert interval(Ratio(0.746, 0.7, 0.8, 5)) == "0.746 (0.700 – 0.800)"
