"""`ddpprof compare` on the command line: what it reads and writes, and its limits."""

import json
import shutil
from pathlib import Path

import pytest

from ddpprof.cli import main

SAMPLES = Path(__file__).parents[3] / "sample_traces"
SAMPLE, OTHER = (str(SAMPLES / name) for name in ("convnet-gloo-2ranks", "transformer-gloo-4ranks"))


@pytest.fixture
def baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    path = tmp_path / "baseline.json"
    assert main(["report", SAMPLE, "--out", str(path)]) == 0
    capsys.readouterr()
    return str(path)


def longer(baseline: str, factor: float, out: Path) -> str:
    """The same report with every step `factor` times as long."""
    written = json.loads(Path(baseline).read_text())
    for rank in written["ranks"]:
        for step in (*rank["steps"], *rank["light_steps"]):
            step["duration_ns"] = round(step["duration_ns"] * factor)
    out.write_text(json.dumps(written))
    return str(out)


@pytest.fixture
def same_and_slower(baseline: str, tmp_path: Path) -> tuple[list[str], list[str]]:
    """Six runs that differ by up to 1 %, and six that take 10 % longer."""
    same = [longer(baseline, 1 + number / 500, tmp_path / f"a{number}.json") for number in range(6)]
    slower = [longer(baseline, 1.1 + number / 500, tmp_path / f"b{number}.json") for number in range(6)]
    return same, slower


def test_several_runs_of_each_tell(
    same_and_slower: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    same, slower = same_and_slower
    assert main(["compare", *same, "--", *slower, "--fail-on", "step>5%"]) == 1
    shown = capsys.readouterr().out
    assert "FAILED: step>5%: step changed by +" in shown
    assert "from 6 runs of A and 6 of B" in " ".join(shown.split())
    assert main(["compare", "--fail-on", "step>5%", *same, "--against", *same]) == 0
    assert "passed: step>5%: step changed by +0.00 ms" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "code"), [([], 3), (["--on-unknown", "pass"], 0), (["--on-unknown", "fail"], 1)])
def test_one_run_of_each_cannot_tell_and_says_how_many_would(
    arguments: list[str], code: int, baseline: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", baseline, SAMPLE, "--fail-on", "step>5%", *arguments]) == code
    shown = " ".join(capsys.readouterr().out.split())
    assert "CANNOT TELL: step>5%: step changed by +0.00 ms" in shown
    assert (
        "this comparison needs 5 more runs on each side. Record with: ddpprof trace --repeat 5 --out MORE_OF_A" in shown
    )


def test_what_no_noise_explains_fails_with_one_run_of_each(baseline: str, tmp_path: Path) -> None:
    assert main(["compare", baseline, longer(baseline, 6, tmp_path / "b.json"), "--fail-on", "step>5%"]) == 1


def test_a_folder_of_runs_is_one_side(
    same_and_slower: tuple[list[str], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs beside each other in a folder, as ``trace --repeat`` leaves them; more of them are recorded there."""
    folder = tmp_path / "before"
    for number in (1, 2, 10):
        shutil.copytree(SAMPLE, folder / f"run-{number}")
    assert main(["compare", str(folder), "--", *same_and_slower[0]]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "A: before (3 runs) · B:" in shown
    assert f"needs 3 more runs of A. Record with: ddpprof trace --repeat 3 --out {folder}" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["A"], "give two runs: ddpprof compare A B", id="one"),
        pytest.param(["A", "B", "C"], "separate the runs of the two jobs with --", id="three"),
        pytest.param([], "give two runs", id="none"),
        pytest.param(["--", "B"], "give two runs", id="one-side"),
    ],
)
def test_which_side_a_run_is_on_must_be_said(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_what_compare_writes_says_on_stderr_which_limit_was_passed(
    same_and_slower: tuple[list[str], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same, slower = same_and_slower
    out = tmp_path / "comparison.json"
    assert main(["compare", *same, "--", *slower, "--fail-on", "step>5%,data>1s", "--out", str(out)]) == 1
    assert capsys.readouterr().err.startswith("ddpprof: step>5%: step changed by +")
    written = json.loads(out.read_text())
    assert [verdict["outcome"] for verdict in written["verdicts"]] == ["failed", "passed"]
    assert {change["metric"] for change in written["comparison"]["metrics"]} >= {"step", "exposed", "trailing"}


def test_a_limit_that_is_none_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", SAMPLE, OTHER, "--fail-on", "speed>5%"]) == 2
    assert (
        "'speed' is not a compared measure. Choose from: step, fastest step, mean step, compute"
        in capsys.readouterr().err
    )
