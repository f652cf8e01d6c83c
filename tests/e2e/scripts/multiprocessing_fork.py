"""multiprocessing.Process with Linux's default start method: the ranks are forks of a process that has torch loaded.

python multiprocessing_fork.py
"""

import argparse
import hashlib
import multiprocessing
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def run(rank, size, store, steps):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    torch.set_num_threads(1)
    torch.manual_seed(1234)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    torch.manual_seed(1234 + rank)
    for _ in range(steps):
        x = torch.randn(8, 32)
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if rank == 0:
        h = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
        print("params-sha256", h.hexdigest(), flush=True)
    dist.barrier()
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fork = multiprocessing.get_context("fork")
        processes = [
            fork.Process(target=run, args=(rank, options.ranks, f"{folder}/store", options.steps))
            for rank in range(options.ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    sys.exit(max(abs(process.exitcode) for process in processes))
