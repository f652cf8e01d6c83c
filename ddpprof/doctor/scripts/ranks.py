"""Code shared by the training scripts, which either start their ranks or are started by torchrun."""

import argparse
import json
import os
import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
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
