"""DDP, and beside it what people add: averaged parameters, a metric reduced every step, a barrier, ZeRO's optimizer.

torchrun --nproc-per-node 2 extra_collectives.py --average --metric --barrier
"""

import argparse
import hashlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    for name in ("average", "metric", "barrier", "zero"):
        parser.add_argument(f"--{name}", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 1)))
    if args.zero:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    for _ in range(args.steps):
        inputs = torch.randn(16, 64)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        loss.backward()
        if args.metric:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
        optimizer.step()
        if args.average:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()
        if args.barrier:
            dist.barrier()

    if dist.get_rank() == 0:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        print("params-sha256", digest.hexdigest())
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
