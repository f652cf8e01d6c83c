"""Detect how the script compiles its DDP module with torch.compile. In trials, compile it in a different way.

torch.compile splits a model into one graph per bucket (`DDPOptimizer`) only if it compiles the model during DDP's
forward pass, and ``torch._dynamo.config.optimize_ddp`` is ``ddp_optimizer``.

This module is imported while torch is being imported. It imports torch's compiler only in jobs that use it, and in
trials that change it.
"""

from __future__ import annotations

import functools
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from ddpprof.errors import CannotRecord
from ddpprof.model.ddp_module import Compilation, CompiledCode, CompileOrder, OptimizeDdp
from ddpprof.record.settings import Settings

_CALLER = "_TorchDynamoContext.__call__.<locals>."
"""prefix of the qualified name of PyTorch's function that calls compiled code; code that is not compiled is called
without this function
"""
_COMPILED_WITH = "_ddpprof_compiled_with"
"""name of a module's attribute in which ddpprof stores the arguments that the script passed to the module's
``compile``
"""

_num_graphs: dict[tuple[str, ...], int] = {}
"""names of the parameters in a compiled forward pass → number of graphs into which DDPOptimizer last split this pass"""
_counts_graphs = False


def num_compiled() -> int:
    """Return how many functions torch.compile has compiled in this process, according to torch's own counters."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["frames"]["ok"])


class CompilationCounter:
    """Counts what torch.compile compiles in this process, from a step on."""

    def __init__(self, first_step: int) -> None:
        self._first_step = first_step
        self._num_before, self._before_ns = num_compiled(), _compiling_ns()

    def until(self, step: int) -> CompiledCode | None:
        """Return what was compiled until the beginning of `step`; ``None`` if nothing was."""
        num_functions = num_compiled() - self._num_before
        if not num_functions:
            return None
        return CompiledCode(step - self._first_step, num_functions, _compiling_ns() - self._before_ns)


def _compiling_ns() -> int:
    """Return the time that PyTorch has spent on compiling code in this process, according to its own timers."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    times_ns = getattr(dynamo, "cumulative_time_spent_ns", {})
    return int(sum(times_ns.get(name, 0) for name in ("entire_frame_compile", "entire_backward_compile")))


