"""A detector's backbone: sixty convolutions, each followed by BatchNorm, as in the YOLO family."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())


def block(channels):
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.SiLU())


model = DistributedDataParallel(nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *(block(16) for _ in range(60))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(400):
    images = torch.randn(4, 3, 8, 8)
    loss = model(images).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
