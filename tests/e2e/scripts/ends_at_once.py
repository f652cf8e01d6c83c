"""Train, and release the model right after the process group is destroyed, within two milliseconds of the last step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import destroy_process_group
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel as DDP


class Gathers(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.project = nn.Linear(3072, 512), nn.Linear(512, 64)

    def forward(self, batch):
        return self.project(torch.cat(all_gather(self.encode(batch).relu())))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Gathers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.randn(16, 3072)).square().mean().backward()
        optimizer.step()
    destroy_process_group()


main()
