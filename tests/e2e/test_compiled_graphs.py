"""DDP with torch.compile: the order of wrapping, the graphs, and the bucket that waits for another graph."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jobs import Run, script

QUICK = ("--skip-first", "3", "--timed-steps", "3", "--rounds", "1")


def recorded(ddpprof: Run, *options: str) -> dict[str, Any]:
    job = ("--force", "--nproc-per-node", "2", "--out", "run", *script("compiled.py", *options))
    ended = ddpprof("trace", *job)
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ddpprof("report", "run", "--format", "json").stdout))


def compiled_finding(report: dict[str, Any]) -> dict[str, Any]:
    (found,) = [one for one in report["findings"] if one["rule"] == "compiled-graphs"]
    return dict(found)


@pytest.mark.parametrize("order", ["ddp_first", "model_first"])
def test_the_bucket_that_waits_for_the_next_graph_is_named(ddpprof: Run, order: str) -> None:
    for _ in range(3):  # the medians may be of different steps if other work delays some of them
        report = recorded(ddpprof, "--order", order, "--cap-mb", "9", "--batch", "64")
        graphs = report["compiled_graphs"]
        assert (graphs["order"], graphs["optimize_ddp"], graphs["num_graphs"]) == (order, "ddp_optimizer", 4)
        first_ns, second_ns, *others = graphs["groups_ns"]
        assert len(others) == 2
        wait = graphs["waits"][0]
        assert wait["bucket"] == 0
        if is_the_gap := 0.7 * (second_ns - first_ns) < wait["waits_ns"] <= second_ns - first_ns:
            break
    assert is_the_gap, (graphs, "in three recordings")
    found, waits = compiled_finding(report), {one["bucket"]: one["waits_ns"] for one in graphs["waits"]}
    named = re.match(r"The compiled model is split into 4 graphs; bucket (\d+) waits", found["title"])
    assert named is not None, found
    assert 2 * waits[int(named[1])] >= max(waits.values()), "bucket 0, unless other work delays a later graph"
    assert found["change"]["values"] == {"bucket_cap_mb_list": [1, 3]}
    shown = ddpprof("report", "run", "--full").stdout.replace("\n", " ")
    assert f"Compiled: {WORDS[order]}, optimize_ddp=ddp_optimizer, 4 graphs." in shown


WORDS = {"ddp_first": "torch.compile around DDP", "model_first": "DDP around the compiled model"}


@pytest.mark.long  # gradients become ready together only if no other work interrupts the backward pass
def test_one_graph_is_cut_by_the_change_that_is_tried(ddpprof: Run, tmp_path: Path) -> None:
    report = recorded(ddpprof, "--order", "model_first", "--optimize-ddp", "no_optimization", "--batch", "64")
    found = compiled_finding(report)
    assert found["title"].startswith("The model is compiled as one graph"), found
    assert found["change"]["kind"] == "compilation"
    number = str(report["findings"].index(found) + 1)
    ended = ddpprof("try", "run", "--finding", number, "--out", "tried", *QUICK)
    assert ended.returncode == 0, ended.stderr
    modes = {folder.name: compilation_in(folder)["optimize_ddp"] for folder in tmp_path.glob("tried/trial-*")}
    assert {modes["trial-0-0"], modes["trial-1-0"]} == {"no_optimization", "ddp_optimizer"}


def test_a_model_that_torch_compile_skips_is_reported(ddpprof: Run) -> None:
    found = compiled_finding(recorded(ddpprof, "--order", "sequential", "--batch", "64"))
    assert found["title"] == "torch.compile compiles no part of the model"
    assert found["change"]["values"] == {"compile_order": "model_first"}


def test_a_model_that_is_compiled_again_and_again_is_reported(ddpprof: Run) -> None:
    """Each sixth step has another batch size. torch stops after eight compilations."""
    report = recorded(ddpprof, "--order", "model_first", "--batch", "64", "--steps", "60", "--varies")
    (found,) = [one for one in report["findings"] if one["rule"] == "recompilations"]
    (pause,) = [one for one in report["whole_run"]["pauses"] if one["kind"] == "compilation"]
    assert pause["num_steps"] == 7, "after the first one, in step 0"
    assert found["title"].startswith("torch.compile compiles code again 7 times in 57 steps")
    assert "torch.compile reached its limit" in found["evidence"]
    assert found["gain_ns"] == pytest.approx(pause["extra_ns"] / 57, rel=0.4), "by PyTorch's timers, and by ours"


def test_a_job_that_is_not_compiled_has_no_graphs(ddpprof: Run) -> None:
    report = recorded(ddpprof, "--order", "none", "--batch", "64")
    assert report["compiled_graphs"] is None
    assert not [one for one in report["findings"] if one["rule"] == "compiled-graphs"]
    assert "Compiled:" not in ddpprof("report", "run", "--full").stdout


@pytest.mark.parametrize("order", ["ddp_first", "method", "model_first"])
def test_a_sweep_varies_how_ddp_is_compiled(ddpprof: Run, tmp_path: Path, order: str) -> None:
    vary = ("--vary", "compile_order=ddp_first,model_first", "--vary", "optimize_ddp=ddp_optimizer,no_optimization")
    caps = ("--vary", "bucket_cap_mb=5") if order == "method" else ()
    job = script("compiled.py", "--order", order, "--batch", "32")
    ended = ddpprof("sweep", "--nproc", "2", *QUICK, "--out", "swept", *vary, *caps, *job)
    assert ended.returncode == 0, ended.stderr
    found = [compilation_in(tmp_path / "swept" / f"trial-{variant}-0") for variant in range(4)]
    assert [(one["order"], one["optimize_ddp"]) for one in found] == [
        ("ddp_first", "ddp_optimizer"),
        ("ddp_first", "no_optimization"),
        ("model_first", "ddp_optimizer"),
        ("model_first", "no_optimization"),
    ]
    assert [one["num_graphs"] for one in found] == ([4, None] if caps else [2, None]) * 2


def test_a_sweep_says_that_there_is_nothing_compiled(ddpprof: Run) -> None:
    job = script("compiled.py", "--order", "none", "--batch", "32")
    ended = ddpprof("sweep", "--nproc", "2", *QUICK, "--out", "swept", "--vary", "compile_order=model_first", *job)
    assert "the script does not compile its DDP module with torch.compile" in ended.stdout + ended.stderr


def compilation_in(trial: Path) -> dict[str, Any]:
    return dict(json.loads((trial / "rank-0.facts.json").read_text())["compilation"])
