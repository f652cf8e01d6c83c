"""Gradient accumulation: three micro batches under no_sync, the fourth synchronizes, then one optimizer step.

torchrun --nproc-per-node 2 accumulation.py
"""

import argparse
import contextlib
import hashlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

MICRO_BATCHES = 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(40, 160), nn.ReLU(), nn.Linear(160, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank() + 1)

    for _ in range(args.steps):
        for micro in range(MICRO_BATCHES):
            last = micro == MICRO_BATCHES - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(0, 10, (8,)))
                (loss / MICRO_BATCHES).backward()
        optimizer.step()
        optimizer.zero_grad()

    if dist.get_rank() == 0:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        print("params-sha256", digest.hexdigest())
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
