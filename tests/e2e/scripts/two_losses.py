"""Trains on two losses, in ways of which some let the ranks' copies of the model drift apart."""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WAYS = ["sum", "second-backward", "second-forward", "loaded-on-one-rank", "accumulated", "unfrozen"]


def backward(way: str, model: DistributedDataParallel, inputs: torch.Tensor) -> None:
    if way == "accumulated":
        with model.no_sync():
            model(inputs).square().mean().backward(retain_graph=True)
    if way == "second-forward":
        first, second = model(inputs).square().mean(), model(-inputs).abs().mean()
    else:
        output = model(inputs)
        first, second = output.square().mean(), output.abs().mean()
    if way in ("second-backward", "second-forward"):
        first.backward(retain_graph=True)
        second.backward()
    else:
        (first + second).backward()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=WAYS, required=True)
    way = parser.parse_args().way
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    layers[0].requires_grad_(way != "unfrozen")
    model = DistributedDataParallel(layers)
    layers.requires_grad_(True)
    if way == "loaded-on-one-rank" and dist.get_rank() == 0:
        model.module.load_state_dict({name: 2 * value for name, value in model.module.state_dict().items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(30):
        optimizer.zero_grad()
        backward(way, model, torch.randn(16, 32))
        optimizer.step()
    total = sum(float(parameter.detach().double().sum()) for parameter in model.parameters())
    totals: list[float | None] = [None] * dist.get_world_size()
    dist.all_gather_object(totals, total)
    if dist.get_rank() == 0:
        print("equal" if len(set(totals)) == 1 else "different", flush=True)
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
