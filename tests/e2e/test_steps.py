"""Steps are what the user calls steps: the iterations of their training loop, without a message from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from accelerator import first_recorded
from jobs import Run, on_ranks, outside_checkout, script

from ddpprof.model.pulse import StepFlag
from ddpprof.model.pulse_layout import decode

WINDOW = ["--skip-first", "2", "--cost-steps", "4", "--no-profiler", "--steps", "100"]
"""Light recording from step 6 until the script ends."""


def recorded(run: Path, rank: int) -> list[dict[str, Any]]:
    nothing: dict[str, Any] = {"forwards": [], "optimizers": [], "passes": []}  # what a step has none of is left out
    lines = (run / f"rank-{rank}.steps.jsonl").read_text().splitlines()
    return [{**nothing, **json.loads(line)} for line in lines]


def trace(
    ddpprof: Run, folder: Path, job: Sequence[str | Path], window: Sequence[str] = WINDOW
) -> list[list[dict[str, Any]]]:
    """The recorded steps of both ranks."""
    done = ddpprof("trace", "--quiet", "--out", "run", *window, *on_ranks(2, *job))
    assert done.returncode == 0, done.stderr
    assert "ddpprof: " not in outside_checkout(done.stderr)
    return [recorded(folder / "run", rank) for rank in (0, 1)]


def shape(row: dict[str, Any]) -> tuple[int, list[tuple[int, bool]], int]:
    """Number, forwards as (module, synchronizes), optimizer calls."""
    forwards = [(forward[0], forward[7]) for forward in row["forwards"]]
    return row["number"], forwards, len(row["optimizers"])


def times_within(row: dict[str, Any]) -> list[int]:
    """Of the forwards, then of the optimizers."""
    times = [time for forward in row["forwards"] for time in forward[1:5]]
    return times + [time for call in row["optimizers"] for time in call]


@pytest.mark.parametrize(
    ("name", "forwards", "num_optimizer_calls", "last"),
    [
        pytest.param("gan.py", [(0, True), (1, True), (1, True)], 2, 29, id="two-optimizers-and-modules"),
        pytest.param(
            "accumulation.py", [(0, False)] * 3 + [(0, True)], 1, 29, id="accumulation", marks=pytest.mark.long
        ),
        # It ends when the next one begins, and behind the last none does.
        pytest.param("manual_sgd.py", [(0, True)], 0, 28, id="no-optimizer"),
    ],
)
def test_a_step_is_one_iteration(
    name: str,
    forwards: list[tuple[int, bool]],
    num_optimizer_calls: int,
    last: int,
    tmp_path: Path,
    ddpprof: Run,
) -> None:
    first = first_recorded(2)
    for rows in trace(ddpprof, tmp_path, script(name, "--steps", "30")):
        assert [row["number"] for row in rows] == list(range(first, last + 1))
        light = [row for row in rows if row["mode"] == "light"]
        assert [row["number"] for row in light] == [first + 1, first + 2, *range(first + 4, last + 1)]
        assert [shape(row) for row in light] == [(row["number"], forwards, num_optimizer_calls) for row in light]
        assert all(before["end_ns"] <= after["start_ns"] for before, after in pairwise(rows))
        for row in light:
            times = [row["start_ns"], *times_within(row), row["end_ns"]]
            assert times == sorted(times)


@pytest.mark.long
def test_optimizers_that_step_within_the_backward_pass_end_one_step_together(tmp_path: Path, ddpprof: Run) -> None:
    """One optimizer per parameter; as without any, the step ends when the next one begins."""
    num_parameters = 24
    for rows in trace(ddpprof, tmp_path, script("variants.py", "--variant", "optimizer_in_backward", "--steps", "20")):
        assert [row["number"] for row in rows] == list(range(2, 19))
        light = [row for row in rows if row["mode"] == "light"]
        assert [shape(row) for row in light] == [(row["number"], [(0, True)], num_parameters) for row in light]


@pytest.mark.long
def test_evaluation_between_the_steps_is_no_step(tmp_path: Path, ddpprof: Run) -> None:
    (tmp_path / "evaluates.py").write_text("""
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DDP(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(8, 64))
dist.barrier()
time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
dist.destroy_process_group()
""")
    for rows in trace(ddpprof, tmp_path, [tmp_path / "evaluates.py"]):
        assert [row["number"] for row in rows] == list(range(2, 20))
        synchronizing = [[f for f in row["forwards"] if f[7]] for row in rows if row["mode"] == "light"]
        assert [len(forwards) for forwards in synchronizing] == [1] * len(synchronizing)


EVALUATES_WITHOUT_DDP = """
import contextlib, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DDP(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
training, evaluation = DataLoader(torch.randn(40, 64), 8), DataLoader(torch.randn(24, 64), 8)
modes, gradients = sys.argv[1] == "mode", torch.no_grad if sys.argv[1] == "no-grad" else contextlib.nullcontext
for epoch in range(6):
    for x in training:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    if epoch % 2:
        model.module.train(not modes)
        with gradients():
            for x in evaluation:
                with torch.no_grad():
                    model.module(x)
        model.module.train()
dist.barrier()
time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
dist.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.parametrize("how", ["mode", "no-grad"])
def test_an_evaluation_may_do_without_ddp(how: str, tmp_path: Path, ddpprof: Run) -> None:
    """It is known by its mode, or by gradients that are off where its pass over the data begins."""
    (tmp_path / "evaluates.py").write_text(EVALUATES_WITHOUT_DDP)
    for rows in trace(ddpprof, tmp_path, [tmp_path / "evaluates.py", how]):
        light = {row["number"]: row.get("began_evaluation", False) for row in rows if row["mode"] == "light"}
        assert {number for number, began in light.items() if began} == {10, 20}
        assert {15, 25} <= light.keys()
    window = ["--skip-first", "2", "--cost-steps", "0", "--steps", "2"]
    done = ddpprof("trace", "--quiet", "--out", "watched", *window, *on_ranks(2, tmp_path / "evaluates.py", how))
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        steps = decode((tmp_path / f"watched/rank-{rank}.pulse").read_bytes()).steps
        flags = dict(zip(steps.number.tolist(), steps.flags.tolist(), strict=True))
        assert {number for number, flag in flags.items() if flag & StepFlag.EVALUATED} == {10, 20}
        assert {number for number, flag in flags.items() if flag & StepFlag.BEGAN_EPOCH} == {5, 10, 15, 20, 25}


EXPLICIT = """
import sys, time, torch, torch.distributed as dist, ddpprof
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DDP(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with ddpprof.profile("run", skip_first=2, cost_steps=4, profiler=False, steps=100) as prof:
    for step in range(20):
        for _ in range(int(sys.argv[1])):
            optimizer.zero_grad()
            model(torch.randn(8, 64)).sum().backward()
            optimizer.step()
        prof.step()
dist.barrier()
time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("updates", "first_mark_ends"),
    [
        pytest.param(1, 1, id="one-update-each", marks=pytest.mark.long),
        pytest.param(3, 3, id="three-updates-each", marks=pytest.mark.long),
    ],
)
def test_the_user_marks_the_steps(updates: int, first_mark_ends: int, tmp_path: Path, two_ranks: Run) -> None:
    """Until the first mark steps are found as ever: each of the first iteration's updates is one."""
    (tmp_path / "marks.py").write_text(EXPLICIT)
    done = two_ranks(tmp_path / "marks.py", str(updates))
    assert (done.returncode, "ddpprof" in outside_checkout(done.stderr)) == (0, False), done.stderr
    for rank in (0, 1):
        rows = recorded(tmp_path / "run", rank)
        assert rows[-1]["number"] == first_mark_ends + 19 - 1
        light = [row for row in rows if row["mode"] == "light" and row["number"] >= first_mark_ends]
        assert light
        assert [shape(row)[1:] for row in light] == [([(0, True)] * updates, updates)] * len(light)


@pytest.mark.parametrize(
    ("how", "num_passes", "num_spans"),
    [
        pytest.param("sgd", 1, 2, id="before-and-after-the-closure"),
        pytest.param("lbfgs", 3, 4, id="a-closure-that-is-called-again", marks=pytest.mark.long),
        pytest.param("scaler", 1, None, id="steps-that-a-scaler-skips", marks=pytest.mark.long),
    ],
)
def test_closures_and_skipped_steps(
    how: str, num_passes: int, num_spans: int | None, tmp_path: Path, ddpprof: Run
) -> None:
    """A closure's forward and backward pass are not the optimizer's, and a step that a scaler skips is a step."""
    for rows in trace(ddpprof, tmp_path, script("closures.py", "--how", how)):
        light = [row for row in rows if row["mode"] == "light"][-20:]
        assert rows[-1]["number"] == 29
        assert {len(row["passes"]) for row in light} == {num_passes}
        if num_spans is not None:
            assert {len(row["optimizers"]) for row in light} == {num_spans}
        else:
            assert {len(row["optimizers"]) for row in light} == {0, 1}
        for row in light:
            spans = [(forward[1], forward[4]) for forward in row["forwards"]]
            assert all(end <= begin or stop <= start for start, end in spans for begin, stop in row["optimizers"])
