"""Optimizers that are given a closure, and steps that a gradient scaler skips."""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=["sgd", "lbfgs", "scaler"], required=True)
    how = parser.parse_args().how
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
    if how == "lbfgs":
        optimizer: torch.optim.Optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=how == "scaler")
    for step in range(30):
        inputs = torch.randn(32, 64)
        if how == "scaler":
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            overflow = float("inf") if step % 3 == 1 else 1.0
            scaler.scale(loss * overflow).backward()
            scaler.step(optimizer)
            scaler.update()
            continue

        def closure(inputs: torch.Tensor = inputs) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    print(f"parameters {sum(float(p.detach().double().sum()) for p in model.parameters())!r}", flush=True)
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
