"""Training that is fed in one of many ways: ``--feed NAME``.

torchrun --nproc-per-node 2 feeding.py --feed divided
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

BATCH = 8


class Stream(IterableDataset):
    """Samples without an end, divided among the ranks or not."""

    def __init__(self, data, divided):
        self.data, self.divided = data, divided

    def __iter__(self):
        first, every = (dist.get_rank(), dist.get_world_size()) if self.divided else (0, 1)
        for index in range(first, 10**9, every):
            yield self.data[index % len(self.data)]


class Divided(BatchSampler):
    """Every rank's own batches of those that another batch sampler draws, as Accelerate divides them."""

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if number % dist.get_world_size() == dist.get_rank():
                yield batch


def loader(feed, data):
    random = RandomSampler(data, generator=torch.Generator().manual_seed(1))
    if feed in ("same_order", "same_order_workers"):
        workers = {"num_workers": 1, "persistent_workers": True} if feed == "same_order_workers" else {}
        return DataLoader(data, BATCH, sampler=random, **workers)
    if feed == "own_order":
        own = torch.Generator().manual_seed(dist.get_rank())
        return DataLoader(data, BATCH, sampler=RandomSampler(data, generator=own))
    if feed == "own_part":
        return DataLoader(Subset(data, range(dist.get_rank(), len(data), dist.get_world_size())), BATCH)
    if feed in ("stream", "divided_stream"):
        return DataLoader(Stream(data, divided=feed == "divided_stream"), BATCH)
    if feed == "divided_batches":
        return DataLoader(data, batch_sampler=Divided(random, BATCH, drop_last=True))
    if feed == "one_batch":
        return DataLoader(Subset(data, [*range(BATCH)] * 20), BATCH)
    return DataLoader(data, BATCH, sampler=DistributedSampler(data))


def batches(feed, data):
    """Forty of them."""
    train, validation = loader(feed, data), DataLoader(data, BATCH)
    left, epoch = 40, 0
    while left:
        if isinstance(train.sampler, DistributedSampler) and feed != "no_set_epoch":
            train.sampler.set_epoch(epoch)
        for batch in train:
            yield batch, validation
            left -= 1
            if not left:
                break
        epoch += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--feed", required=True)
    feed = parser.parse_args().feed
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 32), torch.randint(0, 4, (160,)))
    model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number, ((x, y), validation) in enumerate(batches(feed, data)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if number % 5 == 0:
            with torch.no_grad():
                for inputs, _ in validation:
                    model(inputs)
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
