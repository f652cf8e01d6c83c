"""torch.multiprocessing.spawn, with the rendezvous set inside the workers and RANK never in the environment.

python spawn_env_inside.py
"""

import argparse
import hashlib
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def setup(rank, world_size, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 400)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(400, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def worker(rank, world_size, port, steps):
    setup(rank, world_size, port)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ddp_model = DDP(ToyModel())
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.001)
    torch.manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        outputs = ddp_model(torch.randn(20, 10))
        loss_fn(outputs, torch.randn(20, 5)).backward()
        optimizer.step()
    if rank == 0:
        digest = hashlib.sha256()
        for p in ddp_model.parameters():
            digest.update(p.detach().numpy().tobytes())
        print("params-sha256", digest.hexdigest(), flush=True)
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    mp.spawn(worker, args=(options.ranks, free_port(), options.steps), nprocs=options.ranks, join=True)
