"""How long does an all-reduce take? It is timed as in nccl-tests: the mean of several in a row."""

import statistics
import time

import plain as ranks
import torch
import torch.distributed as dist


def train(rank, device, options):
    gradient = torch.zeros(options.num_bytes // 4, device=device)
    taken = []
    for turn in range(options.steps + 3):
        dist.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter_ns()
        for _ in range(options.in_a_row):
            dist.all_reduce(gradient)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        ns = torch.tensor([(time.perf_counter_ns() - began) / options.in_a_row], dtype=torch.float64, device=device)
        dist.all_reduce(ns, op=dist.ReduceOp.MAX)
        if turn >= 3:
            taken.append(ns.item())
    ranks.tell(rank, median_ns=statistics.median(taken), num_bytes=options.num_bytes)


if __name__ == "__main__":
    parser = ranks.parser()
    parser.add_argument("--num-bytes", type=int, default=16 << 20)
    parser.add_argument("--in-a-row", type=int, default=1)
    ranks.run(train, parser.parse_args())
