"""Train one of the models, with one thing planted that a user could change, until it is stopped.

python train.py MODEL [--plant NAME [--mended]] [--framework NAME]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Never

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from extras import EXTRAS, nothing
from frameworks import UNDER
from interleaved import join, pin
from models import LanguageModel, Training, parts_of

PASSES = 4
SECONDS_A_BATCH = 0.04
DECAYS = (0.9, 0.99, 0.999, 0.9999)
AVERAGED_EVERY = 10
SMALLEST_BATCH = 0.1
"""fraction of the largest batch, if batches differ in size"""


class SlowBatches(Dataset[int]):
    """Batches that take some time to read, as from a distant disk."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> int:
        time.sleep(SECONDS_A_BATCH)
        return index


class PaddedSequences(Dataset[dict[str, torch.Tensor]]):
    """Batches of sequences of 8 to 24 tokens, padded to the length of `tokens` or, if cut, to the longest sequence."""

    def __init__(self, tokens: torch.Tensor, *, is_cut: bool) -> None:
        self.tokens, self.is_cut = tokens, is_cut

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        size, length = self.tokens.shape
        lengths = torch.randint(8, 25, (size, 1), generator=torch.Generator().manual_seed(index))
        mask = (torch.arange(length) < lengths).long()
        end = int(lengths.max()) if self.is_cut else length
        tokens = self.tokens.roll(index)
        batch = {"input_ids": tokens, "labels": tokens, "attention_mask": mask}
        return {name: values[:, :end] for name, values in batch.items()}


class OfAnyLength(nn.Module):
    """The transformer for sequences of any length up to its own."""

    def __init__(self, module: LanguageModel) -> None:
        super().__init__()
        self.module = module

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        inner = self.module
        embedded = inner.tokens(tokens) + inner.positions[: tokens.shape[1]]
        return inner.to_logits(inner.encoder(embedded)).flatten(0, 1)  # type: ignore[no-any-return]


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


class WithHeads(nn.Module):
    """A model with two heads that take turns, and with a stem.

    DDP must search for unused parameters, so it fills buckets in reverse order of definition. If the stem is defined
    last, the first bucket waits for the gradient that comes last.
    """

    def __init__(self, module: nn.Module, *, stem_is_last: bool) -> None:
        super().__init__()
        if not stem_is_last:
            self.stem = nn.Linear(512, 512)
        self.module = module
        self.heads = nn.ModuleList(nn.Linear(512, 512) for _ in range(2))
        if stem_is_last:
            self.stem = nn.Linear(512, 512)
        self.num_forwards = 0

    def forward(self, inputs: torch.Tensor) -> Any:
        self.num_forwards += 1
        return self.heads[self.num_forwards % 2](self.module(self.stem(inputs)))


class Exchange(torch.autograd.Function):
    """Subtract the mean over the batches of all ranks, as SyncBatchNorm does."""

    @staticmethod
    def forward(_context: Any, inputs: torch.Tensor) -> torch.Tensor:
        mean = inputs.flatten(0, -2).mean(0)
        dist.all_reduce(mean)
        return inputs - mean / dist.get_world_size()

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        mean = gradient.flatten(0, -2).mean(0)
        dist.all_reduce(mean)
        return gradient - mean / dist.get_world_size()


def exchange(_layer: nn.Module, _inputs: Any, outputs: torch.Tensor) -> torch.Tensor:
    return Exchange.apply(outputs)


def clipped(gradient: torch.Tensor) -> torch.Tensor:
    """Limit each value to ten times the median, as a hook on every parameter."""
    limit = 10 * gradient.abs().median().item()
    return gradient.clamp(-limit, limit)


