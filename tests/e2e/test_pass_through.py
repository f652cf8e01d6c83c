"""ddpprof is never a danger to the training: its output, exit code and signals are its own, whatever happens."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from accelerator import first_recorded
from jobs import DDPPROF, QUICK, Run, environment, on_ranks, outside_checkout

Report = Callable[[str], dict[str, Any]]

LATER = first_recorded(2) - 2
"""steps: so much later the recording begins on an accelerator"""

ENDLESS = """
import os, sys, time, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP

def main(rank, store, kill_at):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    model = DDP(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100_000):
        if rank == 1 and step == kill_at:
            os.kill(os.getpid(), 9)
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}", flush=True)
        time.sleep(0.01)

if __name__ == "__main__":
    mp.start_processes(main, (os.path.abspath(f"store-{os.getpid()}"), int(sys.argv[1])), nprocs=2, start_method="fork")
"""

STEPS = """
import os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DDP(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
time.sleep(0.2)  # gloo's threads may abort a process that ends while they still hold work, with or without ddpprof
sys.stdout.write(f"out {dist.get_rank()}\\n")  # in one write: the ranks share the stream
sys.stderr.write(f"err {dist.get_rank()}\\n")
"""


@pytest.fixture
def steps_script(tmp_path: Path) -> Path:
    path = tmp_path / "steps.py"
    path.write_text(STEPS)
    return path


def alone(**more: str) -> dict[str, str]:
    """The launcher's variables of a job of one rank."""
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "WORLD_SIZE": "1", **more}


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_output_passes_through(steps_script: Path, ddpprof: Run) -> None:
    done = ddpprof("trace", "--quiet", "--out", "run", *QUICK, "--nproc-per-node=1", steps_script, "20")
    assert (done.returncode, done.stdout, done.stderr) == (0, "out 0\n", "err 0\n")


@pytest.mark.parametrize("code", [3, 0])
def test_exit_code_passes_through(code: int, steps_script: Path, ddpprof: Run) -> None:
    append(steps_script, f"sys.exit({code})\n")
    done = ddpprof("trace", "--out", "run", "--", sys.executable, steps_script, "20", RANK="0", **alone())
    assert done.returncode == code


def test_an_exception_shows_the_scripts_own_traceback(steps_script: Path, ddpprof: Run, report: Report) -> None:
    append(steps_script, "raise ValueError('of the script')\n")
    done = ddpprof("trace", "--out", "run", *QUICK, "--nproc-per-node=1", steps_script, "20")
    assert done.returncode == 1
    assert "ValueError: of the script" in done.stderr
    assert "ddpprof/" not in outside_checkout(done.stderr)
    shown = report("run")
    assert len(shown["ranks"][0]["steps"]) == 3
    assert "ValueError" in shown["ranks"][0]["ended"]


@pytest.mark.parametrize(
    ("num_steps", "light", "profiled"),
    [
        pytest.param(5, 3, 0, id="ends-before-the-profiler"),
        pytest.param(9, 4, 2, id="ends-within-the-profiled-steps"),
    ],
)
def test_a_script_that_ends_early(
    num_steps: int, light: int, profiled: int, steps_script: Path, ddpprof: Run, report: Report
) -> None:
    done = ddpprof("trace", "--out", "run", *QUICK, *on_ranks(1, steps_script, str(num_steps + LATER)))
    assert done.returncode == 0, done.stderr
    rank = report("run")["ranks"][0]
    assert (len(rank["light_steps"]), len(rank["steps"])) == (light, profiled)


