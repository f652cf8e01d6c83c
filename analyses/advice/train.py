"""Train one of the models, with one thing planted that a user could change, until it is stopped.

python train.py MODEL [--plant NAME [--mended]] [--framework NAME]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Never

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from frameworks import UNDER
from interleaved import join, pin
from models import Training, parts_of

PASSES = 4
SECONDS_A_BATCH = 0.04
SMALLEST_BATCH = 0.1
"""fraction of the largest batch, if batches differ in size"""


class SlowBatches(Dataset[int]):
    """Batches that take some time to read, as from a distant disk."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> int:
        time.sleep(SECONDS_A_BATCH)
        return index


class WithUnused(nn.Module):
    """A model with a head that no forward uses."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.head = module, nn.Linear(64, 64)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.module(inputs)


class WithStatistics(nn.Module):
    """A model with many buffers, as of BatchNorm."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.norms = nn.ModuleList(nn.BatchNorm1d(256) for _ in range(60))

    def forward(self, inputs: torch.Tensor) -> Any:
        outputs = self.module(inputs)
        return outputs + 0 * sum(norm.weight.sum() + norm.bias.sum() for norm in self.norms)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "one_bucket": {"bucket_cap_mb": 1000},
    "tiny_buckets": {"bucket_cap_mb": 0.02},
    "unused_search": {"find_unused_parameters": True},
    "same_unused": {"find_unused_parameters": True},
}
WRAPPED = {"same_unused": WithUnused, "buffers": WithStatistics}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--plant")
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--framework", choices=sorted(UNDER))
    given = parser.parse_args()
    plant = None if given.mended else given.plant
    pin()
    if plant == "many_threads":
        torch.set_num_threads(8)
    if plant == "anomaly":
        torch.autograd.set_detect_anomaly(True)
    if given.framework is not None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        UNDER[given.framework](parts_of(given.model), ARGUMENTS.get(plant or "", {}))
        return
    join()
    if given.model == "gan":
        train_gan(is_wasteful=plant == "discarded")
    training = Training(given.model)
    if given.plant in WRAPPED:
        training.model.module = WRAPPED[given.plant](training.model.module)
    if given.plant == "dense_embeddings" and given.mended:
        for table in training.model.module.tables:
            table.sparse = True
    training.wrap_anew(**ARGUMENTS.get(plant or "", {}))
    if given.plant == "dense_embeddings":
        training.optimizer = torch.optim.SGD(training.model.parameters(), lr=1e-4)
    else:
        training.optimizer = torch.optim.SGD(training.model.parameters(), lr=1e-4, momentum=0.9)
    batches = iter(DataLoader(SlowBatches(), batch_size=1)) if given.plant == "slow_loader" else None
    sizes = random.Random(0 if given.mended else dist.get_rank()) if given.plant == "uneven" else None
    inputs, targets = training.inputs, training.targets
    while True:
        if sizes is not None:
            size = int(sizes.uniform(SMALLEST_BATCH, 1) * len(inputs))
            training.inputs, training.targets = inputs[:size], targets[: size * len(targets) // len(inputs)]
        step(training, plant, batches)


def train_gan(*, is_wasteful: bool) -> Never:
    """Train two networks in turn. If wasteful, each network's step also reduces gradients of the other network."""
    torch.manual_seed(dist.get_rank())
    generator, discriminator = (
        DistributedDataParallel(nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(8))))
        for _ in range(2)
    )
    of_generator, of_discriminator = (torch.optim.Adam(one.parameters(), lr=1e-4) for one in (generator, discriminator))
    while True:
        of_discriminator.zero_grad()
        with nullcontext() if is_wasteful else torch.no_grad():
            fake = generator(torch.randn(128, 512))
        (discriminator(torch.randn(128, 512)).mean() - discriminator(fake).mean()).backward()
        of_discriminator.step()
        of_generator.zero_grad()
        with nullcontext() if is_wasteful else discriminator.no_sync():
            discriminator(generator(torch.randn(128, 512))).mean().backward()
        of_generator.step()


def step(training: Training, plant: str | None, batches: Any) -> None:
    if batches is not None:
        next(batches)
    training.optimizer.zero_grad()
    for _ in range(PASSES if plant == "every_pass" else 1):
        outputs = training.model(training.inputs)
        loss = training.loss(outputs, training.targets)
        loss.backward()
    if plant == "averaging":
        for parameter in training.model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()
    training.optimizer.step()
    if plant == "metrics":
        for _ in range(20):
            dist.all_reduce(loss.detach().clone())
    if plant == "script_code":
        sum(value > 0 for row in outputs.tolist() for value in row)
    if plant == "barrier":
        for _ in range(5):
            dist.barrier()
    if plant == "straggler" and dist.get_rank() == 1:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
