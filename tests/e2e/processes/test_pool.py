"""Reading processes end with an error or an interruption."""

import multiprocessing
import time
from pathlib import Path

import pytest
from fleets import make_fleet

from ddpprof.pipeline.analysis import AnalysisOptions, analysed


def test_an_error_in_a_process_is_told_and_leaves_none_behind(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path / "fleet", 4)
    (fleet / "rank-1.facts.json").unlink()
    (fleet / "rank-1.facts.json").mkdir()  # what cannot be read is named, and nothing worse happens
    with analysed(fleet, AnalysisOptions(jobs=2)) as analysis:
        assert any("rank-1.facts.json" in text for text in analysis.report.missing)
    assert multiprocessing.active_children() == []


def test_an_interruption_ends_no_process_of_the_caller(tmp_path: Path) -> None:
    def interrupted(_step: object) -> None:
        if len(multiprocessing.active_children()) > 1:
            raise KeyboardInterrupt

    of_caller = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,), daemon=True)
    of_caller.start()
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            analysed(make_fleet(tmp_path / "fleet", 2), AnalysisOptions(jobs=2), interrupted),
        ):
            pass
        assert multiprocessing.active_children() == [of_caller]
    finally:
        of_caller.kill()
        of_caller.join()
