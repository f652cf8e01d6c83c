"""A small training of one rank: what the examples of the documentation mean by a reader's own names."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = [(torch.randn(4, 8), torch.randint(2, (4,))) for _ in range(30)]


def train_step(images, labels):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()


def train():
    for images, labels in loader:
        train_step(images, labels)
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
