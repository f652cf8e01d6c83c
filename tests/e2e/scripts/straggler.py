"""Some ranks are slow in one phase of every step.

torchrun --nproc-per-node 4 straggler.py --slow 1 --phase backward --seconds 0.1
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torch.utils.data.distributed import DistributedSampler


class SleepInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


class Sleep(nn.Module):
    """Between two layers."""

    def __init__(self):
        super().__init__()
        self.in_forward = self.in_backward = 0.0

    def forward(self, x):
        time.sleep(self.in_forward)
        return SleepInBackward.apply(x, self.in_backward)


class SleepySGD(torch.optim.SGD):
    seconds = 0.0

    def step(self, closure=None):
        time.sleep(self.seconds)
        return super().step(closure)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--slow", type=int, nargs="*", default=[], help="ranks")
    parser.add_argument("--phase", choices=["data", "forward", "backward", "optimizer", "other"], default="backward")
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--since", type=int, default=0, help="the first slow step")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--averages-loss", action="store_true", help="average the loss in each step, as for a log")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(7)
    asleep = {"data": 0.0, "other": 0.0}

    def collate(samples):
        time.sleep(asleep["data"])
        return default_collate(samples)

    x = torch.randn(4096, 64)
    data = TensorDataset(x, x.sum(dim=1, keepdim=True).sign())
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data), collate_fn=collate)
    sleep = Sleep()
    net = nn.Sequential(
        nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 256), sleep, nn.ReLU(), nn.Linear(256, 1)
    )
    model = DDP(net, bucket_cap_mb=0.1)
    optimizer = SleepySGD(model.parameters(), lr=1e-3)
    for step, (inputs, targets) in zip(range(args.steps), loader, strict=False):
        seconds = args.seconds if dist.get_rank() in args.slow and step >= args.since else 0.0
        sleep.in_forward = seconds if args.phase == "forward" else 0.0
        sleep.in_backward = seconds if args.phase == "backward" else 0.0
        optimizer.seconds = seconds if args.phase == "optimizer" else 0.0
        asleep["data"] = seconds if args.phase == "data" else 0.0  # of the next batch
        time.sleep(seconds if args.phase == "other" else 0.0)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if args.averages_loss:
            dist.all_reduce(loss.detach())

    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
