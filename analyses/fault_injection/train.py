"""A training into which a fault is planted. It knows nothing of ddpprof.

    torchrun --nproc-per-node 2 train.py --fault sleep --rank 1 --step 60

The line that a verdict on the fault should name ends with ``# FAULT`` and the fault's name.
"""

import argparse
import ctypes
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

BATCH = 16


class Numbers(Dataset):
    """Random inputs; one sample may stall the worker that reads it."""

    def __init__(self, args, is_faulty_rank):
        self.num_batches = args.step if is_faulty_rank and args.fault == "uneven" else args.num_steps
        self.stalls_at = args.step * BATCH if is_faulty_rank and args.fault == "worker" else None

    def __len__(self):
        return BATCH * self.num_batches

    def __getitem__(self, index):
        if index == self.stalls_at:
            time.sleep(1000)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(64, generator=generator), torch.randn(1, generator=generator)


class Branching(nn.Module):
    """A model one of whose layers may be left out."""

    def __init__(self, width=768):
        super().__init__()
        self.first, self.branch, self.last = nn.Linear(64, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.takes_branch = True

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return self.last(self.branch(hidden) if self.takes_branch else hidden)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        first, second = nn.Conv1d(1, 128, 3), nn.Conv1d(128, 16, 3)
        self.layers = nn.Sequential(first, nn.BatchNorm1d(128), nn.ReLU(), second, nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(16 * 60, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, x):
        return self.head(self.layers(x.unsqueeze(1)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.last = nn.Linear(8, 64), nn.Linear(64, 1)
        blocks = (nn.TransformerEncoderLayer(64, 2, 512, batch_first=True) for _ in range(6))
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x):
        return self.last(self.blocks(self.embed(x.view(-1, 8, 8))).mean(1))


MODELS = {"mlp": Branching, "convolutions": Convolutions, "attention": Attention}


class Stalls(torch.autograd.Function):
    """Identity whose backward may sleep."""

    armed = False

    @staticmethod
    def forward(_context, x):
        return x.view_as(x)

    @staticmethod
    def backward(_context, gradient):
        if Stalls.armed:
            time.sleep(1000)  # FAULT backward
        return gradient


def sleep(_args):
    time.sleep(1000)  # FAULT sleep


def barrier(_args):
    dist.barrier()  # FAULT barrier


def all_reduce(_args):
    dist.all_reduce(torch.ones(3))  # FAULT all_reduce


def broadcast(_args):
    dist.broadcast(torch.ones(5), src=dist.get_rank())  # FAULT broadcast


def lock(_args):
    held = threading.Lock()
    held.acquire()
    held.acquire()  # FAULT lock


def empty_queue(_args):
    queue.Queue().get()  # FAULT queue


def stop(_args):
    os.kill(os.getpid(), signal.SIGSTOP)


def kill(_args):
    os.kill(os.getpid(), signal.SIGKILL)


def error(_args):
    raise ValueError("the batch is empty")  # FAULT error


def end(_args):
    sys.exit(3)


def hold_interpreter(_args):
    ctypes.PyDLL(None).sleep(1000)


def save(args):
    torch.save({"model": 1}, args.pipe)


BEFORE_FORWARD = {
    "sleep": sleep,
    "barrier": barrier,
    "all_reduce": all_reduce,
    "broadcast": broadcast,
    "lock": lock,
    "queue": empty_queue,
    "stop": stop,
    "kill": kill,
    "error": error,
    "exit": end,
    "interpreter": hold_interpreter,
    "save": save,
}


def train(args, rank):
    torch.set_num_threads(1)
    torch.manual_seed(5)
    model = MODELS[args.model]()
    ddp = DDP(model, bucket_cap_mb=0.25)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    loader = DataLoader(Numbers(args, rank == args.rank), batch_size=BATCH, num_workers=int(args.fault == "worker"))
    for step, (x, y) in enumerate(loader):
        if step == args.step:
            Path("fault-time").write_text(str(time.time()), encoding="utf-8")
        fault = args.fault if step == args.step and rank == args.rank else None
        BEFORE_FORWARD.get(fault, lambda _: None)(args)
        optimizer.zero_grad()
        Stalls.armed = fault == "backward"
        model.takes_branch = fault != "unused"
        out = ddp(Stalls.apply(x.requires_grad_()))
        nn.functional.mse_loss(out, y).backward()
        if fault == "after_backward":
            time.sleep(1000)  # FAULT after_backward
        optimizer.step()
        time.sleep(args.sleep_ms / 1000)
    dist.barrier()  # FAULT uneven
    time.sleep(0.2)
    dist.destroy_process_group()


def spawned(rank, args):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(args.spawn))
    dist.init_process_group("gloo")
    train(args, rank)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--step", type=int, default=60)
    parser.add_argument("--num-steps", type=int, default=100000)
    parser.add_argument("--sleep-ms", type=float, default=10)
    parser.add_argument("--model", choices=MODELS, default="mlp")
    parser.add_argument("--pipe", help="a pipe that nobody reads, for the fault save")
    parser.add_argument("--spawn", type=int, help="start this many ranks by multiprocessing, instead of torchrun")
    args = parser.parse_args()
    if args.spawn:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        mp.spawn(spawned, (args,), args.spawn)
        return
    dist.init_process_group("gloo")
    train(args, dist.get_rank())


if __name__ == "__main__":
    main()