def is_at_limit() -> bool:
    """Return True if torch.compile stopped compiling a function because it had compiled that function too often."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and any(map(_AT_LIMIT.search, dynamo.counters["unimplemented"]))


_AT_LIMIT = re.compile(r"(?:recompile|cache_size)[ _]limit", re.IGNORECASE)
"""pattern for the name of PyTorch's counter of reached limits, such as ``"cache_size_limit reached"`` in torch 2.6
"""


def _has_graphs() -> bool:
    return bool(sys.modules["torch._dynamo.utils"].counters["stats"]["unique_graphs"])


def order_of(ddp: Any) -> CompileOrder | None:
    """Return the order in which DDP and torch.compile wrap the model; ``None`` if it is not compiled.

    Call this within the forward pass of `ddp`.
    """
    if ddp._compiled_call_impl is not None or _is_in_compiled_code():
        return CompileOrder.DDP_FIRST
    if _is_compiled(ddp.module):
        return CompileOrder.MODEL_FIRST
    return CompileOrder.SUBMODULES if any(map(_is_compiled, ddp.module.modules())) else None


def _is_compiled(module: Any) -> bool:
    return module._compiled_call_impl is not None or _is_optimized_module(module)


def _is_optimized_module(module: Any) -> bool:
    kind = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)
    return kind is not None and isinstance(module, kind)


def _is_in_compiled_code() -> bool:
    codes = (frame.f_code for frame, _ in traceback.walk_stack(sys._getframe(1)))
    return any(code.co_qualname.startswith(_CALLER) for code in codes)


def count_graphs() -> None:
    """Start counting DDPOptimizer's graphs, unless it has already created some. Call this if DDP is compiled."""
    global _counts_graphs
    if _counts_graphs or _has_graphs():
        return
    from torch._dynamo.backends.distributed import DDPOptimizer  # torch imports it at the latest when it splits a graph

    optimizer: Any = DDPOptimizer
    compile_fn = optimizer.compile_fn

    @functools.wraps(compile_fn)
    def compiles(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = compile_fn(self, *args, **kwargs)
        with suppress(Exception):  # `buckets` exists only for torch's own tests
            _num_graphs[tuple(name for bucket in self.buckets for name in bucket.params)] = len(self.buckets)
        return result

    optimizer.compile_fn = compiles
    _counts_graphs = True


def compilation(order: CompileOrder | None) -> Compilation | None:
    """Return a description of how a module with this `order` is compiled; ``None`` if nothing has been compiled."""
    mode = _optimize_ddp()
    if order is None or mode is None or not num_compiled():
        return None
    counts = _counts_graphs and mode == OptimizeDdp.DDP_OPTIMIZER
    return Compilation(order, mode, sum(_num_graphs.values()) if counts else None)


def _optimize_ddp() -> str | None:
    value = getattr(sys.modules.get("torch._dynamo.config"), "optimize_ddp", None)
    if isinstance(value, bool):
        return OptimizeDdp.DDP_OPTIMIZER if value else OptimizeDdp.NO_OPTIMIZATION
    return None if value is None else str(value)


def modify_compilation(distributed: ModuleType, settings: Settings) -> None:
    """Change how the script compiles DDP modules, as `settings` requires. Call this while torch is being imported.

    Raises `CannotRecord`.
    """
    if settings.optimize_ddp is None and settings.compile_order is None:
        return
    ddp, module = distributed.DistributedDataParallel, distributed.Module
    if not hasattr(module, "_compiled_call_impl"):
        raise CannotRecord("this torch version has no Module.compile, so ddpprof cannot change how DDP is compiled")
    if settings.compile_order == CompileOrder.MODEL_FIRST:
        ddp.compile = _compile_inner
    elif settings.compile_order == CompileOrder.DDP_FIRST:
        module.compile = _remembering(module.compile)
    ddp.__init__ = functools.wraps(ddp.__init__)(_constructor(ddp.__init__, settings))


def _constructor(original: Callable[..., None], settings: Settings) -> Callable[..., None]:
    def init(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        import torch._dynamo

        if settings.optimize_ddp is not None:
            config: Any = torch._dynamo.config
            config.optimize_ddp = settings.optimize_ddp
        if settings.compile_order == CompileOrder.MODEL_FIRST:
            _compile_inner_instead(torch._dynamo.eval_frame.OptimizedModule)
        compiles = None
        if settings.compile_order == CompileOrder.DDP_FIRST and _is_compiled(module):
            module, compiles = _uncompiled(module)
        original(self, module, *args, **kwargs)
        if compiles is not None:
            compiles(self)

    return init


def _uncompiled(module: Any) -> tuple[Any, Callable[[Any], None]]:
    """Return the uncompiled module, and a function that compiles another module in the same way."""
    if not _is_optimized_module(module):
        args, kwargs = getattr(module, _COMPILED_WITH)
        module._compiled_call_impl = None
        return module, lambda other: other.compile(*args, **kwargs)
    context = module.dynamo_ctx

    def compiles(other: Any) -> None:
        other._compiled_call_impl = context(other._call_impl)  # as in `Module.compile`

    return module._orig_mod, compiles


def _remembering(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def compile_module(self: Any, *args: Any, **kwargs: Any) -> None:
        self.__dict__[_COMPILED_WITH] = (args, kwargs)
        original(self, *args, **kwargs)

    return compile_module


def _compile_inner(self: Any, *args: Any, **kwargs: Any) -> None:
    """Compile the module inside DDP. This replaces the ``compile`` method of DDP."""
    self.module.compile(*args, **kwargs)


def _compile_inner_instead(optimized_module: Any) -> None:
    """Make ``torch.compile(ddp)`` compile ``ddp.module`` instead, and return a wrapper that only calls `ddp`."""
    original = optimized_module.__init__
    if getattr(original, _COMPILED_WITH, False):
        return

    @functools.wraps(original)
    def init(self: Any, mod: Any, dynamo_ctx: Any) -> None:
        if _is_ddp(mod):
            mod.module._compiled_call_impl = dynamo_ctx(mod.module._call_impl)
            dynamo_ctx = _Uncompiled()
        original(self, mod, dynamo_ctx)

    setattr(init, _COMPILED_WITH, True)
    optimized_module.__init__ = init


class _Uncompiled:
    """Replacement for the context that torch.compile creates. It returns a function without compiling it."""

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function


def _is_ddp(module: Any) -> bool:
    kind = sys.modules["torch.nn.parallel.distributed"].DistributedDataParallel
    return isinstance(module, kind)
