"""A GAN: two DDP modules, two optimizers; two discriminator backwards make one of its steps.

torchrun --nproc-per-node 2 gan.py
"""

import argparse
import hashlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(0)
    generator = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2)))
    discriminator = DDP(nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    torch.manual_seed(100 + rank)
    ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)

    for _ in range(args.steps):
        angle = torch.rand(32) * 2 * torch.pi
        real = torch.stack([angle.cos(), angle.sin()], dim=1)
        fake = generator(torch.randn(32, 16))

        discriminator_optimizer.zero_grad()
        criterion(discriminator(real), ones).backward()
        criterion(discriminator(fake.detach()), zeros).backward()
        discriminator_optimizer.step()

        discriminator.requires_grad_(False)
        generator_optimizer.zero_grad()
        criterion(discriminator.module(fake), ones).backward()
        generator_optimizer.step()
        discriminator.requires_grad_(True)

    if rank == 0:
        digest = hashlib.sha256()
        for parameter in [*generator.parameters(), *discriminator.parameters()]:
            digest.update(parameter.detach().numpy().tobytes())
        print("params-sha256", digest.hexdigest())
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
