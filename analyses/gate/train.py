"""A small training under DDP, as it is or with a little more computation in every step.

It accumulates gradients, so that its step is mostly computation. Where two ranks share two cores, communication waits
for the scheduler, which adds noise that a job on hosts of its own does not have.

torchrun --nproc-per-node 2 train.py [--extra UNITS] [--steps N]     what is recorded
torchrun --nproc-per-node 2 train.py --calibrate                     prints the units that make a step 5 % longer
torchrun --nproc-per-node 2 train.py --verify UNITS                  prints how many times as long it really is
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import nullcontext
from statistics import quantiles

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SLOW_DOWN = 0.05
FIRST_GUESS = 150
"""units"""
WIDTH, BATCH, LAYERS, MICRO_BATCHES, UNIT = 128, 64, 2, 24, 48
WARM_UP, PAIRS, ROUNDS = 10, 400, 2


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.model = DistributedDataParallel(nn.Sequential(*layers))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.x = torch.randn(BATCH, WIDTH)
        self.unit = torch.randn(UNIT, UNIT)

    def step(self, extra: int) -> None:
        self.optimizer.zero_grad()
        for _ in range(extra):
            torch.mm(self.unit, self.unit)
        for last in (False,) * (MICRO_BATCHES - 1) + (True,):
            with nullcontext() if last else self.model.no_sync():
                self.model(self.x).square().mean().backward()
        self.optimizer.step()


def timed(training: Training, extra: int) -> float:
    began = time.perf_counter()
    training.step(extra)
    return time.perf_counter() - began


def ratio(training: Training, extra: int) -> float:
    """Divide the step with more computation by the one without: first quartiles of steps that take turns.

    The load of the machine hardly moves them.
    """
    times: dict[int, list[float]] = {0: [], extra: []}
    for pair in range(PAIRS):
        for units in (0, extra) if pair % 2 else (extra, 0):
            times[units].append(timed(training, units))
    slower, same = (quantiles(times[units])[0] for units in (extra, 0))
    found = torch.tensor([slower / same])
    dist.broadcast(found, 0)  # every rank computes as many units
    return float(found)


def calibrate(training: Training) -> int:
    extra = FIRST_GUESS
    for _ in range(ROUNDS):
        extra = round(extra * SLOW_DOWN / max(ratio(training, extra) - 1, SLOW_DOWN / 4))
    return extra


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--extra", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100, help="that are recorded, after the first")
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--verify", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Training()
    for _ in range(WARM_UP):
        training.step(0)
    said: object = None
    if options.calibrate:
        said = calibrate(training)
    elif options.verify is not None:
        said = round(ratio(training, options.verify), 4)
    else:
        for _ in range(options.steps):
            training.step(options.extra)
    if said is not None and dist.get_rank() == 0:
        print(json.dumps(said), flush=True)
    dist.barrier()
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
