"""What to do about errors of DDP and its backends."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

import pytest
from torch.nn.parallel import distributed

from ddpprof.topics.error_words import advice_on_error, shortened

TWICE = (
    "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following reasons: "
    "1) Use of a module parameter outside the `forward` function."
)
ONE_GPU = "{} : rank 1 and rank 0 both on CUDA device 1000 (NCCL error in: a.cpp:9)"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        pytest.param(TWICE, "checkpoint(…, use_reentrant=False), or remove find_unused_parameters=True", id="twice"),
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


def messages_of_torch() -> Iterator[str]:
    """Yield the texts of all errors in the source of DDP."""
    for node in ast.walk(ast.parse(inspect.getsource(distributed))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield text_of(node.exc)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("._log_and_throw"):
            yield text_of(node)


def text_of(call: ast.Call) -> str:
    parts = (part.value for part in ast.walk(call) if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return "".join(parts)


CLEAR = (
    "need to be set at the same time",
    "Cannot specify both process_group and device_mesh",
    "Only 1D device mesh is supported",
    "does not support overlapped DDP",
    "sample rate should be equal or greater than 1",
    "DDP join hook requires passing in",
    "hook must be callable",
    "logger must not be None",
    "when using bucket_cap_mb_list, python reducer is not supported",
)
"""texts that need no explanation"""


def test_every_error_of_ddp_is_explained() -> None:
    messages = [one for one in messages_of_torch() if " " in one and not any(clear in one for clear in CLEAR)]
    assert len(messages) >= 10
    assert [one for one in messages if advice_on_error(one) is None] == []


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("DDP expects same model across all ranks, but Rank 0 has 4 params, while rank 1 has inconsistent 6 params.",
         "build the same model"),
        ("[1]: params[0] in this process with sizes [8, 8] appears not to match sizes of the same param in process 0.",
         "build the same model"),
        ("register_comm_hook or register_builtin_comm_hook can only be called once.", "remove one of these hooks"),
        ("Can't detach views in-place. Use detach() instead. If you are using DistributedDataParallel (DDP) for",
         "zero_grad(set_to_none=True)"),
        ("Compiled autograd is not compatible with C++ DDP Reducer, please use", "python_reducer"),
        ("set_static_graph() should be called before training loop starts", "static_graph=True"),
        ("Encountered gradient which is undefined, but still allreduced by DDP reducer. This indicates a bug in DDP",
         "bug in torch"),
    ],
)  # fmt: skip
def test_errors_of_the_reducer(message: str, advice: str) -> None:
    assert advice in (advice_on_error(message) or "")


def test_possible_causes_are_left_to_the_advice() -> None:
    assert shortened(TWICE) == "RuntimeError: Expected to mark a variable ready only once."
