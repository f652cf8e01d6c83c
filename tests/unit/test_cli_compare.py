"""`ddpprof compare` on the command line: what it reads and writes, and its limits."""

import json
from pathlib import Path

import pytest

from ddpprof.cli import main

SAMPLES = Path(__file__).parents[2] / "sample_traces"


def test_compare_reads_runs_and_reports_and_exits_with_1_beyond_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample, other = str(SAMPLES / "convnet-gloo-2ranks"), str(SAMPLES / "transformer-gloo-4ranks")
    baseline = str(tmp_path / "baseline.json")
    assert main(["report", sample, "--out", baseline]) == 0
    assert main(["compare", baseline, sample, "--fail-on", "step>5%,exposed>2ms"]) == 0
    assert "passed: step>5%: step changed by +0.00 ms" in capsys.readouterr().out
    assert main(["compare", baseline, other, "--fail-on", "step>5%,data>1s"]) == 1
    shown = capsys.readouterr().out
    assert "FAILED: step>5%: step changed by +" in shown
    assert "passed: data>1s" in shown


def test_what_compare_writes_says_on_stderr_which_limit_was_passed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample, other = str(SAMPLES / "convnet-gloo-2ranks"), str(SAMPLES / "transformer-gloo-4ranks")
    out = tmp_path / "comparison.json"
    assert main(["compare", sample, other, "--fail-on", "step>5%", "--out", str(out)]) == 1
    assert capsys.readouterr().err.startswith("ddpprof: step>5%: step changed by +")
    written = json.loads(out.read_text())
    assert [verdict["failed"] for verdict in written["verdicts"]] == [True]
    assert {change["metric"] for change in written["comparison"]["metrics"]} >= {"step", "exposed", "trailing"}


def test_a_limit_that_is_none_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    sample = str(SAMPLES / "convnet-gloo-2ranks")
    assert main(["compare", sample, sample, "--fail-on", "speed>5%"]) == 2
    assert "'speed' is not compared. Choose of: step, compute" in capsys.readouterr().err
