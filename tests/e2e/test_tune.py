"""``ddpprof tune`` on real training."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import on_hosts
import pytest
from hosts import Hosts, NoHosts, linked_hosts
from jobs import DDPPROF, Run, environment, script

from ddpprof.load.record import load_losses, load_record

QUICK = ["--skip-first", "3", "--timed-steps", "3", "--rounds", "1"]
TRAINING = script("wide_mlp.py", "--width", "512", "--layers", "4", "--steps", "100000")


def read(ddpprof: Run, directory: str | Path) -> dict[str, Any]:
    shown = ddpprof("report", directory, "--format", "json")
    assert shown.returncode == 0, shown.stderr
    content: dict[str, Any] = json.loads(shown.stdout)
    return content


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory of tuning with one setting beside the unchanged job, and what was printed."""
    folder = tmp_path_factory.mktemp("tuned")
    ended = subprocess.run(
        [*DDPPROF, "tune", "--nproc", "2", "--trials", "2", *QUICK, "--out", "t", *TRAINING],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return folder / "t", ended.stdout


@pytest.mark.long
def test_few_settings_are_tried_and_keep_the_losses(ddpprof: Run, tuned: tuple[Path, str]) -> None:
    directory, printed = tuned
    assert printed.rstrip().endswith("View it again with: ddpprof report t")
    report = read(ddpprof, directory)
    assert len(report["tried"]) == 1
    assert report["unpredicted"] is None
    assert report["num_steps"] == 16 + (1 + len(report["tried"])) * 6
    for number, one in enumerate(report["tried"], 1):
        assert one["forecast"]["low_ns"] <= one["forecast"]["step_ns"] <= one["forecast"]["high_ns"]
        assert (one["losses"]["match"], one["losses"]["num_steps"], one["losses"]["own"]) == ("exact", 6, 0)
        assert one["code"].startswith("DistributedDataParallel(model, ")
        record = load_record(directory / f"trial-{number}-0", 0)
        assert record is not None
        assert len(record.modules[0].buckets) == one["num_buckets"]
        given = {name: record.modules[0].settings[name] for name in arguments(one["label"])}
        assert given == arguments(one["label"])
    resumed = ddpprof("tune", "--resume", directory)
    assert resumed.returncode == 0
    assert "[round" not in resumed.stdout


def arguments(label: str) -> dict[str, object]:
    found: dict[str, object] = eval(f"dict({label})")
    return found


@pytest.mark.long
def test_a_hook_that_rounds_is_tried_only_where_that_is_allowed(
    ddpprof: Run, tuned: tuple[Path, str], tmp_path: Path
) -> None:
    shutil.copytree(tuned[0], tmp_path / "exact")
    assert not any(one["is_lossy"] for one in read(ddpprof, "exact")["tried"])
    choice = json.loads((tmp_path / "exact" / "choice.json").read_text())
    plan = json.loads((tmp_path / "exact" / "experiment.json").read_text())
    for candidate, variant in zip(choice["candidates"][1:], plan["variants"][1:], strict=True):
        variant["comm_hook"] = "fp16_compress_hook"  # what says that it keeps the numerics, and does not
        assert candidate["comm_hook"] is None
    (tmp_path / "exact" / "experiment.json").write_text(json.dumps(plan))
    for trial in (tmp_path / "exact").glob("trial-[1-9]-0"):
        (trial / "trial.json").unlink()
    assert ddpprof("tune", "--resume", "exact").returncode == 2, "a plan that was changed is not this user's own"
    assert ddpprof("tune", "--resume", "exact", "--trust").returncode == 0
    report = read(ddpprof, "exact")
    assert {one["fate"] for one in report["tried"]} == {"refused"}
    assert report["best"] is None


@pytest.mark.long
def test_without_a_loss_settings_are_unverified(ddpprof: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("""
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DDP(torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(3)]))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(100000):
    optimizer.zero_grad()
    output = model(torch.randn(8, 512))
    output.backward(output.detach())
    optimizer.step()
""")
    ended = ddpprof("tune", "--nproc", "2", "--trials", "2", *QUICK, "--out", "t", "train.py")
    assert ended.returncode == 0, ended.stderr
    assert "settings are unverified" in ended.stdout
    assert load_losses(tmp_path / "t" / "profile", 0) == ((),) * 12


@pytest.mark.long
def test_one_rank_has_nothing_to_tune(ddpprof: Run) -> None:
    ended = ddpprof("tune", *QUICK, "--out", "t", *TRAINING)
    assert ended.returncode == 2
    assert "the job has only one rank, so it has no gradient communication. Use more ranks: ddpprof" in ended.stderr


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    try:
        with linked_hosts(2, "1gbit") as made:
            yield made
    except NoHosts as reason:
        pytest.skip(f"no hosts here: {reason}")


@pytest.mark.long
def test_the_advised_cap_is_as_good_as_the_best_of_a_sweep(hosts: Hosts, ddpprof: Run, tmp_path: Path) -> None:
    """24 MiB of gradients, which the script puts into one bucket, sent only once all are there.

    Two ranks share the machine's cores with whatever else runs: by how much rounds of the sweep differ is allowed.
    """
    launcher = [sys.executable, on_hosts.__file__, ",".join(hosts.namespaces)]
    training = script("wide_mlp.py", "--width", "1024", "--layers", "6", "--batch", "256", "--steps", "100000")

    def run(*words: str) -> None:
        ended = subprocess.run(
            [*DDPPROF, *words, "--", *launcher, *training],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr

    run("tune", "--trials", "3", "--rounds", "2", "--timed-steps", "4", "--out", "t")
    report = read(ddpprof, "t")
    tried = [one for one in report["tried"] if one["step_ns"] is not None]
    assert all(one["num_buckets"] > 1 for one in tried), "what the one bucket of the script costs was predicted"
    chosen = min(tried, key=lambda one: one["ratio"]["ratio"])
    run("sweep", "--vary", "bucket_cap_mb=8,25", "--timed-steps", "4", "--rounds", "2", "--out", "s")
    points = read(ddpprof, "s")["points"]
    (as_it_is,) = [point for point in points if point["label"] == "bucket_cap_mb=25"]
    paired = {
        point["label"]: median(a / b for a, b in zip(point["rounds_ns"], as_it_is["rounds_ns"], strict=True))
        for point in points
    }
    spread = max(as_it_is["rounds_ns"]) / min(as_it_is["rounds_ns"]) - 1
    assert chosen["ratio"]["ratio"] <= min(paired.values()) * (1.02 + spread), (chosen, paired)
