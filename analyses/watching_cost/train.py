"""Train with and without ``ddpprof.watch`` in turns, within one process, and write how long each step took.

torchrun --nproc-per-node 2 train.py OUT.json --layers 8 --blocks 20 --steps 50 --sleep-ms 38
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

import ddpprof

sys.path.insert(0, str(Path(__file__).resolve().parent))
from counted import CountedEvents, by_event


def keeper_ns():
    """Return the processor time so far of ddpprof's own thread; 0 if there is none."""
    own = [thread for thread in threading.enumerate() if thread.name == "ddpprof-pulse"]
    return time.clock_gettime_ns(time.pthread_getcpuclockid(own[0].ident)) if own else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=8, help="layers, each of which is a bucket")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=20, help="pairs of blocks")
    parser.add_argument(
        "--counted-blocks", type=int, default=10, help="pairs of blocks in which ddpprof's own code is timed"
    )
    parser.add_argument("--settle", type=int, default=5, help="steps before these, in which DDP and ddpprof settle")
    parser.add_argument("--steps", type=int, default=50, help="steps of a block that count")
    parser.add_argument("--sleep-ms", type=float, default=0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers = [nn.Linear(args.width, args.width) for _ in range(args.layers)]
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1  # a bucket for each layer, the first included
    model = DDP(nn.Sequential(*layers), bucket_cap_mb=args.width * args.width * 4 / 2**20)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = DataLoader(TensorDataset(torch.randn(8 * (args.settle + args.steps), args.width)), batch_size=8)

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    blocks, counted, counting = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2 * args.blocks):
            is_watched = bool(number % 2) == bool(number // 2 % 2)  # in turns, and so is who comes first
            watched = ddpprof.watch(f"{folder}/{number}") if is_watched else nullcontext()
            wall_ns, cpu_ns = [], []
            with watched:
                block_began = time.perf_counter_ns()
                for (x,) in data:
                    began, cpu = time.perf_counter_ns(), time.thread_time_ns()
                    step(x)
                    cpu_ns.append(time.thread_time_ns() - cpu)
                    time.sleep(args.sleep_ms / 1000)
                    wall_ns.append(time.perf_counter_ns() - began)
                block_ns, own_ns = time.perf_counter_ns() - block_began, keeper_ns()
            block = {"watched": is_watched, "wall_ns": wall_ns[args.settle :], "cpu_ns": cpu_ns[args.settle :]}
            blocks.append({**block, "block_ns": block_ns, "keeper_ns": own_ns})
        for number in range(2 * args.counted_blocks):
            hears = bool(number % 2)
            with ddpprof.watch(f"{folder}/counted-{number}"):
                for position, (x,) in enumerate(data):
                    if position == args.settle:
                        events = CountedEvents(hears)
                    step(x)
                    time.sleep(args.sleep_ms / 1000)
                    if position >= args.settle:
                        events.end_step()
            steps = counted if hears else counting
            steps += events.steps
    if dist.get_rank() == 0:
        num_buckets = len(model.reducer._get_zeros_like_grad_buckets())
        counts = {"counted": by_event(counted), "counting": by_event(counting)}
        kept = {"buckets": num_buckets, "blocks": blocks, **counts}
        args.out.write_text(json.dumps(kept, separators=(",", ":")))
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
