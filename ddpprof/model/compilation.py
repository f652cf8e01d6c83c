"""How torch.compile is applied to a DDP module: order of the wrappers, and division of the graph."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ddpprof.model.json_files import Int64


class CompileOrder(StrEnum):
    """Order in which torch.compile and DDP wrap the model."""

    DDP_FIRST = "ddp_first"
    """``torch.compile(DistributedDataParallel(model))``, or ``ddp.compile()``"""
    MODEL_FIRST = "model_first"
    """``DistributedDataParallel(torch.compile(model))``, or ``model.compile()`` before DDP"""
    SUBMODULES = "submodules"
    """only submodules of the model are compiled"""


class OptimizeDdp(StrEnum):
    """Values of ``torch._dynamo.config.optimize_ddp``. PyTorch also accepts True for the first, False for the last."""

    DDP_OPTIMIZER = "ddp_optimizer"
    """torch.compile splits the model into one graph per bucket (the default)"""
    PYTHON_REDUCER = "python_reducer"
    """compiled autograd reduces the gradients instead of DDP's reducer"""
    PYTHON_REDUCER_WITHOUT_COMPILED_FORWARD = "python_reducer_without_compiled_forward"
    NO_OPTIMIZATION = "no_optimization"
    """the model is not split"""


class Compilation(Struct, frozen=True):
    """How torch.compile is applied to the first DDP module of a rank."""

    order: str
    """a `CompileOrder`"""
    optimize_ddp: str
    """an `OptimizeDdp`, or another value that this version of ddpprof does not know"""
    num_graphs: Int64 | None = None
    """number of graphs into which DDPOptimizer split the model; 0 if nothing was compiled, ``None`` if unknown"""
