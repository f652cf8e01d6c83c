"""Trains under torchrun, which starts it again: rank 1 fails in its first attempts, or it goes on until a node goes.

Steps of its second attempt take 0.1 s longer.

python elastic.py raise,kill|shrink
"""

import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 24
ENDLESS = 100_000


def main():
    endings = sys.argv[1].split(",")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    ending = endings[attempt] if attempt < len(endings) else ""
    shrinks = ending == "shrink" and dist.get_world_size() > 2
    model = DistributedDataParallel(torch.nn.Linear(64, 64), bucket_cap_mb=25 if attempt == 0 else 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(ENDLESS if shrinks else STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        if attempt == 1:
            time.sleep(0.1)
        if step == STEPS - 4 and rank == 1 and ending == "raise":
            raise ValueError("bad batch")
        if step == STEPS - 4 and rank == 1 and ending == "kill":
            os.kill(os.getpid(), 9)
        if shrinks:
            if step == STEPS and rank == 0:
                print("trains", flush=True)
            time.sleep(0.01)
    time.sleep(0.2)  # gloo's threads may abort a process that ends while they still hold work
    digest = hashlib.sha256(model.module.weight.detach().numpy().tobytes()).hexdigest()
    print(f"done {rank} {attempt} {digest}\n", end="")  # in one write: the ranks share the stream


main()
