"""A job that fails in its first backward pass (``--how checkpoint``), or in DDP's constructor (``--how frozen``)."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--how", required=True)
how = parser.parse_args().how


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, inputs):
        hidden = checkpoint(self.first, inputs.requires_grad_(), use_reentrant=True)
        return self.last(checkpoint(self.first, hidden, use_reentrant=True))


dist.init_process_group("gloo")
torch.set_num_threads(1)
net = Net().requires_grad_(how != "frozen")
model = DDP(net, find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(20):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
