"""A training of 2,500 short steps, more than a pulse keeps one by one."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DDP(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2500):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
