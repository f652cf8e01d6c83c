"""`ddpprof diagnose` and `ddpprof capture` where nothing runs any more, or nothing ever ran."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs, to_builtins
from pulse_files import MadeStep, write_pulse
from tables import record

from ddpprof import rundir
from ddpprof.cli import main
from ddpprof.model.hang import Fault, Verdict
from ddpprof.model.pulse import Ended
from ddpprof.monitor import evidence
from ddpprof.monitor.pulse_files import write_verdict


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(evidence, "_LOOK_AGAIN_S", 0.0)  # no process is there to look at
    (tmp_path / "run.json").write_text("{}")
    return tmp_path


def end(run: Path, *ends: Ended, at_ns: Sequence[int] = (9, 9)) -> None:
    for rank, (ended, ended_ns) in enumerate(zip(ends, at_ns, strict=False)):
        write_pulse(run, rank, [MadeStep()] * 10, ended=ended, ended_ns=ended_ns)


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        pytest.param((Ended.FINISHED, Ended.FINISHED), "training ended successfully", id="well"),
        pytest.param((Ended.FINISHED, Ended.INTERRUPTED), "training was interrupted", id="interrupted"),
        pytest.param(
            (Ended.UNWATCHED, Ended.FINISHED),
            "ddpprof stopped watching while training continued",
            id="unwatched",
        ),
    ],
)
def test_a_job_that_has_ended(
    ends: tuple[Ended, ...], says: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end(run, *ends)
    assert main(["diagnose", str(run)]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"ddpprof: {says}. View the whole run with: ddpprof report {run}\n")


def test_a_job_that_hung_and_was_ended(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end(run, Ended.FAILED, Ended.FAILED)
    write_verdict(run, Verdict(Fault.LINK, step=12))
    assert main(["diagnose", str(run)]) == 1
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "The job has ended."
    assert second.startswith("The job hung at step 12. Diagnosis at that time: all ranks wait at the same place")
    assert main(["diagnose", str(run), "--format", "line"]) == 1
    assert capsys.readouterr().out.startswith("ddpprof_verdict fault=link ")


def test_a_job_that_failed_in_its_first_steps(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = record(1, ended="failed: RuntimeError: Expected to mark a variable ready only once.", num_steps=0)
    facts = {"format": rundir.FORMAT, **structs.asdict(failed)}
    rundir.write_json(run / rundir.facts_file(1), to_builtins(facts))
    assert main(["diagnose", str(run)]) == 1
    first, where, advice = capsys.readouterr().out.splitlines()
    assert first.startswith("The job failed at step 0: rank 1 has died: RuntimeError: Expected to mark a variable")
    assert where == "Rank 1: host node."
    assert "use_reentrant=False" in advice


def test_a_job_that_its_user_stopped_has_not_failed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end(run, Ended.INTERRUPTED, Ended.FAILED)  # the second rank lost the first one
    (run / "exits.jsonl").write_text('{"exit_code": -2, "is_job": true, "interrupted": true}\n')
    assert main(["diagnose", str(run)]) == 0
    said = f"ddpprof: training was interrupted. View the whole run with: ddpprof report {run}\n"
    assert capsys.readouterr().err == said


def test_where_the_ranks_of_a_stuck_job_were_when_its_user_stopped_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now_ns = time.time_ns()
    since = {"step_since_ns": now_ns - 63 * 10**9, "ended_ns": now_ns}
    for rank in range(2):
        write_pulse(run, rank, [MadeStep()] * 10, ended=Ended.INTERRUPTED, **since)
    stood = record(1, ended="interrupted", num_steps=10, ended_place="/home/me/ckpt.py:6 in confirm")
    rundir.write_json(run / rundir.facts_file(1), to_builtins({"format": rundir.FORMAT, **structs.asdict(stood)}))
    (run / "exits.jsonl").write_text('{"exit_code": -2, "is_job": true, "interrupted": true}\n')
    assert main(["diagnose", str(run)]) == 0
    said = "training was interrupted in step 13, which had taken 63 s: rank 1 at /home/me/ckpt.py:6 in confirm."
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("other", "at_ns", "has_failed"),
    [
        pytest.param(Ended.INTERRUPTED, (9, 8), True, id="before"),
        pytest.param(Ended.INTERRUPTED, (9, 10), False, id="because-of-it"),
        pytest.param(Ended.FINISHED, (9, 10), True, id="no-rank-was-interrupted"),
    ],
)
def test_a_job_that_failed_before_its_user_stopped_it(
    other: Ended, at_ns: Sequence[int], has_failed: bool, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end(run, other, Ended.FAILED, at_ns=at_ns)
    failed = record(1, ended="failed: ValueError: boom", num_steps=20)
    facts = {"format": rundir.FORMAT, **structs.asdict(failed)}
    rundir.write_json(run / rundir.facts_file(1), to_builtins(facts))
    (run / "exits.jsonl").write_text('{"exit_code": -2, "is_job": true, "interrupted": true}\n')
    assert main(["diagnose", str(run)]) == int(has_failed)
    assert ("rank 1 has died: ValueError: boom" in capsys.readouterr().out) is has_failed


def test_a_job_that_its_user_stopped_while_it_hung(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end(run, Ended.INTERRUPTED, Ended.INTERRUPTED)
    (run / "exits.jsonl").write_text('{"exit_code": -2, "is_job": true, "interrupted": true}\n')
    write_verdict(run, Verdict(Fault.EVALUATES_ALONE, rank=0, step=30))
    assert main(["diagnose", str(run)]) == 1
    assert capsys.readouterr().out.startswith("The job has ended.\nThe job hung at step 30. Diagnosis")
    write_verdict(run, Verdict(Fault.EVALUATES_ALONE, rank=0, step=30, resumed_unix_ns=9))
    assert main(["diagnose", str(run)]) == 0, "it went on before"


def test_a_job_that_was_started_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end(run, Ended.FAILED, Ended.FAILED)
    attempt = run / "attempt-1"
    attempt.mkdir()
    (attempt / "run.json").write_text("{}")
    assert main(["diagnose", str(run)]) == 0
    said = "ddpprof: the job was restarted, and no rank of the new attempt is training yet.\n"
    assert capsys.readouterr().err == said
    (run / "exits.jsonl").write_text('{"exit_code": 1, "is_job": true}\n')
    assert main(["diagnose", str(run)]) == 2, "it failed before any rank trained"
    end(attempt, Ended.FINISHED)
    assert main(["diagnose", str(run)]) == 0
    assert "training ended successfully" in capsys.readouterr().err


def test_the_end_of_a_launcher_is_not_that_of_another_hosts_rank(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, host in enumerate(("node-a", "node-b")):
        write_pulse(run, rank, [MadeStep()] * 10, host=host)
    for how in ('"exit_code": 0', '"exit_code": -9', '"exit_code": -2, "interrupted": true'):
        (run / "exits.jsonl").write_text(f'{{"host": "node-a", "is_job": true, {how}}}\n')
        main(["diagnose", str(run)])
        assert "the training" not in capsys.readouterr().err


def test_a_job_of_which_a_rank_still_hangs_has_not_ended(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pulse(run, 0, [MadeStep()] * 10)
    write_pulse(run, 1, [MadeStep()] * 10, ended=Ended.FAILED)
    write_verdict(run, Verdict(Fault.LINK, step=12))
    assert main(["diagnose", str(run)]) == 1
    assert capsys.readouterr().out.startswith("The job hangs at step 12: ")


def test_a_job_that_is_over_captures_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end(run, Ended.FINISHED, Ended.FAILED)
    assert main(["capture", str(run)]) == 2
    over = f"ddpprof: the job in {run} has ended. View the whole run with: ddpprof report {run}\n"
    assert capsys.readouterr().err == over
    end(run, Ended.FINISHED, Ended.NOT_YET)
    assert main(["capture", str(run)]) == 2
    assert f"ddpprof: no job accepts requests in {run}." in capsys.readouterr().err


@pytest.mark.parametrize("command", ["diagnose", "capture"])
def test_what_is_no_run(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = tmp_path / "absent"
    assert main([command, str(absent)]) == 2
    said = f"ddpprof: {absent} does not exist. Give the --out directory of ddpprof watch or trace.\n"
    assert capsys.readouterr().err == said


def test_a_job_that_was_stopped_since_it_did_not_exit(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end(run, Ended.FINISHED, Ended.FINISHED)
    write_verdict(run, Verdict(Fault.DOES_NOT_EXIT, rank=0, step=60))
    (run / "exits.jsonl").write_text('{"exit_code": -2, "is_job": true, "interrupted": true}\n')
    assert main(["diagnose", str(run)]) == 1
    assert "Training was over (60 steps), but the process of rank 0 had not exited." in capsys.readouterr().out
    (run / "exits.jsonl").write_text('{"exit_code": 0, "is_job": true}\n')
    assert main(["diagnose", str(run)]) == 0, "it exited in the end"


def test_a_job_that_ended_well_after_a_slow_last_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end(run, Ended.FINISHED, Ended.FINISHED)
    write_verdict(run, Verdict(Fault.STORAGE, rank=0, step=60))
    (run / "exits.jsonl").write_text('{"exit_code": 0, "is_job": true}\n')
    assert main(["diagnose", str(run)]) == 0
    assert "training ended successfully" in capsys.readouterr().err
    for end_of_job in ('"exit_code": 1', '"exit_code": -2, "interrupted": true'):
        (run / "exits.jsonl").write_text(f'{{"is_job": true, {end_of_job}}}\n')
        assert main(["diagnose", str(run)]) == 1
