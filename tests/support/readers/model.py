"""A model and torch's DDP, for examples that show how to construct it."""

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["DistributedDataParallel", "model"]

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64))
