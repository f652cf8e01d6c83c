"""Training that does not come to its end: ``--how NAME``.

torchrun --nproc-per-node 2 failing.py --how raise
"""

import argparse
import os
import signal
import socket
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def end(how):
    if how == "raise":
        raise ValueError("bad batch")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(60)
    if how == "memory":
        kept = []
        while True:
            kept.append(bytearray(2**24))
    if how == "swap":
        Path(os.environ["GROUP"], "cgroup.procs").write_text(str(os.getpid()))
        needed = bytearray(600 * 2**20)
        while True:
            for page in range(0, len(needed), 4096):
                needed[page] += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", required=True)
    parser.add_argument("--spawn", action="store_true", help="start two ranks with mp.spawn")
    args = parser.parse_args()
    if args.how == "swallow":  # the error of rank 1, and that of rank 0 because its peer has left
        try:
            train("raise")
        except Exception as error:
            print(f"stopped early: {error}", flush=True)
        return
    if not args.spawn:
        train(args.how)
        return
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE="2")
    mp.spawn(rank_of_spawn, (args.how,), nprocs=2)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def rank_of_spawn(rank, how):
    os.environ["RANK"] = str(rank)
    train(how)


def train(how):
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    if how in ("hang", "uneven"):  # a short timeout, which does not count while ranks still start
        dist.barrier()
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=5))
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
