"""Four models whose gradients come in different shapes over the backward pass, each trained on one fixed batch.

mlp: layers of equal size. convnet: its bytes are at the end and its computation at the beginning, so that most
gradients are ready early in the backward pass. transformer: the gradients of its embedding come last. embeddings: they
are nearly all of the bytes.
"""

from __future__ import annotations

import gc
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NAMES = ("mlp", "convnet", "transformer")


class Training:
    """One model under DDP, which takes `arguments`, its optimizer and its batch."""

    def __init__(self, name: str, **arguments: Any) -> None:
        torch.manual_seed(0)
        self.inputs, self.targets, module, self.loss = parts_of(name)
        self.model = DistributedDataParallel(module, **arguments)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)

    def wrap_anew(self, **arguments: Any) -> None:
        """Wrap the model in a DDP with these arguments."""
        module = self.model.module
        self.optimizer.zero_grad()  # they may be views of the buckets
        del self.model
        gc.collect()  # frees the old DDP with its reducer, whose hooks would go on
        self.model = DistributedDataParallel(module, init_sync=False, **arguments)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()


Parts = tuple[torch.Tensor, torch.Tensor, nn.Module, nn.Module]


def parts_of(name: str) -> Parts:
    """Return inputs, targets, module and loss of a model."""
    return {"mlp": mlp, "convnet": convnet, "transformer": transformer, "embeddings": embeddings}[name]()


def mlp(batch: int = 768, width: int = 512, num_layers: int = 24) -> Parts:
    layers: list[nn.Module] = []
    for _ in range(num_layers):
        linear = nn.Linear(width, width, bias=False)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")  # with torch's default, deep gradients vanish
        layers += [linear, nn.ReLU()]
    return torch.randn(batch, width), torch.randn(batch, width), nn.Sequential(*layers), nn.MSELoss()


def convnet(batch: int = 12, size: int = 64, classes: int = 1000) -> Parts:
    """A network like VGG: 3 × 3 convolutions, twice the channels after every halving, then linear layers."""
    layers: list[nn.Module] = []
    channels = 3
    for width, repeats in ((32, 2), (64, 2), (128, 2), (256, 2), (512, 2)):
        for _ in range(repeats):
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    flat = channels * (size // 32) ** 2
    head = [nn.Flatten(), nn.Linear(flat, 1024), nn.ReLU(), nn.Linear(1024, classes)]
    images, labels = torch.randn(batch, 3, size, size), torch.randint(classes, (batch,))
    return images, labels, nn.Sequential(*layers, *head), nn.CrossEntropyLoss()


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, num_layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, nhead=6, dim_feedforward=4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.to_logits = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.to_logits(self.encoder(self.tokens(tokens) + self.positions)).flatten(0, 1)


class Ranking(nn.Module):
    """Dense layers behind tables of embeddings, as for recommendations: nearly all bytes come last."""

    def __init__(self, num_tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(num_tables))
        sizes = (num_tables * width, 1024, 1024, 512)
        layers = [layer for one, two in pairwise(sizes) for layer in (nn.Linear(one, two), nn.ReLU())]
        self.dense = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.dense(torch.cat([table(column) for table, column in zip(self.tables, items.T, strict=True)], 1))


def embeddings(batch: int = 512, num_tables: int = 8, rows: int = 10_000, width: int = 64) -> Parts:
    items = torch.randint(rows, (batch, num_tables))
    return items, torch.randn(batch, 1), Ranking(num_tables, rows, width), nn.MSELoss()


def transformer(
    batch: int = 9, length: int = 64, vocabulary: int = 4000, width: int = 384, num_layers: int = 3
) -> Parts:
    tokens, targets = torch.randint(vocabulary, (2, batch, length))
    model = LanguageModel(vocabulary, length, width, num_layers)
    return tokens, targets.flatten(), model, nn.CrossEntropyLoss()
