"""nn.DataParallel, without a process group. On a machine without an accelerator it does nothing but call its module.

python data_parallel.py
"""

import argparse
import hashlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(7)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(32 * args.steps, 64)
    loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=32, shuffle=True)
    model = nn.DataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device))
    if args.compile:
        model = torch.compile(model, backend="eager")
    optimizer = torch.optim.Adam(model.parameters())
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs.to(device)), targets.to(device)).backward()
        optimizer.step()

    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    print("params-sha256", digest.hexdigest())


if __name__ == "__main__":
    main()
