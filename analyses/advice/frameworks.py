"""The same training under Accelerate, Lightning or transformers' Trainer, whose options make the DDP module."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import torch
from models import Parts
from torch import nn
from torch.utils.data import DataLoader

MANY = 1 << 20
"""number of steps that nobody waits for"""


class WithLoss(nn.Module):
    """A model whose forward returns its loss."""

    def __init__(self, module: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.loss(self.module(inputs), targets)}


def under_accelerate(parts: Parts, arguments: Mapping[str, Any]) -> None:
    from accelerate import Accelerator, DistributedDataParallelKwargs

    inputs, targets, module, loss = parts
    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(**arguments)])
    model = WithLoss(module, loss)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9))
    for _ in range(MANY):
        optimizer.zero_grad()
        accelerator.backward(model(inputs, targets)["loss"])
        optimizer.step()


def under_lightning(parts: Parts, arguments: Mapping[str, Any]) -> None:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    inputs, targets, module, loss = parts

    class Task(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = WithLoss(module, loss)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            del batch, number
            return self.model(inputs, targets)["loss"]  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-4, momentum=0.9)

    os.environ["NODE_RANK"], os.environ["LOCAL_RANK"] = os.environ["RANK"], "0"  # each rank is a node of its own
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        num_nodes=int(os.environ["WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend="gloo", **arguments),
        max_steps=MANY,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Task(), DataLoader(range(MANY), batch_size=1))  # type: ignore[arg-type]


def under_transformers(parts: Parts, arguments: Mapping[str, Any]) -> None:
    from transformers import Trainer, TrainingArguments

    inputs, targets, module, loss = parts
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            max_steps=MANY,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **{f"ddp_{name}": value for name, value in arguments.items()},
        )
        trainer = Trainer(
            model=WithLoss(module, loss),
            args=options,
            train_dataset=range(MANY),
            data_collator=lambda _: {"inputs": inputs, "targets": targets},
        )
        trainer.train()


UNDER: Mapping[str, Callable[[Parts, Mapping[str, Any]], None]] = {
    "accelerate": under_accelerate,
    "lightning": under_lightning,
    "transformers": under_transformers,
}
"""framework → the function that trains with it; the mapping holds arguments of DDP"""
