"""How torch.compile compiles a DDP module: the order of wrapping, and how its graph is cut."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ddpprof.model.json_files import Int64


class CompileOrder(StrEnum):
    """Which wrapper of the model comes first."""

    DDP_FIRST = "ddp_first"
    """``torch.compile(DistributedDataParallel(model))``, or ``ddp.compile()``"""
    MODEL_FIRST = "model_first"
    """``DistributedDataParallel(torch.compile(model))``, or ``model.compile()`` before DDP"""
    SUBMODULES = "submodules"
    """only submodules of the model are compiled"""


class OptimizeDdp(StrEnum):
    """Values of ``torch._dynamo.config.optimize_ddp``; torch also accepts True for the first and False for the last."""

    DDP_OPTIMIZER = "ddp_optimizer"
    """torch.compile cuts the model into one graph per bucket (torch's default)"""
    PYTHON_REDUCER = "python_reducer"
    """compiled autograd reduces the gradients instead of DDP's reducer"""
    PYTHON_REDUCER_WITHOUT_COMPILED_FORWARD = "python_reducer_without_compiled_forward"
    NO_OPTIMIZATION = "no_optimization"
    """the model is not cut"""


class Compilation(Struct, frozen=True):
    """How torch.compile compiles the first DDP module of a rank."""

    order: str
    """a `CompileOrder`"""
    optimize_ddp: str
    """an `OptimizeDdp`, or another value that this version of ddpprof does not know"""
    num_graphs: Int64 | None = None
    """number of graphs into which DDPOptimizer cut the model; 0 if it compiled no part of it, ``None`` if unknown"""