class Averages:
    """Running averages of each parameter, with several decays, which are updated after every `every`-th step."""

    def __init__(self, model: nn.Module, every: int) -> None:
        self.parameters, self.every, self.num_steps = list(model.parameters()), every, 0
        self.averages = {decay: [one.detach().clone() for one in self.parameters] for decay in DECAYS}

    @torch.no_grad()
    def update(self) -> None:
        self.num_steps += 1
        if self.num_steps % self.every == 0:
            for decay, averages in self.averages.items():
                for average, parameter in zip(averages, self.parameters, strict=True):
                    average.mul_(decay).add_(parameter, alpha=1 - decay)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "one_bucket": {"bucket_cap_mb": 1000},
    "tiny_buckets": {"bucket_cap_mb": 0.02},
    "unused_search": {"find_unused_parameters": True},
    "same_unused": {"find_unused_parameters": True},
}
SEARCHES = {"late_stem": {"find_unused_parameters": True, "bucket_cap_mb": 4}}
"""arguments that the mended script has, too"""
WRAPPED = {"same_unused": WithUnused, "buffers": WithStatistics, "padded": OfAnyLength}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--plant")
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--framework", choices=sorted(UNDER))
    given = parser.parse_args()
    plant = None if given.mended else given.plant
    pin()
    if plant == "shared_core":
        os.sched_setaffinity(0, {0})
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
    change_model(training.model, given.plant, is_mended=given.mended)
    training.wrap_anew(**ARGUMENTS.get(plant or "", {}), **SEARCHES.get(given.plant or "", {}))
    if plant == "gradient_hooks":
        for parameter in training.model.parameters():
            parameter.register_hook(clipped)
    training.optimizer = optimizer_of(training.model, given.plant, is_mended=given.mended)
    if plant == "double":
        training.inputs, training.targets = training.inputs.double(), training.targets.double()
    batches = batches_of(training, given.plant, is_mended=given.mended)
    extra = EXTRAS.get(given.plant or "", nothing)(training, given.mended)
    teacher = parts_of(given.model)[2] if given.plant == "teacher" else None
    every = AVERAGED_EVERY if given.mended else 1
    averages = Averages(training.model, every) if given.plant == "averages" else None
    for training.inputs, training.targets in batches:
        outputs = step(training, plant, teacher)
        extra(outputs)
        if averages is not None:
            averages.update()


def batches_of(
    training: Training, plant: str | None, *, is_mended: bool
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches without end: the same one, or parts of it."""
    inputs, targets = training.inputs, training.targets
    if plant == "padded":
        sequences = PaddedSequences(inputs, is_cut=is_mended)
        for batch in DataLoader(sequences, batch_size=None, sampler=DistributedSampler(sequences, shuffle=False)):
            yield batch["input_ids"], batch["labels"].flatten()
    if plant == "slow_loader":
        for _ in DataLoader(SlowBatches(), batch_size=1):
            yield inputs, targets
    sizes = random.Random(0 if is_mended else dist.get_rank())
    while True:
        size = len(inputs)
        if plant in ("uneven", "recompiled"):
            size = int(sizes.uniform(SMALLEST_BATCH, 1) * size)
        yield inputs[:size], targets[: size * len(targets) // len(inputs)]


def change_model(ddp: DistributedDataParallel, plant: str | None, *, is_mended: bool) -> None:
    """Change the model that is planted in: what it wraps, and hooks of its layers."""
    if plant in WRAPPED:
        ddp.module = WRAPPED[plant](ddp.module)
    if plant == "late_stem":
        ddp.module = WithHeads(ddp.module, stem_is_last=not is_mended)
    if plant == "dense_embeddings" and is_mended:
        for table in ddp.module.tables:
            table.sparse = True
    if plant == "forgotten" and is_mended:
        for parameter in first_half(ddp.module):
            parameter.requires_grad_(False)
    if plant == "double" and not is_mended:
        ddp.module.double()
    if plant in ("one_graph", "recompiled"):
        torch._dynamo.config.optimize_ddp = is_mended or plant == "recompiled"  # type: ignore[assignment]
        torch._dynamo.config.recompile_limit = 1 << 20
        is_dynamic = is_mended if plant == "recompiled" else None
        ddp.module = torch.compile(ddp.module, backend="aot_eager", dynamic=is_dynamic)
    if plant == "exchange" and not is_mended:
        for layer in ddp.module.modules():
            if isinstance(layer, nn.Linear | nn.LayerNorm):
                layer.register_forward_hook(exchange)


def first_half(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the first half of the layers."""
    parameters = list(model.parameters())
    return parameters[: len(parameters) // 2]


def optimizer_of(model: nn.Module, plant: str | None, *, is_mended: bool) -> torch.optim.Optimizer:
    if plant == "sharded_optimizer" and not is_mended:
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1e-4, momentum=0.9)
    if plant == "unfused":
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=is_mended)
    left_out = {id(one) for one in first_half(model)} if plant == "forgotten" else set()
    trained = [one for one in model.parameters() if id(one) not in left_out]
    return torch.optim.SGD(trained, lr=1e-4, momentum=0.0 if plant == "dense_embeddings" else 0.9)


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


def step(training: Training, plant: str | None, teacher: nn.Module | None) -> torch.Tensor:
    """Train for one step. Return the outputs of the model."""
    training.optimizer.zero_grad()
    for _ in range(PASSES if plant == "every_pass" else 1):
        outputs = training.model(training.inputs)
        loss = training.loss(outputs, training.targets)
        if teacher is not None:
            with nullcontext() if plant == "teacher" else torch.no_grad():
                aims = teacher(training.inputs)
            loss = loss + 1e-3 * nn.functional.mse_loss(outputs, aims)
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
    return outputs  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
