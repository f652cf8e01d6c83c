"""Training with three SyncBatchNorm layers, whose exchanges take a large part of the step."""

import plain as ranks
import torch
from torch import nn


def train(rank, device, options):
    layers = [layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.SyncBatchNorm(256))]
    model = ranks.wrap(nn.Sequential(*layers), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(64, 256).to(device)
    for _ in range(options.steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    ranks.tell(rank, num_steps=options.steps)


if __name__ == "__main__":
    ranks.run(train, ranks.parser().parse_args())
