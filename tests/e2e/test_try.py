"""`ddpprof try` on trainings with something to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jobs import Run, script

TRIALS = ("--rounds", "3", "--timed-steps", "8")


def recorded(ddpprof: Run, plant: str) -> None:
    ended = ddpprof("trace", "--nproc-per-node", "2", "--out", plant, *script("advised.py", "--plant", plant))
    assert ended.returncode == 0, ended.stderr


def tried(ddpprof: Run, directory: str) -> dict[str, Any]:
    shown = ddpprof("report", directory, "--format", "json")
    assert shown.returncode == 0, shown.stderr
    (one,) = json.loads(shown.stdout)["tried"]
    return dict(one)


def test_workers_for_a_slow_loader_are_confirmed_and_kept_in_the_run(ddpprof: Run, tmp_path: Path) -> None:
    recorded(ddpprof, "slow_loader")
    brief = json.loads(ddpprof("report", "slow_loader", "--brief").stdout)
    (confirm,) = [one["confirm"] for one in brief["findings"] if one["rule"] == "idle-for-data"]
    assert confirm.startswith("ddpprof try slow_loader --finding ")
    ended = ddpprof(*confirm.split()[1:], "--out", "t", *TRIALS)
    assert ended.returncode == 0, ended.stderr
    assert "6 times for" in ended.stdout.splitlines()[0]
    one = tried(ddpprof, "t")
    assert one["promise"]["rule"] == "idle-for-data"
    assert one["outcome"] == "confirmed", one
    assert one["measured"]["gain_ns"] > 10_000_000, "a worker loads 16 samples of 2 ms while the rank takes 30 ms"
    assert f"Code: {one['promise']['code']}" in ended.stdout.replace("\n", " ")
    report = json.loads(ddpprof("report", "slow_loader", "--format", "json").stdout)
    (found,) = [finding for finding in report["findings"] if finding["rule"] == "idle-for-data"]
    assert found["measured"]["outcome"] == "confirmed"
    assert "confirmed" in ddpprof("report", "slow_loader", "--full").stdout


@pytest.mark.long
def test_a_reduction_in_the_last_pass_alone_keeps_the_losses(ddpprof: Run) -> None:
    recorded(ddpprof, "every_pass")
    ended = ddpprof("try", "every_pass", "--rule", "reduces-every-pass", "--out", "t", *TRIALS)
    assert ended.returncode == 0, ended.stderr
    one = tried(ddpprof, "t")
    assert one["losses"]["match"] in ("exact", "rounding"), one["losses"]
    assert one["outcome"] in ("confirmed", "smaller than promised", "cannot tell"), one


@pytest.mark.long
def test_sparse_gradients_of_an_embedding_keep_the_losses(ddpprof: Run) -> None:
    recorded(ddpprof, "embedding")
    ended = ddpprof("try", "embedding", "--rule", "dense-embedding-gradients", "--out", "t", *TRIALS)
    assert ended.returncode == 0, ended.stderr
    one = tried(ddpprof, "t")
    assert one["promise"]["code"] == "torch.nn.Embedding(…, sparse=True)"
    assert one["losses"]["match"] in ("exact", "rounding"), one["losses"]
    assert one["outcome"] == "confirmed", one


def test_another_script_is_compared_in_the_same_way(ddpprof: Run, tmp_path: Path) -> None:
    recorded(ddpprof, "nothing")
    changed = tmp_path / "changed.py"
    changed.write_text(Path(script("advised.py")[0]).read_text().replace("Samples(0.002 if", "Samples(0.01 if True or"))
    ended = ddpprof("try", "nothing", "--script", str(changed), "--out", "t", *TRIALS)
    assert ended.returncode == 0, ended.stderr
    one = tried(ddpprof, "t")
    assert (one["outcome"], one["promise"]["number"]) == ("slower", None)
    assert not (tmp_path / "nothing" / "tried.json").exists()


def test_what_cannot_be_tried_is_said_before_anything_runs(ddpprof: Run, tmp_path: Path) -> None:
    ended = ddpprof("try", "absent")
    assert (ended.returncode, "absent" in ended.stderr) == (2, True)
    assert not (tmp_path / "runs").exists()
