"""Jobs that hang or fail: the launcher says why, and so does `ddpprof diagnose`, while they hang and afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import jsonschema
import pytest
from jobs import DDPPROF, Run, fingerprint, on_ranks, script
from processes import started, wait_until
from watched_jobs import NEEDS_SHARED_MEMORY, TWO, is_training, pulses

FAULTS = Path(__file__).parents[2] / "analyses" / "fault_injection" / "train.py"

pytestmark = [pytest.mark.e2e, NEEDS_SHARED_MEMORY]


def line_of(fault: str) -> int:
    lines = FAULTS.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# FAULT {fault}"))


def test_a_hang_is_explained_while_it_lasts_and_ended_if_asked(ddpprof: Run, tmp_path: Path) -> None:
    faulty = [str(FAULTS), "--fault", "barrier", "--rank", "1"]
    done = ddpprof("watch", "--out", "run", "--kill-after", "2", "--dump-stacks", *TWO, *faulty)
    assert done.returncode != 0
    hint, *said = (line.removeprefix("ddpprof: ") for line in done.stderr.splitlines() if line.startswith("ddpprof: "))
    assert hint == "the run is in run. View its ranks with: ddpprof top run"
    assert said[0] == (
        "The job hangs at step 60: rank 1 calls a collective that the other ranks do not call; it called barrier, "
        "and rank 0 called DDP's gradient all-reduce."
    )
    assert f"{FAULTS}:{line_of('barrier')} in barrier" in said[1]
    assert said[2].startswith("Rank 0 has waited for ")
    assert (
        said[3]
        == "They wait for gradients in bucket 0 of Branching: last.bias, last.weight, branch.bias, branch.weight."
    )
    assert said[5] == "Stacks of all threads: run/hang-stacks.txt"
    assert said[6] == "the job still hangs after 2 more seconds, so ddpprof ends it (--kill-after)"
    stacks = (tmp_path / "run" / "hang-stacks.txt").read_text()
    assert "Rank 0, process " in stacks
    assert f"barrier ({FAULTS}:{line_of('barrier')})" in stacks[stacks.index("Rank 1, process ") :]
    assert (
        said[7]
        == "the run is in run. View it with: ddpprof report run. To find out why it hung, run: ddpprof diagnose run"
    )
    afterwards = ddpprof("diagnose", "run").stdout.splitlines()
    assert afterwards[0] == "The job has ended."
    assert afterwards[1] == said[0].replace("hangs", "hung").replace(": ", ". Diagnosis at that time: ", 1)
    verdict = json.loads((tmp_path / "run" / "hang.json").read_text())
    assert (verdict["fault"], verdict["rank"], verdict["bucket"]) == ("other-collective", 1, 0)
    (schema,) = (json.loads(ddpprof("schema", "verdict").stdout),)
    jsonschema.validate(verdict, schema)


def test_a_rank_that_fails_before_it_has_a_ddp_module_is_named(ddpprof: Run) -> None:
    fails = [str(FAULTS.with_name("faults.py")), "fails_at_start", "--rank", "1"]
    done = ddpprof("watch", "--out", "run", *TWO, *fails)
    said = "The job failed: rank 1 has died: FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'."
    assert f"ddpprof: {said}" in done.stderr.splitlines()
    diagnosed = ddpprof("diagnose", "run")
    assert (diagnosed.returncode, diagnosed.stdout.splitlines()[0]) == (1, said)


HANGS = Path(__file__).parent / "scripts" / "hangs.py"


def line_in_hangs(how: str) -> str:
    lines = HANGS.read_text(encoding="utf-8").splitlines()
    return f"{HANGS}:{next(number for number, line in enumerate(lines, 1) if line.endswith(f'# FAULT {how}'))} in {how}"


BEFORE_DDP = """
import sys, time, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
def prepare():
    if dist.get_rank() == 0:
        dist.barrier()
if sys.argv[1] == "hangs":
    prepare()
    DDP(nn.Linear(8, 8))
for _ in range(250):  # without DDP
    time.sleep(0.1)
    dist.barrier()
