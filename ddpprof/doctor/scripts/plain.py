"""Train a small model. Print a hash of its parameters, and how the process group and the devices were used.

The script starts its ranks itself, or torchrun starts them. It never calls ``torch.cuda.set_device``, so it does not
create contexts on the devices of other ranks. The scripts in tests/gpu/ import the function that starts the ranks.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PATIENCE = timedelta(seconds=60)
"""timeout of every collective"""


def parser():
    made = argparse.ArgumentParser()
    made.add_argument("--ranks", type=int, default=2)
    made.add_argument("--backend", default="gloo")
    made.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    made.add_argument("--steps", type=int, default=30)
    return made


def run(train, options):
    """Call ``train(rank, device, options)`` in every rank."""
    if "RANK" in os.environ:
        _be_rank(int(os.environ["RANK"]), train, options, "env://")
        return
    if options.device == "cpu":
        import torch._dynamo  # imported by optimizers, which takes seconds; import it once, before forking
    # CUDA does not work in forked processes.
    start = torch.multiprocessing.get_context("fork" if options.device == "cpu" else "spawn")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (train, options, f"file://{folder}/store")
        ranks = [start.Process(target=_be_rank, args=(rank, *arguments)) for rank in range(options.ranks)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    sys.exit(max(abs(rank.exitcode or 0) for rank in ranks))


def _be_rank(rank, train, options, where):
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
    dist.init_process_group(options.backend, init_method=where, rank=rank, world_size=options.ranks, timeout=PATIENCE)
    torch.manual_seed(7)
    train(rank, device, options)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    dist.destroy_process_group()


def wrap(module, device, **settings):
    ids = None if device.type == "cpu" else [device.index]
    return DistributedDataParallel(module.to(device), device_ids=ids, **settings)


def tell(rank, **facts):
    """Print the facts as one line of JSON, on rank 0 only."""
    if rank == 0:
        print(json.dumps(facts), flush=True)


SYNCHRONIZES = [(torch.cuda, "synchronize"), (torch.accelerator, "synchronize")]


def count_synchronizing_calls():
    """Wrap functions that synchronize the device. Each call to such a function is appended to the returned list."""
    calls = []
    for owner, name in SYNCHRONIZES:
        original = getattr(owner, name)

        def counted(*args, original=original, **kwargs):
            calls.append(original)
            return original(*args, **kwargs)

        setattr(owner, name, counted)
    return calls


def train(rank, device, options):
    calls = count_synchronizing_calls()
    in_window = 0
    model = wrap(nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 1)), device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(7 + rank)
    for step in range(options.steps):
        before = len(calls)
        optimizer.zero_grad()
        inputs = torch.randn(32, 64).to(device)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True).sign())
        loss.backward()
        optimizer.step()
        in_window += len(calls) - before if step < options.window else 0
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.detach().cpu().numpy().tobytes())
    contexts = []
    if device.type == "cuda":
        contexts = [i for i in range(torch.cuda.device_count()) if torch._C._cuda_hasPrimaryContext(i)]
    mine = {"contexts": [i for i in contexts if i != device.index]}
    collectives = dist.group.WORLD._get_sequence_number_for_group()
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    tell(
        rank,
        parameters=digest.hexdigest(),
        collectives=collectives,
        synchronizing_calls=len(calls) - in_window,
        foreign_contexts=sorted({i for one in everyones for i in one["contexts"]}),
        patience_s=PATIENCE.total_seconds(),
    )


if __name__ == "__main__":
    options = parser()
    options.add_argument("--window", type=int, default=0, help="do not count calls in the first N steps")
    run(train, options.parse_args())
