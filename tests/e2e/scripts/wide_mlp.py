"""A few wide layers on small batches: little to compute, much to reduce.

WORLD_SIZE=… RANK=… MASTER_ADDR=… MASTER_PORT=… python wide_mlp.py --width 2048 --layers 4
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--bucket-cap-mb", type=float, default=25)
    parser.add_argument("--steps", type=int, default=14)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [nn.Linear(args.width, args.width, bias=False) for _ in range(args.layers)]
    model = DDP(nn.Sequential(*layers), bucket_cap_mb=args.bucket_cap_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(args.steps):
        optimizer.zero_grad()
        model(torch.randn(args.batch, args.width)).square().mean().backward()
        optimizer.step()
    dist.barrier()
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
