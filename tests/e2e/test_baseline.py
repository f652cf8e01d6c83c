"""``--baseline-steps``: steps without gradient communication, after which the job ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import QUICK, Run, on_ranks

from ddpprof.files import location
from ddpprof.load.run import load_run
from ddpprof.model import CollectiveKind, Phase, Rank
from ddpprof.pipeline.analysis import analysed

Report = Callable[[str], dict[str, Any]]

SCRIPT = """
import contextlib, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(dist.get_rank())
model = DDP(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
num_micro_steps = int(sys.argv[1])
for step in range(100_000):
    for micro_step in range(num_micro_steps):
        accumulates = micro_step < num_micro_steps - 1
        with model.no_sync() if accumulates else contextlib.nullcontext():
            model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        torch.save({"step": step, "weight": model.module[0].weight.detach().clone()}, "checkpoint.pt")
"""


def gradient_reductions(rank: Rank) -> dict[str, list[int]]:
    """By the recorder's mode: per step, how many gradient all-reduces its trace holds."""
    assert rank.trace is not None
    assert rank.record is not None
    modes = {step.number: step.mode for step in rank.record.steps}
    comm = rank.trace.collectives
    counts: dict[str, list[int]] = {}
    for index, step in enumerate(rank.trace.steps):
        of_gradients = (comm.kind == CollectiveKind.ALL_REDUCE) & (comm.phase == Phase.BACKWARD)
        counts.setdefault(modes[step.number], []).append(int((of_gradients & (comm.step == index)).sum()))
    return counts


@pytest.mark.parametrize("num_micro_steps", [1, pytest.param(2, marks=pytest.mark.long)])
def test_baseline_steps_do_not_communicate_and_end_the_job(
    num_micro_steps: int, ddpprof: Run, tmp_path: Path, report: Report
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = [*QUICK, "--baseline-steps", "2"]
    done = ddpprof("trace", "--out", "run", *options, *on_ranks(2, "train.py", str(num_micro_steps)))
    assert done.returncode == 0, done.stderr
    for rank in load_run(tmp_path / "run").ranks:
        assert gradient_reductions(rank) == {"profiled": [1, 1, 1], "baseline": [0, 0]}
        assert rank.record is not None
        *_, one, another = rank.record.steps
        assert [one.mode, another.mode] == ["alone", "alone"]
        for step in (one, another):
            assert [forward.synchronizes for forward in step.forwards] == [False] * num_micro_steps
            assert (step.passes, len(step.optimizers)) == ((), 1)
    with analysed(location(str(tmp_path / "run"))) as analysis:
        assert [step.mode for step in analysis.to_replay().recorded[1]].count("alone") == 2
    shown = report("run")
    assert [rank["ended"] for rank in shown["ranks"]] == ["stopped", "stopped"]
    assert [[step["step"] for step in rank["steps"]] for rank in shown["ranks"]] == [[7, 8, 9], [7, 8, 9]]
    assert torch.load(tmp_path / "checkpoint.pt")["step"] == 9, "saved by the last step in which gradients were reduced"
    assert done.stderr.count("not saved: checkpoint.pt") in (3, 4), "the job may end before the last one"


@pytest.mark.long
def test_baseline_steps_need_the_profiler(ddpprof: Run) -> None:
    done = ddpprof("trace", "--baseline-steps", "2", "--no-profiler", "train.py")
    assert done.returncode == 2
    assert done.stderr.startswith("ddpprof: --baseline-steps needs the profiler")


@pytest.mark.long
def test_baseline_steps_tell_how_much_communication_slows_computation(ddpprof: Run, report: Report) -> None:
    done = ddpprof("trace", "--quiet", "--out", "run", "--baseline-steps", "5", "-m", "ddpprof.demo.train_convnet")
    assert done.returncode == 0, done.stderr
    slowdown = report("run")["overlap_slowdown"]
    assert slowdown["reason"] is None
    assert slowdown["num_steps"] == 10, "five of each of two ranks; those of the baseline are not measured"
    assert slowdown["kernels"], "kernels that ran under communication, and alone in the baseline"
    assert all(row["num_covered"] >= 3 and row["num_alone"] >= 3 for row in slowdown["kernels"])
    assert 0 < slowdown["known_share"] <= 1
    assert slowdown["lost_ns"] == pytest.approx(
        sum(row["lost_ns"] for row in slowdown["kernels"]), abs=len(slowdown["kernels"])
    )
