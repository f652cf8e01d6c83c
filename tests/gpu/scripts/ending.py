"""Training that does not end by itself: rank 1 fails in a step, or all ranks wait for a signal."""

import os
from pathlib import Path

import plain as ranks
import timing
import torch

CYCLES_PER_S = 1_900_000_000


def train(rank, device, options):
    Path(options.pids, f"rank-{rank}").write_text(str(os.getpid()), encoding="utf-8")
    model = ranks.wrap(timing.layers(64, 2), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(options.steps):
        optimizer.zero_grad()
        model(torch.randn(8, 64).to(device)).sum().backward()
        optimizer.step()
        if step == options.at_step:
            if options.busy_s:
                torch.cuda._sleep(int(options.busy_s * CYCLES_PER_S))
            Path(options.pids, f"reached-{rank}").touch()
            if options.fails and rank == 1:
                raise RuntimeError("the script fails, as it should")


if __name__ == "__main__":
    parser = ranks.parser()
    parser.add_argument("--pids", required=True, help="folder for process numbers")
    parser.add_argument("--at-step", type=int, default=12)
    parser.add_argument("--busy-s", type=float, default=0, help="seconds that the GPU is busy from that step on")
    parser.add_argument("--fails", action="store_true")
    parser.set_defaults(steps=1_000_000)
    ranks.run(train, parser.parse_args())
