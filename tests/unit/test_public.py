"""What ``import ddpprof`` offers."""

from __future__ import annotations

from pathlib import Path

import pytest

import ddpprof

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "convnet-gloo-2ranks"


def test_the_public_names_are_these() -> None:
    read = {"Report", "Run", "Trace", "build_report", "give_back_large_arrays", "load_run", "load_trace"}
    measured = {"Overlap", "Shift", "between_runs", "compare_reports", "measure_overlap", "shift_between", "whatif"}
    others = {"DdpprofError", "__version__", "hooks", "integrations", "main", "profile", "watch"}
    assert set(ddpprof.__all__) == read | measured | others


def test_every_public_name_is_there() -> None:
    assert all(getattr(ddpprof, name) is not None for name in ddpprof.__all__)


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ddpprof.nothing


def test_a_run_read_and_measured() -> None:
    run = ddpprof.load_run(str(SAMPLE))
    assert isinstance(run, ddpprof.Run)
    report = ddpprof.build_report(run)
    assert isinstance(report, ddpprof.Report)
    assert [rank.rank for rank in report.ranks] == [0, 1]


def test_a_trace_read_and_measured() -> None:
    trace = ddpprof.load_trace(SAMPLE / "rank-0.trace.json.gz")
    assert isinstance(trace, ddpprof.Trace)
    overlap = ddpprof.measure_overlap(trace, None)
    assert isinstance(overlap, ddpprof.Overlap)
    assert overlap.comm_ns > 0


def test_two_samples_compared() -> None:
    shift = ddpprof.shift_between([10.0] * 5, [12.0] * 5)
    assert isinstance(shift, ddpprof.Shift)
    assert shift.shift == 2.0
    assert ddpprof.between_runs.difference_between([10.0] * 6, [12.0] * 6, 8.0).is_beyond_noise


def test_the_command_line_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert ddpprof.main(["explain", "bucket"]) == 0
    assert capsys.readouterr().out
