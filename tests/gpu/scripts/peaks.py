"""Training that allocates 400 MB for a moment in one part of each step."""

import plain as ranks
import torch
from torch import nn

NUM_FLOATS = 100_000_000


def train(rank, device, options):
    def allocates(part):
        if part == options.part:
            torch.ones(NUM_FLOATS, device=device).sum()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x):
            allocates("forward")
            output = self.linear(x)
            output.register_hook(lambda _: allocates("backward"))
            return output

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            allocates("optimizer")
            return super().step(closure)

    model = ranks.wrap(Model(), device)
    optimizer = Optimizer(model.parameters(), lr=0.1)
    for _ in range(options.steps):
        optimizer.zero_grad()
        model(torch.randn(8, 64).to(device)).sum().backward()
        optimizer.step()
        allocates("other")
    ranks.tell(rank, num_steps=options.steps)


if __name__ == "__main__":
    parser = ranks.parser()
    parser.add_argument("--part", required=True)
    ranks.run(train, parser.parse_args())
