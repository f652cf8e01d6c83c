"""A training under DDP that becomes slower when a file says so, and normal again.

Its steps consist of sleep for the most part, so that two ranks on two cores do not disturb each other more than ranks
on hosts of their own. It saves and evaluates now and then, which is no slowdown.

train.py TOLD NOW     TOLD: a JSON file: how many steps, the share of the usual sleep, and what to do in which steps
                      NOW: a file into which rank 0 writes what has to be done from outside
"""

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
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from hosts import limit_own_link

WIDTH, BATCH, MICRO_STEPS = 224, 8, 2
SLEEP = {"data": 0.005, "forward": 0.010, "backward": 0.0, "optimizer": 0.004, "other": 0.006}
"""seconds for which a step sleeps, by what it does"""
STEPS_PER_EPOCH, STEPS_PER_SAVE = 160, 110
EXTRA = {"data": 0.0, "forward": 0.0, "backward": 0.0, "optimizer": 0.0, "other": 0.0}
"""seconds for which this rank sleeps longer at present, by what it does"""
RATE, BURST = "700mbit", "64kb"


class Examples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return STEPS_PER_EPOCH

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SLEEP["data"] + EXTRA["data"])
        return torch.full((BATCH, WIDTH), index / STEPS_PER_EPOCH)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(SLEEP["forward"] + EXTRA["forward"])
        for number, layer in enumerate(self.layers):
            for _ in range(MICRO_STEPS):
                x = layer(x).relu()
            if number == 4 and x.requires_grad:
                x.register_hook(lambda _: time.sleep(EXTRA["backward"]))
        return x


class Optimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        time.sleep(SLEEP["optimizer"] + EXTRA["optimizer"])
        return super().step(closure)


def obey(plants: list[dict[str, Any]], step: int, rank: int, now: Path) -> None:
    """Begin and end what is planted for this step."""
    for plant in plants:
        begins, ends = step == plant["first_step"], step == plant["first_step"] + plant["num_steps"]
        if not begins and not ends:
            continue
        kind = plant["kind"]
        if kind in EXTRA:
            if plant["rank"] in (None, rank):
                EXTRA[kind] = plant["extra_ms"] / 1000 if begins else 0.0
        elif kind == "link":
            limit_own_link(plant["rate"] if begins else RATE, BURST)
        elif rank == 0:
            now.write_text(kind if begins else "", encoding="utf-8")


def main(told_file: str, now: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    told = json.loads(Path(told_file).read_text(encoding="utf-8"))
    for part in SLEEP:
        SLEEP[part] *= told["sleep"]
    model = DistributedDataParallel(Model(), bucket_cap_mb=0.5)
    optimizer = Optimizer(model.parameters(), lr=1e-4)
    step = 0
    while step < told["num_steps"]:
        for (x,) in zip(DataLoader(Examples(), batch_size=None), strict=False):
            obey(told["plants"], step, rank, Path(now))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            time.sleep(SLEEP["other"] + EXTRA["other"])
            optimizer.step()
            step += 1
            if step % STEPS_PER_SAVE == 0 and rank == 0:
                time.sleep(0.05)
                torch.save(model.state_dict(), f"{now}.pt")
            if step >= told["num_steps"]:
                break
        with torch.no_grad():
            for _ in range(4):
                model.module(x)
                model(x)
    dist.barrier()
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
