"""Torch's comm hooks, which send gradients in fewer bytes, and other hooks by their names."""

from __future__ import annotations

from enum import StrEnum


class Compression(StrEnum):
    """The hooks of ``torch.distributed.algorithms.ddp_comm_hooks`` that compress."""

    FP16 = "fp16"
    BF16 = "bf16"
    POWERSGD = "powersgd"

    @property
    def hook(self) -> str:
        """Name of the function in torch."""
        return "powerSGD_hook" if self is Compression.POWERSGD else f"{self.value}_compress_hook"


def sends_unchanged(comm_hook: str | None) -> bool:
    """Return whether a comm hook, if there is one, sends gradients as they are."""
    return comm_hook is None or "allreduce_hook" in comm_hook


def sends_half(comm_hook: str | None) -> bool:
    """Return whether a comm hook sends each 4 bytes of gradients in 2."""
    return comm_hook in (Compression.FP16.hook, Compression.BF16.hook)
