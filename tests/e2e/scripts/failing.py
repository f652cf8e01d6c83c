"""Training that does not come to its end: ``--how NAME``.

torchrun --nproc-per-node 2 failing.py --how raise
"""

import argparse
import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def end(how):
    if how == "raise":
        raise ValueError("bad batch")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(60)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", required=True)
    how = parser.parse_args().how
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    torch.manual_seed(0)
    model = DDP(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    last = 30 if how != "uneven" or dist.get_rank() == 0 else 25
    for step in range(last):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 64)).square().mean()
        if step == 20 and dist.get_rank() == 1:
            end(how)
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