def test_a_script_without_ddp(tmp_path: Path, ddpprof: Run) -> None:
    (tmp_path / "plain.py").write_text("import torch\nprint('trained')\n")
    done = ddpprof("trace", "--out", "run", "plain.py")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "trained no DistributedDataParallel module, or could not be recorded" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([sys.executable, "-I", "plain.py"], id="isolated"),
        pytest.param(["env", "-u", "PYTHONPATH", sys.executable, "plain.py"], id="without-PYTHONPATH"),
    ],
)
def test_a_job_that_does_not_let_ddpprof_in(command: list[str], tmp_path: Path, ddpprof: Run) -> None:
    (tmp_path / "plain.py").write_text("print('trained')\n")
    done = ddpprof("trace", "--out", "run", "--", *command)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "no Python process of the job loaded ddpprof" in done.stderr


def test_stop_after_ends_the_job_cleanly(ddpprof: Run, tmp_path: Path, report: Report) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    done = ddpprof("trace", "--stop-after", "--out", "run", *QUICK, "endless.py", "-1")
    assert done.returncode == 0, done.stderr
    assert f"step {8 + LATER}\n" in done.stdout
    assert f"step {12 + LATER}\n" not in done.stdout
    shown = report("run")
    assert [rank["ended"] for rank in shown["ranks"]] == ["stopped", "stopped"]
    assert [len(rank["steps"]) for rank in shown["ranks"]] == [3, 3]


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``ddpprof trace`` on training that never ends, in a process group of its own."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    started: list[subprocess.Popen[str]] = []

    def start(*options: str, kill_at: int = -1) -> subprocess.Popen[str]:
        job = subprocess.Popen(
            [*DDPPROF, "trace", "--out", "run", *options, "endless.py", str(kill_at)],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(job)
        return job

    yield start
    for job in started:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def wait_for(job: subprocess.Popen[str], line: str) -> None:
    assert job.stdout is not None
    for text in job.stdout:
        if text.startswith(line):
            return
    raise AssertionError(f"the job ended without {line!r}")


def session_is_empty(leader: int) -> bool:
    listed = subprocess.run(["ps", "-o", "pid=", "-s", str(leader)], capture_output=True, text=True, check=False)
    return not listed.stdout.split()


@pytest.mark.parametrize(
    ("number", "to"),
    [
        (signal.SIGINT, "everyone"),
        (signal.SIGTERM, "ddpprof"),
        pytest.param(signal.SIGINT, "ddpprof", marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, "everyone", marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_everything_and_leaves_a_run(
    number: signal.Signals, to: str, endless: Callable[..., subprocess.Popen[str]], report: Report
) -> None:
    job = endless(*QUICK)
    wait_for(job, "step 25")
    if to == "everyone":
        os.killpg(job.pid, number)
    else:
        job.send_signal(number)
    _, errors = job.communicate(timeout=600)
    assert job.returncode == -number, errors
    deadline = time.monotonic() + 300
    while not session_is_empty(job.pid):
        assert time.monotonic() < deadline, "ranks are still running"
        time.sleep(0.1)
    assert [len(rank["steps"]) for rank in report("run")["ranks"]] == [3, 3]


SAVES_AT_CTRL_C = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DDP(torch.nn.Linear(64, 64))
try:
    for step in range(100_000):
        model(torch.randn(8, 64)).sum().backward()
        if rank == 0:
            print(f"step {step}", flush=True)
        time.sleep(0.01)
except KeyboardInterrupt:
    time.sleep(1)
    torch.save(model.state_dict(), f"last-{rank}.pt")
"""


@pytest.mark.long
@pytest.mark.parametrize("to", ["everyone", "ddpprof"])
def test_what_ranks_of_torchrun_save_at_ctrl_c_is_saved(
    to: str, tmp_path: Path, endless: Callable[..., subprocess.Popen[str]]
) -> None:
    """A second SIGINT, right after the first, would interrupt the saving."""
    (tmp_path / "saves.py").write_text(SAVES_AT_CTRL_C)
    job = endless("--no-profiler", "--nproc-per-node", "2", "saves.py")
    wait_for(job, "step 25")
    send = os.killpg if to == "everyone" else os.kill
    send(job.pid, signal.SIGINT)
    _, errors = job.communicate(timeout=600)
    assert sorted(path.name for path in tmp_path.glob("last-*.pt")) == ["last-0.pt", "last-1.pt"], errors


def test_a_rank_killed_within_the_profiled_steps(endless: Callable[..., subprocess.Popen[str]], report: Report) -> None:
    job = endless("--skip-first", "2", "--cost-steps", "4", "--steps", "20", kill_at=15 + LATER)
    _, errors = job.communicate(timeout=600)
    assert job.returncode not in (0, None)
    assert "ddpprof:" not in errors
    shown = report("run")
    assert any("rank 1 wrote no trace" in text and "killed" in text for text in shown["missing"])
    killed = next(rank for rank in shown["ranks"] if rank["rank"] == 1)
    assert killed["ended"] is None
    assert len(killed["light_steps"]) >= 8
    survivor = next(rank for rank in shown["ranks"] if rank["rank"] == 0)
    assert len(survivor["steps"]) + len(survivor["light_steps"]) >= 8


def test_an_earlier_run_is_kept(steps_script: Path, ddpprof: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    done = ddpprof("trace", "--out", "run", *on_ranks(1, steps_script, "20"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "contains an earlier run" in done.stderr
    assert "--force" in done.stderr
    done = ddpprof("trace", "--force", "--out", "run", *QUICK, *on_ranks(1, steps_script, "20"))
    assert done.returncode == 0, done.stderr


def test_a_folder_that_cannot_be_made_is_one_line_and_training_goes_on(steps_script: Path, ddpprof: Run) -> None:
    done = ddpprof("trace", "--out", "/proc/no/run", *QUICK, *on_ranks(2, steps_script, "20"))
    assert done.returncode == 0
    assert done.stdout.count("out") == 2
    said = [line for line in done.stderr.splitlines() if line.startswith("ddpprof: rank")]
    assert len(said) == 1
    assert "/proc/no" in said[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_is_one_line_and_training_goes_on(tmp_path: Path, steps_script: Path, ddpprof: Run) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20k", "tmpfs", disk], check=False)
    if mounted.returncode:
        pytest.skip("this machine mounts no tmpfs")
    try:
        done = ddpprof("trace", "--out", disk / "run", *QUICK, *on_ranks(1, steps_script, "20"))
    finally:
        subprocess.run(["umount", disk], check=True)
    assert done.returncode == 0
    assert done.stdout == "out 0\n"
    said = [line for line in done.stderr.splitlines() if line.startswith("ddpprof: rank")]
    assert len(said) == 1
    assert "Training continues" in said[0] or "training continues" in said[0]


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_four_jobs_at_once_on_a_full_disk_end(tmp_path: Path, steps_script: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60k", "tmpfs", disk], check=False).returncode:
        pytest.skip("this machine mounts no tmpfs")
    try:
        jobs = [
            subprocess.Popen(
                [*DDPPROF, "trace", "--out", disk / f"run{number}", *QUICK, *on_ranks(1, steps_script, "20")],
                cwd=tmp_path,
                env=environment(),
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            for number in range(4)
        ]
        ended = [(job.communicate(timeout=600)[0].partition("\n")[0], job.returncode) for job in jobs]
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
    assert ended == [("out 0", 0)] * 4


def test_a_second_job_of_the_same_command_leaves_the_first_ones_run(
    tmp_path: Path, steps_script: Path, ddpprof: Run, report: Report
) -> None:
    job = shlex.join([sys.executable, *on_ranks(1, steps_script, "20")])
    (tmp_path / "twice.sh").write_text(f"{job}\n{job}\n")
    done = ddpprof("trace", "--force", "--out", "run", *QUICK, "--", "bash", "twice.sh")
    assert (done.returncode, done.stdout.count("out 0")) == (0, 2)
    assert "the command starts more than one training job. Only the first job is recorded" in done.stderr
    assert len(report("run")["ranks"][0]["steps"]) == 3
