"""Ten small trainings under DDP, each another kind of loop.

torchrun --nproc-per-node 2 train.py NAME
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

NUM_STEPS = 20
"""number of steps: a few more than ``ddpprof trace`` records"""


def mlp(width: int = 384, num_layers: int = 6) -> nn.Sequential:
    return nn.Sequential(*[layer for _ in range(num_layers) for layer in (nn.Linear(width, width), nn.ReLU())])


def batches(*shape: int) -> Iterator[Tensor]:
    return itertools.repeat(torch.randn(*shape), NUM_STEPS)


def fit(model: nn.Module, inputs: Iterator[Tensor], optimizer: torch.optim.Optimizer | None = None) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-3)
    for x in inputs:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def plain() -> None:
    fit(DistributedDataParallel(mlp()), batches(128, 384))


def accumulation() -> None:
    """Train with no_sync() in three of four batches."""
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(32, 384)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            for _ in range(3):
                model(x).square().mean().backward()
        model(x).square().mean().backward()
        optimizer.step()


def batch_norm() -> None:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 16, 32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    fit(DistributedDataParallel(nn.Sequential(*layers)), batches(8, 3, 32, 32))


def unused_parameters() -> None:
    class WithUnusedHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.unused_head = mlp(256, 4), nn.Linear(256, 256)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    fit(DistributedDataParallel(WithUnusedHead(), find_unused_parameters=True), batches(64, 256))


def big_buckets() -> None:
    fit(DistributedDataParallel(mlp(1024, 6), bucket_cap_mb=100), batches(32, 1024))


def tiny_steps() -> None:
    fit(DistributedDataParallel(mlp(32, 2)), batches(16, 32))


class Images(Dataset[Tensor]):
    def __len__(self) -> int:
        return 64 * NUM_STEPS

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((256,), index / len(self)).sin()


def data_loader() -> None:
    images = Images()
    loader = DataLoader(images, batch_size=32, num_workers=2, sampler=DistributedSampler(images))
    fit(DistributedDataParallel(mlp(256, 6)), iter(loader))


def alternating_optimizers() -> None:
    """Train two modules one after the other, like a GAN's."""
    generator = DistributedDataParallel(mlp(256, 4))
    discriminator = DistributedDataParallel(mlp(256, 4))
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-4) for model in (generator, discriminator)]
    x = torch.randn(64, 256)
    for _ in range(NUM_STEPS):
        optimizers[1].zero_grad()
        discriminator(generator(x).detach()).square().mean().backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        discriminator(generator(x)).mean().backward()
        optimizers[0].step()


def parameter_groups() -> None:
    model = DistributedDataParallel(mlp())
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    fit(model, batches(128, 384), torch.optim.AdamW(groups, lr=1e-4))


def uneven_rank() -> None:
    """Train with a rank 1 that computes a good deal more in every forward."""

    class Slower(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(64 * dist.get_rank()):
                torch.mm(x, x.T)
            return x

    fit(DistributedDataParallel(nn.Sequential(Slower(), mlp())), batches(128, 384))


JOBS: tuple[Callable[[], None], ...] = (
    plain,
    accumulation,
    batch_norm,
    unused_parameters,
    big_buckets,
    tiny_steps,
    data_loader,
    alternating_optimizers,
    parameter_groups,
    uneven_rank,
)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    {job.__name__: job for job in JOBS}[sys.argv[1]]()
    dist.barrier()
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
