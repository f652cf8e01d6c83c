"""A training that hangs, or pauses, in a way that its argument names."""

import os
import socket
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

HOW, STEP = sys.argv[1], 40
BEFORE_STEP = HOW in ("barrier_in_first_step", "starts_slowly")


def skips_barrier(rank, step):
    if step % 10 == 0 and (rank, step) != (1, STEP):
        dist.barrier()  # FAULT skips_barrier


def sleeps_before_async(rank, step):
    if (rank, step) == (1, STEP):
        time.sleep(1000)  # FAULT sleeps_before_async
    dist.all_reduce(torch.ones(3), async_op=True).wait()


def reads_a_pipe(rank, step):
    if (rank, step) == (1, STEP):
        os.mkfifo("pipe")
        with Path("pipe").open() as pipe:  # FAULT reads_a_pipe
            pipe.read()


def waits_for_the_network(rank, step):
    if (rank, step) == (0, STEP):
        here, there = socket.socketpair()
        threading.Timer(8, lambda: there.send(b"x")).start()
        here.recv(1)  # FAULT waits_for_the_network


def evaluates_early(rank, step):
    if step == 12:
        MODEL.eval()
        end = time.monotonic() + (12 if rank == 0 else 4)
        with torch.no_grad():
            while time.monotonic() < end:
                MODEL.module(torch.randn(4, 64))
                time.sleep(0.02)
        dist.barrier()
        MODEL.train()


def barrier_in_first_step(rank, step):
    if (rank, step) == (1, 0):
        dist.barrier()  # FAULT barrier_in_first_step


def starts_slowly(rank, step):
    if (rank, step) == (1, 0):
        time.sleep(40)


dist.init_process_group("gloo")
torch.manual_seed(0)
MODEL = DDP(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)))
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), 1e-3)
for number in range(60):
    if BEFORE_STEP:
        globals()[HOW](dist.get_rank(), number)
    OPTIMIZER.zero_grad()
    MODEL(torch.randn(4, 64)).square().mean().backward()
    OPTIMIZER.step()
    if not BEFORE_STEP:
        globals()[HOW](dist.get_rank(), number)
    time.sleep(0.01)
dist.barrier()
dist.destroy_process_group()
