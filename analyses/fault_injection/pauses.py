"""A training that pauses on purpose, again and again, as jobs do. It knows nothing of ddpprof.

    torchrun --nproc-per-node 2 pauses.py --pauses 20 --seed 1

A line on stdout tells of each pause. For the pause ``sleep`` the machine must be put to sleep from outside.
"""

import argparse
import io
import os
import pdb  # noqa: T100 (a pause)
import random
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

STEPS_BETWEEN = 40
KINDS = ("save", "evaluation", "own_evaluation", "first_batch", "debugger", "sleep")


class Slow(Dataset):
    """Its first sample takes long, as if files had to be opened."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 16 * STEPS_BETWEEN

    def __getitem__(self, index):
        if index == 0:
            time.sleep(self.seconds)
        return torch.randn(64)


class SlowToSave:
    """A part of a checkpoint that takes long to write."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __reduce__(self):
        time.sleep(self.seconds)
        return (SlowToSave, (0,))


class SlowForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
        self.seconds = 0

    def forward(self, x):
        time.sleep(self.seconds)
        return self.layers(x)


def save(_model, seconds):
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"model": SlowToSave(seconds)}, f"{folder}/checkpoint.pt")


def evaluation(model, seconds):
    if dist.get_rank() == 0:
        model.module.seconds = seconds / 4
        with torch.no_grad():
            for _ in range(4):
                model(torch.randn(8, 64))
        model.module.seconds = 0


def own_evaluation(model, seconds):
    if dist.get_rank() == 0:
        end = time.monotonic() + seconds
        with torch.no_grad():
            while time.monotonic() < end:
                model.module.layers(torch.randn(64, 64))


def debugger(_model, seconds):
    """A developer looks at variables, and lets the job go on."""
    if dist.get_rank() == 0:
        read, write = os.pipe()

        def developer():
            time.sleep(seconds)
            os.write(write, b"continue\n")

        threading.Thread(target=developer).start()
        pdb.Pdb(stdin=os.fdopen(read), stdout=io.StringIO(), nosigint=True).set_trace()


def sleep(_model, seconds):
    if dist.get_rank() == 0:
        print(f"sleep now for {seconds}", flush=True)


PAUSES = {
    "save": save,
    "evaluation": evaluation,
    "own_evaluation": own_evaluation,
    "debugger": debugger,
    "sleep": sleep,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pauses", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    draw = random.Random(args.seed)  # the same on all ranks
    model = DDP(SlowForward())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(args.pauses):
        kind = draw.choice(KINDS)
        seconds = draw.uniform(7, 32 if kind == "save" else 14)
        if dist.get_rank() == 0:
            print(f"pause {kind} {seconds:.1f}", flush=True)
        PAUSES.get(kind, lambda *_: None)(model, seconds)
        data = Slow(seconds if kind == "first_batch" else 0)
        for x in DataLoader(data, batch_size=16, num_workers=1 if kind == "first_batch" else 0):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            time.sleep(0.01)
    print("all pauses are over", flush=True)
    sys.stdout.flush()
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
