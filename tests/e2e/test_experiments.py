"""``ddpprof overhead``, ``scale`` and ``sweep`` on real training."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import DDPPROF, Run, environment, script

from ddpprof.load.record import load_record

QUICK = ["--skip-first", "2", "--timed-steps", "4"]


def as_json(ddpprof: Run, directory: str) -> dict[str, Any]:
    shown = ddpprof("report", directory, "--format", "json")
    assert shown.returncode == 0, shown.stderr
    content: dict[str, Any] = json.loads(shown.stdout)
    return content


def test_overhead_takes_turns_and_overwrites_no_checkpoint(ddpprof: Run, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_text("the user's own")
    arguments = script("uses_ddp.py", "--steps", "100000", "--checkpoint", "model.pt")
    ended = ddpprof("overhead", "--rounds", "3", "--blocks", "3", *QUICK, "--out", "o", *arguments)
    assert ended.returncode == 0, ended.stderr
    assert "[3/3] with DDP: " in ended.stdout
    assert "sum of these parts" in ended.stdout
    assert ended.stdout.rstrip().endswith("View it again with: ddpprof report o")
    report = as_json(ddpprof, "o")
    assert report["ratio"]["num_pairs"] == 9
    assert report["ratio"]["low"] <= report["ratio"]["ratio"] <= report["ratio"]["high"]
    assert report["wrapper"]["copy_in_ns"] > 0
    assert (tmp_path / "model.pt").read_text() == "the user's own"
    assert "not saved: model.pt" in (tmp_path / "o" / "trial-0-0" / "output.txt").read_text()
    assert torch.load(tmp_path / "model.pt.buffer"), "a buffer that the script writes itself is whole"


def test_a_trial_that_fails_overwrites_no_checkpoint_either(ddpprof: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("""
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
try:
    for step in range(100):
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
        if step == 3:  # amid the profiled steps
            torch.profiler.profile().__enter__()
finally:
    torch.save(model.state_dict(), "last.pt")
""")
    (tmp_path / "last.pt").write_text("the user's own")
    ended = ddpprof("overhead", "--rounds", "1", "--blocks", "1", *QUICK, "--out", "o", "train.py")
    assert "the script started its own profiler" in ended.stdout
    assert (tmp_path / "last.pt").read_text() == "the user's own"


@pytest.mark.long
def test_overhead_of_a_compiled_module_needs_jobs_apart(ddpprof: Run) -> None:
    arguments = script("uses_ddp.py", "--steps", "100000", "--compile")
    ended = ddpprof("overhead", "--rounds", "1", "--blocks", "1", *QUICK, *arguments)
    assert "Use: ddpprof overhead --apart" in ended.stdout + ended.stderr
    ended = ddpprof("overhead", "--apart", "--rounds", "1", *QUICK, "--out", "a", *arguments)
    assert ended.returncode == 0, ended.stderr
    assert "[2/2] without DDP: " in ended.stdout
    assert as_json(ddpprof, "a")["ratio"]["ratio"] > 0


@pytest.mark.long
def test_sweep_replaces_arguments_of_ddp_and_adds_those_of_the_script(ddpprof: Run, tmp_path: Path) -> None:
    varied = ["--vary", "bucket_cap_mb=1,0.25", "--vary", "--width=16,32", "--rounds", "1", *QUICK]
    ended = ddpprof("sweep", "--out", "w", "-m", *varied, "ddpprof.demo.train_convnet", "--batch-size", "2")
    assert ended.returncode == 0, ended.stderr
    caps, sizes = [], []
    for variant in range(4):
        record = load_record(tmp_path / "w" / f"trial-{variant}-0", 0)
        assert record is not None
        caps.append(record.modules[0].settings["bucket_cap_mb"])
        sizes.append(sum(parameter.num_bytes for parameter in record.modules[0].parameters))
    assert caps == [1.0, 1.0, 0.25, 0.25]
    assert sizes[0] == sizes[2] < sizes[1] == sizes[3]
    assert "Lowest median: " in ended.stdout


@pytest.mark.long
def test_sweep_over_batches_and_processes(ddpprof: Run, tmp_path: Path) -> None:
    ended = ddpprof(
        "sweep", "--rounds", "1", *QUICK, "--out", "w", "-m", "ddpprof.demo.train_convnet", "--workers", "0",
        "--vary", "--batch-size=1,2,4", "--nproc=1,2",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    report = as_json(ddpprof, "w")
    assert [(p["nproc"], p["size"]) for p in report["points"]] == [(1, 1), (2, 2), (1, 2), (2, 4), (1, 4), (2, 8)]
    assert [curve["model"] is not None for curve in report["curves"]] == [True, True]
    shown = ddpprof("report", "w", "--out", "w.md")
    assert shown.returncode == 0, shown.stderr
    assert "## Median step" in (tmp_path / "w.md").read_text()


WITH_SYNC_BATCH_NORM = """
import torch
from torch import nn

