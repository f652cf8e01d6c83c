"""Train several models under DDP in turn, within one job: a slow minute of the machine then hits all of them alike."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddpprof

SETTLE = 3
"""Steps of each model before anything is recorded: DDP rebuilds its buckets in the second, allocators warm up."""


@dataclass(frozen=True)
class Case:
    """Square linear layers of `widths`, trained on random numbers; DDP's arguments decide about buckets."""

    name: str
    widths: Sequence[int]
    batch: int
    ddp: Mapping[str, Any] = field(default_factory=dict)


class Training:
    """One model, its optimizer and its input."""

    def __init__(self, case: Case) -> None:
        self.case = case
        pairs = zip(case.widths, [*case.widths[1:], case.widths[-1]], strict=True)
        layers = [nn.Linear(width, following, bias=False) for width, following in pairs]
        self.model = DistributedDataParallel(nn.Sequential(*layers), **case.ddp)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.x = torch.randn(case.batch, case.widths[0])

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.x).square().mean().backward()
        self.optimizer.step()

    def recorded(self, out: str, **options: Any) -> None:
        """`steps` of them, into the run directory `out`."""
        before = options["skip_first"] + options["cost_steps"] + options["warmup"]
        with ddpprof.profile(out, **options):
            for _ in range(before + options["steps"]):
                self.step()


def train_interleaved(cases: Sequence[Case], out: str, rounds: int, steps: int, **options: Any) -> None:
    """Every round trains each case for a few steps, in an order of its own, and records them as ``OUT/CASE-ROUND``."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    options = {"skip_first": 1, "cost_steps": 0, "warmup": 1, **options}
    trainings = [Training(case) for case in cases]
    for training in trainings:
        for _ in range(SETTLE):
            training.step()
    for number in range(rounds):
        for training in random.Random(number).sample(trainings, len(trainings)):  # the same order on every rank
            training.recorded(f"{out}/{training.case.name}-{number}", steps=steps, **options)
    dist.barrier()
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
