"""`ddpprof top` without a job: what it prints for runs that have ended, and for paths that are none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fleets import SAMPLE
from pulse_files import BEGIN_NS, SECOND, MadeStep, write_pulse
from shared import TRACES

from ddpprof.cli import main
from ddpprof.model.hang import Fault, Verdict
from ddpprof.model.pulse import Ended
from ddpprof.monitor.pulse_files import write_verdict


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    for rank in (0, 1):
        end = {"ended": Ended.FINISHED, "ended_ns": BEGIN_NS + 2 * SECOND}
        write_pulse(tmp_path / "run", rank, [MadeStep()] * 10, **end)
    return tmp_path / "run"


def test_one_view_of_an_ended_run_names_the_report(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(ended), "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run · 2 ranks on node-a · step 13 · 5 steps/s · ran 2.0 s"
    assert [line.split()[-1] for line in lines[5:7]] == ["ended", "ended"]
    assert lines[-1] == f"All ranks have ended. View the whole run with: ddpprof report {ended}"


def test_steps_that_grow_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pulse(tmp_path, 0, [MadeStep(ms=100 + step) for step in range(300)])
    assert main(["top", str(tmp_path), "--once"]) == 0
    assert "Steps become longer and longer: 107 ms at the start, 392 ms now" in capsys.readouterr().out


def test_lines_for_a_log_end_with_the_job(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(ended), "--every", "60"]) == 0
    line, *_, last = capsys.readouterr().out.splitlines()
    assert line[8:].startswith(" step 13 · 5 steps/s · step median 100.0, p99 100.0 ms · largest own time 80.0 ms")
    assert line.endswith(" · ended: ranks 0, 1")
    assert last == f"All ranks have ended. View the whole run with: ddpprof report {ended}"


def test_one_view_of_a_run_in_which_a_rank_failed_names_diagnose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, ended in enumerate((Ended.FAILED, Ended.FINISHED)):
        write_pulse(tmp_path, rank, [MadeStep()] * 10, ended=ended, ended_ns=BEGIN_NS + 2 * SECOND)
    assert main(["top", str(tmp_path), "--once"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"All ranks have ended, and some failed. Find out why with: ddpprof diagnose {tmp_path}"


def test_a_job_that_goes_on_unwatched_has_not_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        write_pulse(tmp_path, rank, [MadeStep()] * 10, ended=Ended.UNWATCHED, ended_ns=BEGIN_NS + 2 * SECOND)
    assert main(["top", str(tmp_path), "--once"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == (
        "ddpprof has stopped watching, but the job may still be running. View the recorded part with: ddpprof report "
        f"{tmp_path}"
    )


@pytest.mark.parametrize("resumed_ns", [None, BEGIN_NS])
def test_one_view_of_a_job_that_hangs_has_the_verdict(
    resumed_ns: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pulse(tmp_path, 0, [MadeStep()] * 10, tick_ns=time.time_ns())
    write_pulse(tmp_path, 1, [MadeStep(wait_ms=0)] * 10)
    since_ns = time.time_ns() - 90 * 10**9
    at = {"waiting": (0,), "since_unix_ns": since_ns, "at_unix_ns": since_ns + 6 * 10**9}
    write_verdict(tmp_path, Verdict(Fault.STOPPED, rank=1, step=13, resumed_unix_ns=resumed_ns, **at))
    assert main(["top", str(tmp_path), "--once"]) == 0
    said = capsys.readouterr().out
    assert ("The job hangs at step 13: rank 1 is stopped by a signal." in said) is (resumed_ns is None)
    assert ("Rank 0 has waited for 9" in said) is (resumed_ns is None), "90 s or a little more"
    assert "no update for" in said
    assert "is the slowest" not in said


@pytest.mark.parametrize(
    ("path", "says"),
    [
        pytest.param(Path("no/such/run"), "ddpprof: no/such/run does not exist. Record a run with: ", id="absent"),
        pytest.param(
            SAMPLE / "run.json",
            "run.json is a file. Give a run directory: the --out directory of ddpprof watch or trace.",
            id="a-file",
        ),
        pytest.param(
            TRACES,
            "is not a run: it has no run.json. Give the --out directory of ddpprof watch or trace.",
            id="traces",
            marks=pytest.mark.skipif(not TRACES.is_dir(), reason="the traces of others are missing"),
        ),
        pytest.param(SAMPLE, "has no pulse file. ", id="an-older-run"),
    ],
)
def test_what_has_no_pulse_gets_one_line(path: Path, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_name_cannot_change_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end = {"ended": Ended.FINISHED, "ended_ns": BEGIN_NS + SECOND}
    write_pulse(tmp_path, 0, [MadeStep()] * 3, host="\x1b[31mred\x1b]0;title\x07", **end)
    assert main(["top", str(tmp_path), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "red" in shown
    assert not {"\x1b", "\x07"} & set(shown)