torch.distributed.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 8), nn.SyncBatchNorm(8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = nn.parallel.DistributedDataParallel(model)
for step in range(20):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.long
def test_sync_batch_norm_is_left_out_where_it_cannot_train(ddpprof: Run, tmp_path: Path) -> None:
    """On a CPU, DDP refuses SyncBatchNorm, so that only the trial without it trains."""
    (tmp_path / "train.py").write_text(WITH_SYNC_BATCH_NORM)
    ended = ddpprof(
        "sweep", "--rounds", "1", *QUICK, "--out", "w", "--vary", "sync_batch_norm=False,True", "--nproc=2", "train.py"
    )
    assert ended.returncode == 0, ended.stderr
    assert "SyncBatchNorm layers only work with GPU modules" in ended.stdout
    assert load_record(tmp_path / "w" / "trial-0-0", 0) is not None


@pytest.mark.long
def test_a_variant_that_fails_does_not_end_the_sweep(ddpprof: Run) -> None:
    ended = ddpprof("sweep", *QUICK, "--rounds", "2", "--vary", "--steps=40,x", "--out", "f", *script("uses_ddp.py"))
    assert ended.returncode == 0, ended.stderr
    assert "--steps=x: exit code 2" in ended.stdout
    assert "invalid int value: 'x'" in ended.stdout
    assert len(as_json(ddpprof, "f")["points"]) == 1


@pytest.mark.long
def test_scale_divides_the_lost_time(ddpprof: Run) -> None:
    ended = ddpprof(
        "scale", "--rounds", "1", *QUICK, "-m", "--out", "s", "ddpprof.demo.train_convnet", "--steps", "60",
        "--nproc", "1,2", "--strong", "--batch-size=8",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    report = as_json(ddpprof, "s")
    assert [(p["scaling"], p["nproc"]) for p in report["points"]] == [
        ("weak", 1),
        ("weak", 2),
        ("strong", 1),
        ("strong", 2),
    ]
    for point, num_samples in zip(report["points"], (16, 32, 8, 8), strict=True):
        assert point["samples_per_s"] == pytest.approx(num_samples / point["step_ns"] * 1e9)
        assert sum(point["lost"].values()) == pytest.approx(point["step_ns"] - point["ideal_ns"])
    assert report["points"][1]["lost"]["wrapper_ns"] > 0
    assert report["points"][1]["transfer_ns"] > 0
    assert report["job"]["world_size"] == 2


@pytest.mark.long
def test_a_command_that_starts_its_own_ranks_is_told_how_many(ddpprof: Run, tmp_path: Path) -> None:
    ended = ddpprof(
        "sweep", "--rounds", "1", *QUICK, "--out", "w", "--nproc", "1,3", "--vary", "batch=2", "--",
        sys.executable, "-m", "ddpprof.demo.train_convnet", "--ranks={nproc}", "--batch-size={batch}",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    record = load_record(tmp_path / "w" / "trial-1-0", 0)
    assert record is not None
    assert (record.world_size, record.loaders[0].batch_size) == (3, 2)


@pytest.mark.long
def test_ctrl_c_keeps_what_is_measured_and_resume_goes_on(ddpprof: Run, tmp_path: Path) -> None:
    arguments = ["--rounds", "3", "--blocks", "2", *QUICK, "--out", "o", *script("uses_ddp.py", "--steps", "100000")]
    job = subprocess.Popen(
        [*DDPPROF, "overhead", *arguments], cwd=tmp_path, env=environment(), text=True, stdout=subprocess.PIPE
    )
    assert job.stdout is not None
    for line in job.stdout:
        if line.startswith("[1/3]"):
            break
    while not (tmp_path / "o" / "trial-0-1" / "output.txt").exists():
        time.sleep(0.05)
    time.sleep(1)
    job.send_signal(signal.SIGINT)
    rest, _ = job.communicate(timeout=600)
    assert job.returncode == 130
    assert "Note: 2 of 3 trials have not been run" in rest
    assert rest.rstrip().endswith("Stopped. Continue with: ddpprof overhead --resume o")
    first = (tmp_path / "o" / "trial-0-0" / "rank-0.steps.jsonl").read_bytes()
    ended = ddpprof("overhead", "--resume", "o")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("2 trials of 36 steps each (77 on an accelerator) in o\n[2/3]")
    # 2 + 1 + 5, and 2 x 2 blocks of 3 + 4; on an accelerator 11 + 1 + 5, and blocks of 11 + 4
    assert (tmp_path / "o" / "trial-0-0" / "rank-0.steps.jsonl").read_bytes() == first
    assert as_json(ddpprof, "o")["ratio"]["num_pairs"] == 6


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param(["overhead"], "nothing to run", id="no-script"),
        pytest.param(["overhead", "absent.py"], "there is no script absent.py", id="no-such-script"),
        pytest.param(["sweep", "train.py"], "specify what to vary", id="nothing-to-vary"),
        pytest.param(["sweep", "train.py", "--vary", "x"], "has no list of values", id="no-values"),
        pytest.param(["scale", "--nproc", "0,1", "train.py"], "must be at least 1", id="no-process"),
        pytest.param(["scale", "--no-weak", "train.py"], "nothing to measure", id="neither-weak-nor-strong"),
        pytest.param(["scale", "--", "mpirun", "train"], "use {nproc} for the number of processes", id="no-place"),
        pytest.param(["overhead", "--resume", "absent"], "is not an experiment", id="nothing-to-resume"),
        pytest.param(
            ["overhead", "--resume", "o", "--rounds", "9"], "all options from the experiment", id="other-rounds"
        ),
        pytest.param(["tune", "--resume", "o", "--allow-lossy"], "all options from the experiment", id="other-hooks"),
        pytest.param(["overhead", "--such", "train.py"], "unrecognized arguments: --such", id="no-such-option"),
    ],
)
def test_a_mistake_is_one_line(ddpprof: Run, arguments: list[str], complaint: str) -> None:
    ended = ddpprof(*arguments)
    assert ended.returncode == 2
    assert complaint in ended.stderr
    assert ended.stderr.count("\n") == 1
