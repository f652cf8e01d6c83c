"""A training that ends with one of DDP's own errors, or with what it advises: ddp_errors.py KIND [--mended]."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

KIND, MENDED = sys.argv[1], "--mended" in sys.argv
UNUSED = ("unused", "unused_later", "graph_changes")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Linear(8, 8), nn.Linear(8, 8)
        if KIND in (*UNUSED, "checkpoint", "outside"):
            self.spare = nn.Linear(8, 8)

    def forward(self, inputs: torch.Tensor, number: int) -> torch.Tensor:
        hidden = self.stem(inputs)
        if KIND == "checkpoint":
            return checkpoint(self.block, hidden, use_reentrant=MENDED is False)  # type: ignore[no-any-return]
        if KIND == "shared_checkpoint":
            hidden = checkpoint(self.block, hidden, use_reentrant=MENDED is False)
            return checkpoint(self.block, hidden, use_reentrant=MENDED is False)  # type: ignore[no-any-return]
        hidden = self.block(hidden)
        return self.spare(hidden) if KIND in UNUSED[1:] and number < 3 else hidden  # type: ignore[no-any-return]


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    searches = KIND == "checkpoint" or (KIND == "outside" and not MENDED) or (KIND in UNUSED and MENDED)
    static = KIND == "graph_changes" and not MENDED
    model = DistributedDataParallel(Model(), find_unused_parameters=searches, static_graph=static)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(6):
        optimizer.zero_grad()
        outputs = model(torch.randn(4, 8), number)
        if KIND == "outside":
            outputs = model.module.spare(outputs)
        outputs.sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
