"""What to do about errors of DDP and its backends."""

from __future__ import annotations

import pytest

from ddpprof.render.error_words import advice_on_error, shortened

TWICE = (
    "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following reasons: "
    "1) Use of a module parameter outside the `forward` function."
)
ONE_GPU = "{} : rank 1 and rank 0 both on CUDA device 1000 (NCCL error in: a.cpp:9)"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        pytest.param(TWICE, "checkpoint(…, use_reentrant=False), or leave find_unused_parameters=True", id="twice"),
        pytest.param("Expected to have finished reduction in", "find_unused_parameters=True", id="unused"),
        pytest.param("Your training graph has changed in this", "find_unused_parameters=True instead", id="static"),
        pytest.param("has been modified by an inplace operation: [", "broadcast_buffers=False", id="buffers"),
        pytest.param(
            "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient.",
            "wrap only modules that are trained", id="frozen",
        ),
        pytest.param(ONE_GPU.format("Duplicate GPU detected"), "torch.cuda.set_device", id="one-gpu"),
        pytest.param(
            ONE_GPU.format("Multiple Ranks are using the same GPU/Partition"), "torch.cuda.set_device",
            id="one-gpu-of-nccl-2.30",
        ),
        pytest.param("ValueError: boom", None, id="of-the-script"),
    ],
)  # fmt: skip
def test_advice(error: str, advice: str | None) -> None:
    said = advice_on_error(error)
    assert (said is None) if advice is None else (said is not None and advice in said and "  " not in said)


def test_possible_causes_are_left_to_the_advice() -> None:
    assert shortened(TWICE) == "RuntimeError: Expected to mark a variable ready only once."
