"""The whole training of each rank, as a run is loaded."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from fleets import SAMPLE
from msgspec.structs import replace
from pulse_files import BEGIN_NS, MadeStep, write_pulse

from ddpprof.load.run import load_run
from ddpprof.model.hang import Fault, Verdict
from ddpprof.model.pulse import Ended
from ddpprof.model.pulse_layout import FORMAT, MAGIC
from ddpprof.model.whole_run import Pause, PauseKind, Slowdowns, WholeRun
from ddpprof.monitor.pulse_files import write_slowdowns, write_verdict
from ddpprof.pipeline.analysis import AnalysisOptions, analysed
from ddpprof.ranks_and_steps import Numbers
from ddpprof.report import Report


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The sample run, whose ranks also have a pulse."""
    folder = tmp_path / "run"
    shutil.copytree(SAMPLE, folder)
    for rank in (0, 1):
        write_pulse(folder, rank, [MadeStep()] * 30, ended=Ended.FINISHED, ended_ns=BEGIN_NS)
    return folder


def whole_run_in(run: Path) -> WholeRun:
    whole_run = load_run(run).whole_run
    assert whole_run is not None
    return whole_run


def report_on(run: Path, options: AnalysisOptions = AnalysisOptions()) -> Report:  # noqa: B008 (frozen)
    with analysed(run, options) as analysis:
        return analysis.report


def test_the_lowest_rank_has_its_course_over_time(run: Path) -> None:
    first, second = whole_run_in(run).ranks
    assert (first.rank, len(first.stretches), len(first.curve)) == (0, 10, 30)
    assert (second.rank, second.stretches, second.curve) == (1, (), ())
    assert second.whole is not None
    assert second.whole.num_steps == 30


def test_the_next_one_has_it_if_the_lowest_noted_no_step(run: Path) -> None:
    write_pulse(run, 0, [])
    first, second = whole_run_in(run).ranks
    assert (first.whole, len(second.curve)) == (None, 30)


def test_slow_downs_are_those_that_the_launcher_noted_or_else_those_that_the_pulses_show(run: Path) -> None:
    for rank in (0, 1):
        write_pulse(run, rank, [*[MadeStep()] * 100, *[MadeStep(ms=150)] * 100, *[MadeStep()] * 100])
    (shown,) = whole_run_in(run).slowdowns
    assert shown.before_ns == 100_000_000
    noted = Slowdowns((replace(shown, first_step=7),), (Pause(PauseKind.SAVE, 3, 10**9),))
    write_slowdowns(run, noted)
    whole = whole_run_in(run)
    assert (whole.slowdowns, whole.pauses) == (noted.slowdowns, noted.pauses)
    write_slowdowns(run, Slowdowns())
    assert whole_run_in(run).slowdowns == ()


def test_a_hang_and_captures_belong_to_it(run: Path) -> None:
    assert (whole_run_in(run).hang, whole_run_in(run).captures) == (None, ())
    verdict = Verdict(Fault.STOPPED, rank=1, step=7)
    write_verdict(run, verdict)
    (run / "capture-2").mkdir()
    (run / "capture-2" / "run.json").write_bytes((run / "run.json").read_bytes())
    assert (whole_run_in(run).hang, whole_run_in(run).captures) == (verdict, (2,))


def test_runs_without_pulses_have_none() -> None:
    assert load_run(SAMPLE).whole_run is None
    assert report_on(SAMPLE, AnalysisOptions(use_cache=False)).whole_run is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(b"", "it is truncated", id="empty"),
        pytest.param(b"x" * 10**6, "it is not a pulse file", id="another-file"),
        pytest.param(
            None, f"it has format {FORMAT + 1}, but this version of ddpprof reads format {FORMAT}", id="a-newer-one"
        ),
    ],
)
def test_a_pulse_that_cannot_be_read_is_a_line_in_the_report(run: Path, content: bytes | None, why: str) -> None:
    path = run / "rank-1.pulse"
    newer = path.read_bytes().replace(MAGIC + bytes([FORMAT]), MAGIC + bytes([FORMAT + 1]))
    path.write_bytes(newer if content is None else content)
    report = report_on(run)
    (line,) = (line for line in report.missing if "pulse" in line)
    assert line.startswith("rank 1: ")
    assert line.endswith(f"rank-1.pulse cannot be read: {why}.")
    assert report.whole_run is not None
    assert [one.rank for one in report.whole_run.ranks] == [0]


def test_random_bytes_never_end_a_report(run: Path) -> None:
    """Whatever numbers a damaged pulse holds behind its head."""
    path = run / "rank-0.pulse"
    head = path.read_bytes()[:4096]
    for _ in range(10):
        path.write_bytes(head + os.urandom(10**6))
        assert report_on(run).whole_run is not None


def test_the_whole_run_is_never_from_the_cache(run: Path) -> None:
    """A training continues between two reports; its trace, read once, stays the same."""
    before = report_on(run).whole_run
    write_pulse(run, 0, [MadeStep()] * 90, ended=Ended.FINISHED, ended_ns=BEGIN_NS)
    after = report_on(run).whole_run
    assert before is not None
    assert after is not None
    assert (before.num_steps, after.num_steps) == (33, 93)


def test_ranks_that_are_not_asked_for_are_left_out(run: Path) -> None:
    whole = report_on(run, AnalysisOptions(ranks=Numbers(((1, 1),)))).whole_run
    assert whole is not None
    assert [one.rank for one in whole.ranks] == [1]


def test_a_run_with_nothing_but_pulses_has_a_report(tmp_path: Path) -> None:
    """As `ddpprof watch` leaves it: facts, no recorded steps, no trace."""
    about = json.loads((SAMPLE / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**about, "settings": {"profiler": False}}))
    for rank in (0, 1):
        shutil.copy(SAMPLE / f"rank-{rank}.facts.json", tmp_path)
        (tmp_path / f"rank-{rank}.steps.jsonl").write_text("")
        write_pulse(tmp_path, rank, [MadeStep()] * 30)
    report = report_on(tmp_path)
    assert report.whole_run is not None
    assert report.whole_run.steps is not None
    assert report.whole_run.steps.median_ns == 100_000_000
    assert [rank.light_steps for rank in report.ranks] == [(), ()]
