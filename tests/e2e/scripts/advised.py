"""A training with one thing to change: a slow loader, passes that all reduce, a dense embedding, or nothing.

torchrun --nproc-per-node 2 advised.py --plant slow_loader
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

PASSES = 4


class Samples(Dataset):
    """Samples that take some time to read, as those on a distant disk."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((64,), index / 4096), index % 8


class Rows(nn.Module):
    """Returns the rows of an embedding for each input."""

    def forward(self, inputs):
        return (inputs * 49_999).long()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--plant", choices=["slow_loader", "every_pass", "embedding", "nothing"], required=True)
    plant = parser.parse_args().plant
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width = 1024 if plant == "every_pass" else 256
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8))
    if plant == "embedding":
        model = nn.Sequential(Rows(), nn.EmbeddingBag(50_000, 64), model)
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = Samples(0.002 if plant == "slow_loader" else 0.0)
    batches = iter(DataLoader(data, batch_size=16, sampler=DistributedSampler(data)))
    passes = PASSES if plant == "every_pass" else 1
    for _ in range(28):
        optimizer.zero_grad()
        time.sleep(0.03)  # computation whose length other work on the cores does not change
        for _ in range(passes):
            inputs, labels = next(batches)
            nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
