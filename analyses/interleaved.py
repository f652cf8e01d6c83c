"""Train several models under DDP in turn, within one job: a slow minute of the machine then hits all of them alike."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
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
    hook: Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]] | None = None
    """communication hook in place of the reducer's all-reduce"""
    reduces: bool = True
    """whether gradients are reduced; if not, steps run under ``no_sync()``, send nothing, and the ranks drift apart"""


class Training:
    """One model, its optimizer and its input."""

    def __init__(self, case: Case) -> None:
        self.case = case
        pairs = zip(case.widths, [*case.widths[1:], case.widths[-1]], strict=True)
        layers = [nn.Linear(width, following, bias=False) for width, following in pairs]
        self.model = DistributedDataParallel(nn.Sequential(*layers), **case.ddp)
        if case.hook is not None:
            self.model.register_comm_hook(None, case.hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.x = torch.randn(case.batch, case.widths[0])

    def step(self) -> None:
        self.optimizer.zero_grad()
        with nullcontext() if self.case.reduces else self.model.no_sync():
            self.model(self.x).square().mean().backward()
        self.optimizer.step()

    def recorded(self, out: str, **options: Any) -> None:
        """Record `steps` steps into the run directory `out`."""
        num_steps = sum(options[kind] for kind in ("skip_first", "cost_steps", "timed_steps", "warmup", "steps"))
        with ddpprof.profile(out, **options):
            for _ in range(num_steps):
                self.step()


def join() -> None:
    """Become the rank that the environment describes."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)


def leave() -> None:
    dist.barrier()
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


def pin() -> None:
    """Pin all threads to one core: a rank that the scheduler moves about takes another time in every visit."""
    os.sched_setaffinity(0, {int(os.environ["RANK"]) % (os.cpu_count() or 1)})


@contextmanager
def job(cases: Sequence[Case]) -> Iterator[list[Training]]:
    """Yield one rank of the job, which its environment describes, with every case ready to train."""
    join()
    trainings = [Training(case) for case in cases]
    for training in trainings:
        for _ in range(SETTLE):
            training.step()
    yield trainings
    leave()


def record_in_turn(trainings: Sequence[Training], out: str, rounds: int, **options: Any) -> None:
    """Train each case for a few steps per round, in another order in each, and record them as ``OUT/CASE-ROUND``."""
    warmup = int(options.get("profiler", True))
    options = {"skip_first": 1, "cost_steps": 0, "timed_steps": 0, "warmup": warmup, **options}
    for number in range(rounds):
        for training in random.Random(number).sample(trainings, len(trainings)):  # the same order on every rank
            training.recorded(f"{out}/{training.case.name}-{number}", **options)


def steps_of_slowest(training: Any, number: int) -> list[int]:
    """Take this many steps on all ranks; return the length of each on the rank where it is longest, in ns."""
    dist.barrier()
    ends = [time.perf_counter_ns()]
    for _ in range(number):
        training.step()
        ends.append(time.perf_counter_ns())
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, [end - start for start, end in pairwise(ends)])
    return [max(steps) for steps in zip(*ranks, strict=True)]


def median_step(visits: Sequence[Mapping[str, Any]], setting: int) -> float:
    """Return the median step, in ns, over all visits of a setting."""
    return median(ns for one in visits if one["setting"] == setting for ns in one["step_ns"])
