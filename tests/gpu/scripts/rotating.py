"""Training in which every step takes another branch: each parameter trains, though none in every step."""

import plain as ranks
import torch
from torch import nn


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(64, 64)
        self.branches = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.step = 0

    def forward(self, inputs):
        branch = self.branches[self.step % len(self.branches)]
        self.step += 1
        return branch(self.trunk(inputs))


def train(rank, device, options):
    model = ranks.wrap(Branches(), device, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(options.steps):
        optimizer.zero_grad()
        model(torch.randn(8, 64).to(device)).sum().backward()
        optimizer.step()
    ranks.tell(rank, num_steps=options.steps)


if __name__ == "__main__":
    ranks.run(train, ranks.parser().parse_args())
