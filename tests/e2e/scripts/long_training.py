"""A training that lasts long enough to be looked at: it sleeps in every step, as if it computed.

torchrun --nproc-per-node 2 long_training.py --steps 400 --sleep-ms 20
"""

import argparse
import hashlib
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def fingerprint(module):
    digest = hashlib.sha256()
    for parameter in module.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def is_there(path):
    """Return whether rank 0 sees the file, on all ranks."""
    seen = torch.tensor(float(path is not None and Path(path).exists()))
    if path is not None:
        dist.broadcast(seen, 0)
    return bool(seen)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--sleep-ms", type=float, default=20)
    parser.add_argument("--slower-from", type=int, default=1 << 30, help="steps from here on take ten times as long")
    parser.add_argument("--until", help="end before the steps are over, as soon as rank 0 sees this file")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(7)
    x = torch.randn(512, 64)
    data = TensorDataset(x, x.sum(dim=1, keepdim=True).sign())
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=16, sampler=sampler)

    layers = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(6)]
    model = DDP(nn.Sequential(*layers, nn.Linear(64, 1)), bucket_cap_mb=0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step, epoch = 0, 0
    while step < args.steps and not is_there(args.until):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            if step >= args.steps:
                break
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            time.sleep(args.sleep_ms / 1000 * (10 if step >= args.slower_from else 1))
            step += 1
        epoch += 1

    if dist.get_rank() == 0:
        print("params-sha256", fingerprint(model))
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
