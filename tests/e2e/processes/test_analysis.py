"""Several processes read the ranks of a run: the report is that of one, and limits and progress hold."""

from pathlib import Path

import pytest
from fleets import make_fleet

from ddpprof.load.file_bytes import Limits
from ddpprof.load.run import load_run
from ddpprof.pipeline.analysis import ALL, AnalysisOptions, analysed
from ddpprof.pipeline.entry import ReadProgress
from ddpprof.render.json import render_json
from ddpprof.report.build import build_report


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    return make_fleet(tmp_path / "fleet", 5)


def report_of(path: Path, choice: AnalysisOptions = ALL) -> str:
    with analysed(path, choice) as analysis:
        return render_json(analysis.report)


def in_memory(path: Path) -> str:
    return render_json(build_report(load_run(path)))


@pytest.mark.parametrize("jobs", [1, 3])
def test_any_number_of_processes_gives_the_report_of_a_run_in_memory(fleet: Path, jobs: int) -> None:
    assert report_of(fleet, AnalysisOptions(jobs=jobs)) == in_memory(fleet)


def test_progress_counts_ranks_and_bytes(fleet: Path) -> None:
    seen: list[ReadProgress] = []
    with analysed(fleet, AnalysisOptions(jobs=2), seen.append):
        pass
    size = sum(path.stat().st_size for path in fleet.glob("*.trace.json.gz"))
    assert {(step.num_ranks, step.all_bytes) for step in seen} == {(5, size)}
    assert (seen[0].num_done, seen[0].done_bytes) == (0, 0)
    assert (seen[-1].num_done, seen[-1].done_bytes) == (5, size)


def test_limits_refuse_what_is_larger_and_name_their_option(fleet: Path) -> None:
    with analysed(fleet, AnalysisOptions(jobs=2, limits=Limits.chosen(None, 10))) as analysis:
        missing = analysis.report.missing
    assert sum("--max-events" in text for text in missing) == 5
    assert report_of(fleet) == in_memory(fleet), "what was refused is read once it may be"
