"""Each knob by the name that it has in the user's framework, and in the versions that are installed."""

from __future__ import annotations

import inspect
import re

import pytest
from observations import MS, observed, only
from tables import ddp_module

from ddpprof.engine.frameworks import accumulation, compression, ddp_argument, load_with, without_ddp_argument


@pytest.mark.parametrize(
    ("framework", "said"),
    [
        (None, "DistributedDataParallel(model, static_graph=True)"),
        ("transformers", "TrainingArguments(ddp_static_graph=True)"),
        ("accelerate", "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(static_graph=True)])"),
        ("lightning", "Trainer(strategy=DDPStrategy(static_graph=True))"),
        ("fabric", "Fabric(strategy=DDPStrategy(static_graph=True))"),
    ],
)
def test_an_argument_of_ddp(framework: str | None, said: str) -> None:
    assert ddp_argument(framework, "static_graph=True") == said


@pytest.mark.parametrize("framework", ["transformers", "accelerate"])
def test_an_argument_for_which_a_framework_has_no_option(framework: str) -> None:
    assert "has no option" in ddp_argument(framework, "bucket_cap_mb_list=[1, 25]")


def test_options_that_transformers_has() -> None:
    options = pytest.importorskip("transformers").TrainingArguments.__dataclass_fields__
    for name in ("broadcast_buffers", "bucket_cap_mb", "find_unused_parameters", "static_graph"):
        (option,) = re.findall(r"\((\w+)=", ddp_argument("transformers", f"{name}=1"))
        assert option in options
    assert set(re.findall(r"(\w+)=", load_with("transformers", 2, True))) <= options.keys()


def test_options_that_accelerate_has() -> None:
    accelerate = pytest.importorskip("accelerate")
    options = inspect.signature(accelerate.DistributedDataParallelKwargs).parameters
    names = ("broadcast_buffers", "bucket_cap_mb", "find_unused_parameters", "gradient_as_bucket_view", "static_graph")
    assert all("has no option" not in ddp_argument("accelerate", f"{name}=1") for name in names)
    assert set(names) <= options.keys()
    assert "comm_hook" in options
    assert hasattr(accelerate.DDPCommunicationHookType, "FP16")


@pytest.mark.parametrize(
    ("framework", "backend", "said"),
    [
        (None, "gloo", "ddp.register_comm_hook(ddp.process_group, default_hooks.fp16_compress_hook)"),
        (None, "nccl", "ddp.register_comm_hook(ddp.process_group, default_hooks.bf16_compress_hook)"),
        ("accelerate", "gloo", "DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)"),
        ("lightning", "nccl", "DDPStrategy(ddp_comm_hook=default_hooks.bf16_compress_hook)"),
        ("lightning", "gloo", None),
        ("transformers", "nccl", None),
    ],
)
def test_a_comm_hook(framework: str | None, backend: str, said: str | None) -> None:
    found = compression(framework, backend)
    assert found is None if said is None else said in (found or "")


def test_several_arguments() -> None:
    given = ("bucket_cap_mb=5", "static_graph=True")
    assert ddp_argument(None, *given) == "DistributedDataParallel(model, bucket_cap_mb=5, static_graph=True)"
    assert ddp_argument("transformers", *given) == "TrainingArguments(ddp_bucket_cap_mb=5, ddp_static_graph=True)"
    assert ddp_argument(None) == "DistributedDataParallel(model)"
    assert ddp_argument("transformers", "bucket_cap_mb=5", "gradient_as_bucket_view=True") == (
        "TrainingArguments(ddp_bucket_cap_mb=5), and gradient_as_bucket_view=True of DistributedDataParallel "
        "(transformers' Trainer has no option for it)"
    )


@pytest.mark.parametrize(
    ("framework", "begin"),
    [(None, "from the second step on (required by static_graph=True)"), ("accelerate", "without static_graph")],
)
def test_a_static_graph_limits_accumulation(framework: str | None, begin: str) -> None:
    assert accumulation(framework, static_graph=True).startswith(f"{begin}, accumulate gradients")
    assert accumulation(framework, static_graph=False).startswith("accumulate gradients over several batches: ")


def test_a_trainer_switches_the_search_off_by_its_own_option() -> None:
    assert without_ddp_argument("transformers", "find_unused_parameters") == (
        "TrainingArguments(ddp_find_unused_parameters=False)"
    )


@pytest.mark.parametrize("framework", ["transformers", "accelerate", "lightning", "fabric"])
def test_no_finding_tells_a_frameworks_user_to_wrap_the_model(framework: str) -> None:
    module = ddp_module(gradient_as_bucket_view=False)
    finding = only(observed(module, copy_out_ns=9 * MS, framework=framework))
    assert "DistributedDataParallel(model" not in finding.advice
    assert "gradient_as_bucket_view=True" in finding.advice
