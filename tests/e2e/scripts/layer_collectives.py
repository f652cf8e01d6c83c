"""A model whose layers exchange statistics, as SyncBatchNorm's do: layer_collectives.py OUT. It times the exchanges."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LAYERS = 3
STEPS = 40
spent_s: list[float] = []
"""time of the exchanges in each step"""


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, inputs: torch.Tensor) -> torch.Tensor:
        statistics = torch.stack([inputs.mean(0), inputs.var(0)])
        timed(dist.all_reduce, statistics)
        return inputs - statistics[0] / dist.get_world_size()

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        sums = gradient.mean(0)
        timed(dist.all_reduce, sums)
        timed(dist.all_reduce, sums.clone())
        return gradient - sums / dist.get_world_size()


def timed(collective: Any, values: torch.Tensor) -> None:
    time.sleep(0.001 * dist.get_rank())  # rank 0 waits for rank 1 in every exchange
    begin = time.perf_counter()
    collective(values)
    spent_s[-1] += time.perf_counter() - begin


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 256)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return Exchange.apply(self.linear(inputs)).relu()  # type: ignore[no-any-return,no-untyped-call]


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(Layer() for _ in range(LAYERS))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        spent_s.append(0.0)
        optimizer.zero_grad()
        model(torch.randn(64, 256)).square().mean().backward()
        optimizer.step()
    Path(sys.argv[1], f"spent-{dist.get_rank()}.json").write_text(json.dumps(spent_s))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
