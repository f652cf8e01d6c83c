"""A small model, its data, and an ordinary training of it with DDP."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CAP_MB = 0.02  # about a dozen buckets


class Model(nn.Module):
    """An odd number of everything, buffers, and a branch that may go unused."""

    def __init__(self, use_spare=True, with_batch_norm=True, hidden=97):
        super().__init__()
        self.use_spare = use_spare
        self.stem = nn.Linear(33, 65)
        self.norm = nn.BatchNorm1d(65) if with_batch_norm else nn.LayerNorm(65)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(65, hidden), nn.GELU(), nn.Linear(hidden, 65)) for _ in range(4)
        )
        self.spare = nn.Linear(65, 65)
        self.head = nn.Linear(65, 7)

    def forward(self, x):
        x = self.norm(self.stem(x))
        for block in self.blocks:
            x = x + block(x)
        if self.use_spare:
            x = x + self.spare(x).tanh()
        return self.head(x)


def batches(steps, rank, micro_batches=1, seed=1000):
    generator = torch.Generator().manual_seed(seed + rank)
    for _ in range(steps * micro_batches):
        yield (
            torch.randn(13, 33, generator=generator),
            torch.randint(0, 7, (13,), generator=generator),
        )


def ordinary_steps(ddp, optimizer, data):
    for x, y in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()


def momentum_sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.03, momentum=0.9)


def train_with(steps, rank, model=None, hook=None, **ddp_arguments):
    """Train one DDP module in the ordinary way; returns it."""
    ddp_arguments.setdefault("bucket_cap_mb", CAP_MB)
    ddp = DDP(Model() if model is None else model, **ddp_arguments)
    if hook is not None:
        ddp.register_comm_hook(*hook())
    ordinary_steps(ddp, momentum_sgd(ddp), batches(steps, rank))
    return ddp
