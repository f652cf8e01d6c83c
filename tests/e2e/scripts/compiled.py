"""Train a multilayer perceptron under DDP and torch.compile.

Ten linear layers of 2.36 MB each. With --cap-mb 9, torch.compile cuts the model into graphs of 1, 4, 4 and 1 layers,
from the last to the first, because its first graph ends at 1 MiB. DDP's first bucket holds the weights of four layers.
"""

from __future__ import annotations

import argparse
import hashlib

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 768


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(10)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def wrapped(order: str, cap_mb: float | None) -> nn.Module:
    model = Perceptron()
    caps = {} if cap_mb is None else {"bucket_cap_mb": cap_mb}
    if order == "ddp_first":
        return torch.compile(DistributedDataParallel(model, **caps), backend="aot_eager")
    if order == "model_first":
        return DistributedDataParallel(torch.compile(model, backend="aot_eager"), **caps)
    ddp = DistributedDataParallel(model, **caps)
    if order == "method":
        ddp.compile(backend="aot_eager")
    if order == "sequential":  # torch.compile skips the forward of nn.Sequential when DDP calls it
        sequential = nn.Sequential(*model.layers)
        return torch.compile(DistributedDataParallel(sequential, **caps), backend="aot_eager")
    return ddp


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--order", default="ddp_first")
    parser.add_argument("--cap-mb", type=float)
    parser.add_argument("--optimize-ddp", default="ddp_optimizer")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--varies", action="store_true", help="the batch size changes in every sixth step")
    options = parser.parse_args()
    torch._dynamo.config.optimize_ddp = options.optimize_ddp
    torch._dynamo.config.automatic_dynamic_shapes = not options.varies
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = wrapped(options.order, options.cap_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(options.batch, WIDTH) * (1 + dist.get_rank())
    for step in range(options.steps):
        optimizer.zero_grad()
        size = options.batch - step if options.varies and step % 6 == 0 else options.batch
        model(batch[:size]).square().mean().backward()
        optimizer.step()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    print(f"parameters: {digest.hexdigest()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
