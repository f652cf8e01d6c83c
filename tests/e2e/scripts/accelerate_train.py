"""Hugging Face Accelerate.

accelerate launch --multi_gpu --num_processes 2 accelerate_train.py     on the CPU too: --cpu starts one process only
torchrun --nproc-per-node 2 accelerate_train.py
"""

import argparse
import hashlib
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--own-seeds", action="store_true", help="each rank draws random numbers of its own")
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)
    set_seed(11)
    features = torch.randn(480, 24)
    labels = (features[:, :12].sum(1) > features[:, 12:].sum(1)).long()
    loader = DataLoader(TensorDataset(features, labels), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(24, 96), nn.GELU(), nn.LayerNorm(96), nn.Dropout(0.1), nn.Linear(96, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=30)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    if args.own_seeds:
        set_seed(11, device_specific=True)

    model.train()
    for _ in range(args.epochs):
        for batch, target in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(batch), target)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

    digest = hashlib.sha256()
    for parameter in accelerator.unwrap_model(model).parameters():
        digest.update(parameter.detach().numpy().tobytes())
    accelerator.print("params-sha256", digest.hexdigest())
    time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
    accelerator.end_training()


if __name__ == "__main__":
    main()
