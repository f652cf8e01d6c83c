"""How DDP modules are compiled, and how trials change it. Nothing here runs compiled code."""

from __future__ import annotations

from collections import Counter
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.nn.parallel import DistributedDataParallel

from ddpprof.errors import CannotRecord
from ddpprof.model.ddp_module import CompileOrder
from ddpprof.record import compilation
from ddpprof.record.compilation import _is_compiled, modify_compilation, order_of
from ddpprof.record.settings import Settings

pytestmark = pytest.mark.usefixtures("process_group")


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def with_compiled_layer() -> nn.Module:
    layers = model()
    layers[0].compile(backend="eager")
    return layers


def compiled_in_place(module: nn.Module) -> nn.Module:
    module.compile(backend="eager")
    return module


@pytest.mark.parametrize(
    ("module", "order"),
    [
        pytest.param(lambda: DistributedDataParallel(model()), None, id="not-compiled"),
        pytest.param(
            lambda: DistributedDataParallel(torch.compile(model(), backend="eager")),
            CompileOrder.MODEL_FIRST,
            id="compiled-model",
        ),
        pytest.param(
            lambda: DistributedDataParallel(compiled_in_place(model())), CompileOrder.MODEL_FIRST, id="model.compile"
        ),
        pytest.param(
            lambda: compiled_in_place(DistributedDataParallel(model())), CompileOrder.DDP_FIRST, id="ddp.compile"
        ),
        pytest.param(
            lambda: DistributedDataParallel(with_compiled_layer()), CompileOrder.SUBMODULES, id="compiled-layer"
        ),
    ],
)
def test_the_order_of_wrapping(module: Any, order: CompileOrder | None) -> None:
    assert order_of(module()) == order


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        pytest.param("Dynamo recompile limit exceeded\n  Explanation: …", True, id="torch-2.13"),
        pytest.param("recompile_limit reached", True, id="torch-2.8"),
        pytest.param("cache_size_limit reached", True, id="torch-2.6"),
        pytest.param("Data-dependent branching", False, id="another-reason"),
    ],
)
def test_the_limit_of_compilations(monkeypatch: pytest.MonkeyPatch, reason: str, expected: bool) -> None:
    monkeypatch.setitem(torch._dynamo.utils.counters, "unimplemented", Counter({reason: 1}))
    assert compilation.is_at_limit() is expected


def test_the_order_is_read_off_the_stack() -> None:
    """As within the forward of ``torch.compile(ddp)``."""
    ddp, orders = DistributedDataParallel(model()), []

    @torch.compile(backend="eager")
    def step() -> None:
        orders.append(order_of(ddp))

    torch._dynamo.disable(lambda: orders.append(order_of(ddp)))()
    context = torch._dynamo.eval_frame._TorchDynamoContext
    assert context.__call__.__qualname__ + ".<locals>." == compilation._CALLER
    assert step.__qualname__ == "test_the_order_is_read_off_the_stack.<locals>.step"
    assert step.__code__.co_qualname.startswith(compilation._CALLER)
    assert orders == [None]


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes DDP as in a trial with these settings."""
    monkeypatch.setattr(OptimizedModule, "__init__", OptimizedModule.__init__)
    monkeypatch.setattr(nn.Module, "compile", nn.Module.compile)
    before = torch._dynamo.config.optimize_ddp

    def made(**settings: Any) -> type[DistributedDataParallel]:
        class Changed(DistributedDataParallel):
            pass

        distributed: Any = SimpleNamespace(DistributedDataParallel=Changed, Module=nn.Module)
        modify_compilation(distributed, Settings("run", **settings))
        return Changed

    yield made
    torch._dynamo.config.optimize_ddp = before


def test_optimize_ddp_is_set_when_the_script_constructs_ddp(trial: Any) -> None:
    changed = trial(optimize_ddp="no_optimization")
    assert torch._dynamo.config.optimize_ddp is True
    changed(model())
    assert torch._dynamo.config.optimize_ddp == "no_optimization"


@pytest.mark.parametrize("compiled", [lambda one: torch.compile(one, backend="eager"), compiled_in_place])
def test_a_compiled_model_becomes_a_compiled_ddp(trial: Any, compiled: Any) -> None:
    ddp = trial(compile_order="ddp_first")(compiled(model()))
    assert isinstance(ddp.module, nn.Sequential)
    assert not _is_compiled(ddp.module)
    assert order_of(ddp) == CompileOrder.DDP_FIRST


@pytest.mark.parametrize("compiled", [lambda one: torch.compile(one, backend="eager"), compiled_in_place])
def test_a_compiled_ddp_becomes_a_compiled_model(trial: Any, compiled: Any) -> None:
    ddp = trial(compile_order="model_first")(model())
    wrapper = compiled(ddp)
    assert order_of(ddp) == CompileOrder.MODEL_FIRST
    assert getattr(wrapper, "_orig_mod", ddp) is ddp
    assert "forward" not in vars(wrapper) or not hasattr(wrapper.forward, "get_compiler_config")


@pytest.mark.parametrize("order", ["ddp_first", "model_first"])
def test_what_already_has_the_order_stays(trial: Any, order: str) -> None:
    made = trial(compile_order=order)
    ddp = compiled_in_place(made(model())) if order == "ddp_first" else made(compiled_in_place(model()))
    assert order_of(ddp) == order


def test_a_torch_without_compile_methods_is_refused_in_words() -> None:
    old: Any = SimpleNamespace(DistributedDataParallel=DistributedDataParallel, Module=object)
    with pytest.raises(CannotRecord, match=r"has no Module\.compile"):
        modify_compilation(old, Settings("run", compile_order="ddp_first"))


def test_nothing_is_changed_unless_a_trial_asks() -> None:
    untouched: Any = SimpleNamespace()
    modify_compilation(untouched, Settings("run"))


def test_what_is_compiled_from_a_step_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each length of the input compiles the function again; PyTorch's timers are part of the time that it takes."""
    monkeypatch.setitem(torch._dynamo.utils.counters, "frames", Counter())

    @torch.compile(backend="eager", dynamic=False)
    def double(values: torch.Tensor) -> torch.Tensor:
        return values * 2

    double(torch.zeros(1))
    counter = compilation.CompilationCounter(3)
    assert counter.until(5) is None
    began = perf_counter_ns()
    for length in (2, 3, 4):
        double(torch.zeros(length))
    took_ns = perf_counter_ns() - began
    compiled = counter.until(9)
    assert compiled is not None
    assert (compiled.num_steps, compiled.num_functions) == (6, 3)
    assert 0.3 * took_ns < compiled.taken_ns < took_ns
