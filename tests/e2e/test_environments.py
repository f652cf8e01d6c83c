"""`ddpprof compare --env`: one job in two environments, one of which makes a kernel slower."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from jobs import Run, on_ranks

SCRIPT = """
import os, sys, torch
from torch import nn

torch.distributed.init_process_group("gloo")
torch.set_num_threads(1)
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
size = 400_000 if os.path.basename(sys.prefix) == "upgraded" else 10_000
for step in range(60):
    optimizer.zero_grad()
    torch.rand(size).sort()
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
torch.distributed.destroy_process_group()
"""


def new_environment(folder: Path) -> Path:
    """Create an environment that sees the packages of the tests, and return its folder."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "of_the_tests.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return folder


@pytest.mark.long
def test_the_kernel_that_an_upgrade_made_slower_is_named(ddpprof: Run, tmp_path: Path) -> None:
    usual, upgraded = (new_environment(tmp_path / name) for name in ("usual", "upgraded"))
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--json", "--env", usual, upgraded / "bin/python"]
    done = ddpprof("compare", *options, "--out", "runs", *on_ranks(2, "train.py"))
    assert done.returncode == 0, done.stderr
    assert "[16/16]" in done.stderr
    shown = json.loads(done.stdout)["comparison"]
    assert (shown["a"], shown["b"]) == ("old (8 runs)", "new (8 runs)")
    step = next(metric for metric in shown["metrics"] if metric["metric"] == "step")
    assert step["difference"]["low_ns"] > 0
    slowest = shown["kernels"][0]
    assert slowest["a"]["kernel"]["name"] == "aten::sort"
    lost_ns = slowest["b"]["median_ns"] - slowest["a"]["median_ns"]
    assert lost_ns == pytest.approx(step["difference"]["shift_ns"], rel=0.25)
    compute = next(metric for metric in shown["metrics"] if metric["metric"] == "compute")
    assert compute["difference"]["low_ns"] > 0  # eight runs are enough for all parts of the step
    again = ddpprof("compare", "runs/old", "runs/new", "--json")
    assert json.loads(again.stdout)["comparison"] == shown


def test_environments_that_cannot_record_are_refused(ddpprof: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    for old, why in (
        (bare, f"No module named 'torch'. Install ddpprof there with: {bare}/bin/python -m pip install ddpprof"),
        (tmp_path / "nothing", "is neither a Python interpreter nor an environment with bin/python"),
    ):
        done = ddpprof("compare", "--env", old, sys.executable, "train.py")
        assert done.returncode == 2
        assert why in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_job_that_fails_is_explained(ddpprof: Run, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise SystemExit('no data found')\n")
    done = ddpprof("compare", "--env", sys.executable, sys.executable, "--out", "runs", "fails.py")
    assert done.returncode == 2
    assert "fails.py failed in old (torch" in done.stderr
    assert "no data found. See the output of the job in runs/old/output-1.txt" in done.stderr


def test_a_job_that_does_not_train_is_told(ddpprof: Run, tmp_path: Path) -> None:
    (tmp_path / "trains_nothing.py").write_text("print('hello')\n")
    done = ddpprof("compare", "--env", sys.executable, sys.executable, "--out", "runs", "trains_nothing.py")
    assert done.returncode == 2
    assert "nothing was recorded for trains_nothing.py in old (torch" in done.stderr