"""


@pytest.mark.long
def test_a_hang_before_the_first_ddp_module_is_explained(ddpprof: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEFORE_DDP)
    done = ddpprof("watch", "--out", "run", "--kill-after", "1", *on_ranks(2, "train.py", "hangs"))
    assert "The job hangs at step 0: rank 0 calls a collective that the other ranks do not call; " in done.stderr
    assert "it called barrier, and rank 1 called DDP's comparison of parameter shapes" in done.stderr
    assert re.search(r"at \S*train\.py:8 in prepare, called at \S*train\.py:10 in <module>\.", done.stderr)


@pytest.mark.long
def test_a_job_without_ddp_does_not_hang_and_leaves_no_run(ddpprof: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEFORE_DDP)
    done = ddpprof("watch", "--out", "run", "--kill-after", "1", *on_ranks(2, "train.py", "trains"))
    assert done.returncode == 0, done.stderr
    assert "trained no DistributedDataParallel module" in done.stderr
    assert "hangs" not in done.stderr
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_hang_in_the_first_step_is_explained(ddpprof: Run, tmp_path: Path) -> None:
    done = ddpprof("watch", "--out", "run", "--kill-after", "1", *on_ranks(2, str(HANGS), "barrier_in_first_step"))
    assert "The job hangs at step 0: rank 1 calls a collective that the other ranks do not call" in done.stderr
    verdict = json.loads((tmp_path / "run" / "hang.json").read_text())
    assert (verdict["rank"], verdict["waiting"], verdict["step"]) == (1, [0], 0)
    assert verdict["place"] == line_in_hangs("barrier_in_first_step")
    assert "the job ended during the first steps, before the recording began" in ddpprof("report", "run").stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "says", "place"),
    [
        pytest.param(
            "skips_barrier",
            "rank 1 has not called a collective that the other ranks have called; it skipped barrier, at ",
            "waiting_at",
            id="skips-a-barrier",
        ),
        pytest.param(
            "sleeps_before_async",
            "rank 1 is still running the script's own code.",
            "place",
            id="before-an-asynchronous-one",
        ),
    ],
)
def test_who_waits_in_which_collective(how: str, says: str, place: str, ddpprof: Run, tmp_path: Path) -> None:
    done = ddpprof("watch", "--out", "run", "--kill-after", "1", *on_ranks(3, str(HANGS), how))
    assert f": {says}" in done.stderr
    verdict = json.loads((tmp_path / "run" / "hang.json").read_text())
    assert (verdict["rank"], verdict["waiting"]) == (1, [0, 2])
    assert verdict[place] == line_in_hangs(how)


@pytest.mark.long
@pytest.mark.parametrize("how", ["waits_for_the_network", "evaluates_early", "starts_slowly"])
def test_pauses_that_are_no_hangs(how: str, ddpprof: Run, tmp_path: Path) -> None:
    done = ddpprof("watch", "--out", "run", "--kill-after", "1", *on_ranks(2, str(HANGS), how))
    assert done.returncode == 0
    assert "The job hangs" not in done.stderr
    assert not (tmp_path / "run" / "hang.json").exists()
    waits = f"ddpprof: rank 0 has waited for the network at {line_in_hangs('waits_for_the_network')} for "
    assert (waits in done.stderr) is (how == "waits_for_the_network")


@pytest.mark.long
def test_diagnose_and_the_launcher_agree_on_a_rank_that_waits_for_a_pipe(ddpprof: Run, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = on_ranks(2, str(HANGS), "reads_a_pipe")
    with started(*DDPPROF, "watch", "--out", "run", *job, cwd=tmp_path) as launcher:
        wait_until(lambda: is_training(run, 40), "the training to reach the pipe")
        wait_until(lambda: "waited for a pipe" in ddpprof("diagnose", "run").stderr, "the step to be overdue")
        assert ddpprof("diagnose", "run").returncode == 0
        wait_until((run / "hang.json").exists, "the launcher to call it a hang")
        said = ddpprof("diagnose", "run")
        assert said.returncode == 1
        assert f"at {line_in_hangs('reads_a_pipe')}, called at {HANGS}:" in said.stdout
        os.kill(launcher.pid, signal.SIGTERM)
        launcher.communicate(timeout=600)


@pytest.mark.long
def test_diagnose_looks_at_a_hanging_job_from_outside_and_at_one_that_goes_on(ddpprof: Run, tmp_path: Path) -> None:
    run = tmp_path / "run"
    long = script("long_training.py", "--steps", "100000")
    with started(*DDPPROF, "watch", "--quiet", "--out", "run", *TWO, *long, cwd=tmp_path) as job:
        wait_until(lambda: is_training(run, 20), "the training to begin")
        well = ddpprof("diagnose", "run")
        assert (well.returncode, well.stdout) == (0, "")
        assert well.stderr.startswith("ddpprof: the job is training, at step ")
        assert ddpprof("diagnose", "run", "--format", "json").stdout == "null\n"
        stopped = pulses(run)[0].identity.pid
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: ddpprof("diagnose", "run").returncode == 1, "the step to be overdue")
        assert ddpprof("diagnose", "run").stdout.startswith("The job hangs at step ")
        asked = ddpprof("diagnose", "run", "--dump-stacks").stdout
        assert f"Rank 0, process {stopped}:" in asked
        assert "long_training.py:" in asked
        verdict = json.loads(ddpprof("diagnose", "run", "--format", "json").stdout)
        assert (verdict["fault"], verdict["rank"], verdict["pid"]) == ("stopped", 0, stopped)
        assert verdict["waiting"] == [1]
        assert ddpprof("diagnose", "run", "--format", "line").stdout.startswith("ddpprof_verdict fault=stopped rank=0 ")
        os.kill(stopped, signal.SIGCONT)
        wait_until(lambda: ddpprof("diagnose", "run").returncode == 0, "the job to go on")
        os.kill(job.pid, signal.SIGTERM)
        job.communicate(timeout=600)


@pytest.mark.long
def test_a_job_that_failed_is_explained_afterwards(ddpprof: Run) -> None:
    failed = ddpprof("watch", "--out", "run", *TWO, str(FAULTS), "--fault", "error", "--rank", "1")
    assert failed.returncode != 0
    assert "ddpprof: The job failed at step 60: rank 1 has died: ValueError: the batch is empty." in failed.stderr
    said = ddpprof("diagnose", "run")
    assert said.returncode == 1
    first, where = said.stdout.splitlines()[:2]
    assert first == "The job failed at step 60: rank 1 has died: ValueError: the batch is empty."
    assert f"at {FAULTS}:{line_of('error')} in error, called at {FAULTS}:" in where


@pytest.mark.long
def test_parameters_without_gradient_are_named(ddpprof: Run) -> None:
    ddpprof("watch", "--quiet", "--out", "run", *TWO, str(FAULTS), "--fault", "unused", "--rank", "0")
    said = ddpprof("diagnose", "run").stdout
    assert "rank 0 has died: RuntimeError: Expected to have finished reduction" in said
    assert "Parameters without a gradient: branch.weight, branch.bias." in said


@pytest.mark.long
def test_a_job_that_ended_well(ddpprof: Run, tmp_path: Path) -> None:
    fingerprint(ddpprof("watch", "--quiet", "--out", "run", *on_ranks(2, *script("torchrun_plain.py"))))
    well = ddpprof("diagnose", "run")
    assert (well.returncode, well.stdout) == (0, "")
    assert well.stderr == "ddpprof: training ended successfully. View the whole run with: ddpprof report run\n"
    over = ddpprof("capture", "run")
    assert (over.returncode, over.stdout) == (2, "")
    assert over.stderr == "ddpprof: the job in run has ended. View the whole run with: ddpprof report run\n"
    (tmp_path / "run" / "rank-0.pulse").unlink()
    (tmp_path / "run" / "rank-1.pulse").unlink()
    unknown = ddpprof("diagnose", "run")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "has no pulse file from any rank" in unknown.stderr
