"""Work that a training does in each step beside the step itself: metrics, further forwards, copies and calls."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from models import Training
from torch.distributed import rpc

Extra = Callable[[torch.Tensor], None]
"""function that is called after each step with the model's outputs"""

COMPUTED_EVERY = 20
NUM_CALLS = 24
SENT_BYTES = 1 << 20
SENT_BYTES_PER_S = 50e6
PORT = 29399
CALLED_ROWS = 512


def metrics_in_step(training: Training, is_mended: bool) -> Extra:
    """Compute torchmetrics in every step or, if mended, in every 20th."""
    from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

    num_steps = 0
    metrics: list[Any] = []

    def compute(outputs: torch.Tensor) -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps % (COMPUTED_EVERY if is_mended else 1):
            return
        num_classes = outputs.shape[1]
        if not metrics:
            metrics.append(MulticlassAccuracy(num_classes, top_k=5, sync_on_compute=False))
            metrics.append(MulticlassF1Score(num_classes, average="macro", sync_on_compute=False))
        for metric in metrics:
            metric(outputs.detach().softmax(1), training.targets)

    return compute


def unused_forwards(training: Training, is_mended: bool) -> Extra:
    """Run a second forward pass in every step; if mended, in every 20th, without gradients and without DDP."""
    num_steps = 0

    def evaluate(outputs: torch.Tensor) -> None:
        nonlocal num_steps
        num_steps += 1
        if is_mended and num_steps % COMPUTED_EVERY:
            return
        with torch.set_grad_enabled(not is_mended):
            changed = (training.model.module if is_mended else training.model)(training.inputs)
        (changed.detach() - outputs.detach()).square().mean().item()

    return evaluate


def other_traffic(_training: Training, is_mended: bool) -> Extra:
    """Send files from rank 0 to rank 1, at 400 Mbit/s; if mended, send nothing."""
    if not is_mended and dist.get_rank() < 2:
        threading.Thread(target=_send if dist.get_rank() == 0 else _receive, daemon=True).start()
    return _nothing


def _send() -> None:
    with socket.create_server(("", PORT)) as server:
        connection, _ = server.accept()
        due = time.monotonic()
        while True:
            connection.sendall(bytes(SENT_BYTES))
            due += SENT_BYTES / SENT_BYTES_PER_S
            time.sleep(max(0.0, due - time.monotonic()))


def _receive() -> None:
    connection = None
    while connection is None:
        try:
            connection = socket.create_connection((os.environ["MASTER_ADDR"], PORT))
        except OSError:
            time.sleep(0.1)
    while connection.recv(SENT_BYTES):
        pass


def calls_in_a_row(_training: Training, is_mended: bool) -> Extra:
    """Look up embeddings that another rank holds, by one remote call after another; if mended, all at once."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world_size)
    other, rows = f"rank{(rank + 1) % world_size}", torch.zeros(CALLED_ROWS, 256)

    def look_up(_outputs: torch.Tensor) -> None:
        if is_mended:
            torch.futures.wait_all([rpc.rpc_async(other, torch.neg, (rows,)) for _ in range(NUM_CALLS)])
        else:
            for _ in range(NUM_CALLS):
                rpc.rpc_sync(other, torch.neg, (rows,))

    return look_up


def _nothing(_outputs: torch.Tensor) -> None:
    pass


def nothing(_training: Training, _is_mended: bool) -> Extra:
    return _nothing


EXTRAS: Mapping[str, Callable[[Training, bool], Extra]] = {
    "metrics_in_step": metrics_in_step,
    "unused_forwards": unused_forwards,
    "other_traffic": other_traffic,
    "calls_in_a_row": calls_in_a_row,
}
"""what is planted → the function that prepares it; its flag is set if the script is mended"""
