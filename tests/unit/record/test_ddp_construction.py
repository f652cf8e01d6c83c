"""DDP while it is constructed: its parameters, the comparison with rank 0, and DDP modified for trials."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from ddpprof.errors import DdpprofError
from ddpprof.model import StepMode
from ddpprof.record.ddp_construction import (
    DdpModel,
    ModelComparison,
    _constructor,
    differing_arguments,
    differing_parameters,
    modify_ddp,
    noting_parameters,
    reducer_parameters,
    switch_ddp,
    unfrozen_parameters,
)
from ddpprof.record.ddp_module import RecordedModule
from ddpprof.record.settings import Settings
from ddpprof.record.step_notes import StepNotes

ALL = ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> None:
    original = DistributedDataParallel._ddp_init_helper
    monkeypatch.setattr(DistributedDataParallel, "_ddp_init_helper", noting_parameters(original))


def train(ddp: DistributedDataParallel) -> None:
    """Take one step with all parameters that need gradients."""
    optimizer = torch.optim.SGD([one for one in ddp.parameters() if one.requires_grad], lr=0.1)
    ddp(torch.randn(2, 4)).sum().backward()
    optimizer.step()


def model(*, is_frozen: bool) -> nn.Sequential:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    layers[0].requires_grad_(not is_frozen)
    return layers


@pytest.mark.usefixtures("process_group")
@pytest.mark.usefixtures("noting")
def test_the_reducer_keeps_parameters_that_are_frozen_later() -> None:
    ddp = DistributedDataParallel(model(is_frozen=False), find_unused_parameters=True)
    ddp.module[0].requires_grad_(False)
    assert reducer_parameters(ddp).names == ALL
    module = RecordedModule(ddp, 0)
    module.begin_step(StepMode.LIGHT)
    ddp(torch.randn(2, 4)).sum().backward()
    module.begin_step(StepMode.DONE)
    described = module.describe()
    assert [one.name for one in described.parameters] == ALL
    assert sorted(index for bucket in described.buckets for index in bucket) == [0, 1, 2, 3]
    assert unfrozen_parameters(ddp) == ()


@pytest.mark.usefixtures("process_group")
@pytest.mark.usefixtures("noting")
def test_the_reducer_does_not_know_parameters_that_are_unfrozen_later() -> None:
    ddp = DistributedDataParallel(model(is_frozen=True))
    assert unfrozen_parameters(ddp) == ()
    ddp.module[0].requires_grad_(True)
    assert unfrozen_parameters(ddp) == ()
    assert unfrozen_parameters(ddp) == (), "a gradient alone changes nothing"
    train(ddp)
    assert reducer_parameters(ddp).names == ALL[2:]
    assert unfrozen_parameters(ddp) == ("0.weight", "0.bias")


@pytest.mark.usefixtures("process_group")
@pytest.mark.usefixtures("noting")
def test_parameters_that_ddp_is_told_to_ignore_are_not_missed() -> None:
    layers = model(is_frozen=True)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(layers, ["0.weight"])
    ddp = DistributedDataParallel(layers)
    ddp.module[0].requires_grad_(True)
    unfrozen_parameters(ddp)
    train(ddp)
    assert unfrozen_parameters(ddp) == ("0.bias",)


@pytest.mark.usefixtures("process_group")
@pytest.mark.usefixtures("noting")
def test_what_another_ddp_module_averages_is_not_missed() -> None:
    before = DistributedDataParallel(model(is_frozen=True))
    before.module[0].requires_grad_(True)
    assert unfrozen_parameters(before) == ()
    again = DistributedDataParallel(before.module)
    train(again)
    assert unfrozen_parameters(before) == ()


@pytest.mark.usefixtures("process_group")
@pytest.mark.usefixtures("noting")
def test_values_that_are_loaded_before_unfreezing_are_not_trained() -> None:
    ddp = DistributedDataParallel(model(is_frozen=True))
    ddp.module.load_state_dict(model(is_frozen=True).state_dict())
    ddp.module[0].requires_grad_(True)
    assert unfrozen_parameters(ddp) == ()
    assert unfrozen_parameters(ddp) == ()


@pytest.mark.usefixtures("process_group")
@pytest.mark.usefixtures("noting")
def test_ddp_is_taken_away_and_put_back_though_parameters_were_frozen_since() -> None:
    ddp = DistributedDataParallel(model(is_frozen=False), find_unused_parameters=True)
    ddp.module[0].requires_grad_(False)
    switch_ddp(ddp, on=False)
    switch_ddp(ddp, on=True)
    assert reducer_parameters(ddp).names == ALL[2:], "the new reducer has those that are trained now"
    ddp(torch.randn(2, 4)).sum().backward()


@pytest.mark.usefixtures("process_group")
@pytest.mark.usefixtures("noting")
def test_notes_keep_no_parameter_alive() -> None:
    ddp = DistributedDataParallel(model(is_frozen=True))
    parameter = weakref.ref(ddp.module[1].weight)
    del ddp
    gc.collect()
    assert parameter() is None


@pytest.mark.usefixtures("process_group")
@pytest.mark.usefixtures("noting")
def test_notes_remember_what_was_trained_once() -> None:
    ddp = DistributedDataParallel(model(is_frozen=True))
    notes = StepNotes()
    notes.module(ddp)
    ddp.module[0].bias.requires_grad_(True)
    assert notes.unfrozen() == ()
    train(ddp)
    assert notes.unfrozen() == ("0.bias",)
    ddp.module[0].requires_grad_(False)
    assert notes.facts(0)["unfrozen"] == ("0.bias",)


@pytest.mark.usefixtures("process_group")
def test_a_module_constructed_before_is_described_as_it_is_now() -> None:
    ddp = DistributedDataParallel(model(is_frozen=True))
    assert reducer_parameters(ddp).names == ALL[2:]
    assert unfrozen_parameters(ddp) == ()


@pytest.mark.usefixtures("process_group")
def test_a_module_constructed_before_and_changed_since_cannot_be_described() -> None:
    ddp = DistributedDataParallel(model(is_frozen=False), find_unused_parameters=True)
    ddp.module[0].requires_grad_(False)
    with pytest.raises(DdpprofError, match="frozen or unfrozen parameters since it constructed DDP"):
        reducer_parameters(ddp)


SMALL, LARGE, NUMBER = ((2,), "float32"), ((3, 2), "float32"), ((), "float32")
HALF = ((2,), "float16")


@pytest.mark.parametrize(
    ("mine", "first", "said"),
    [
        pytest.param({"a": SMALL}, {"a": SMALL}, [], id="same"),
        pytest.param({"a": LARGE}, {"a": SMALL}, ["a is 3×2 instead of 2"], id="shape"),
        pytest.param({"a": NUMBER}, {"a": SMALL}, ["a is a scalar instead of 2"], id="no-dimension"),
        pytest.param({"a": HALF}, {"a": SMALL}, ["a is float16 instead of float32"], id="dtype"),
        pytest.param({"a": SMALL, "b": SMALL}, {"a": SMALL}, ["only this rank trains b"], id="more"),
        pytest.param({"a": SMALL}, {"a": SMALL, "b": SMALL}, ["this rank does not train b"], id="fewer"),
        pytest.param({}, {"a": SMALL}, [], id="too-many-to-describe"),
        pytest.param(
            {"b": SMALL, "a": SMALL},
            {"a": SMALL, "b": SMALL},
            ["b is where the first rank has a", "a is where the first rank has b"],
            id="order",
        ),
    ],
)
def test_parameters_are_compared_by_name(
    mine: dict[str, tuple[tuple[int, ...], str]], first: dict[str, tuple[tuple[int, ...], str]], said: list[str]
) -> None:
    assert list(differing_parameters(DdpModel(mine, {}), DdpModel(first, {}))) == said


def test_arguments_that_only_one_torch_has_are_not_compared() -> None:
    mine = DdpModel({}, {"bucket_bytes_cap": 1, "find_unused_parameters": True, "forward_sync_buffers": True})
    first = DdpModel({}, {"bucket_bytes_cap": 2, "find_unused_parameters": True})
    assert list(differing_arguments(mine, first)) == ["bucket_bytes_cap is 1 instead of 2"]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[dist.Store]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield store
    dist.destroy_process_group()


class GroupOfRank1:
    def __init__(self, group_name: str) -> None:
        self.group_name = group_name

    def rank(self) -> int:
        return 1


class OnRank1:
    """A module of another rank, which meets what rank 0 has said."""

    def __init__(self, of_rank_0: DistributedDataParallel, model: nn.Module) -> None:
        self.module = model
        self.bucket_bytes_cap, self.find_unused_parameters = of_rank_0.bucket_bytes_cap, True
        self.process_group = GroupOfRank1(of_rank_0.process_group.group_name)


def test_a_rank_compares_itself_with_rank_0(
    group: dist.Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ddp = DistributedDataParallel(nn.Linear(3, 2))
    of_rank_0, of_rank_1 = ModelComparison(), ModelComparison()
    of_rank_0.constructs(ddp)
    of_rank_0.before_comparing()
    of_rank_0.compare_what_passed()
    of_rank_0.explain_failure()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_global_rank", lambda _group, rank: rank)
    other = OnRank1(ddp, nn.Linear(3, 4))
    of_rank_1.constructs(other)
    of_rank_1.before_comparing()
    of_rank_1.explain_failure()
    other.module = nn.Linear(3, 2)
    of_rank_1.compare_what_passed()
    assert capsys.readouterr().err == (
        "ddpprof: rank 1: its model differs from the model of rank 0: weight is 4×3 instead of 2×3; bias is 4 instead "
        "of 2.\nddpprof: rank 1: DDP's arguments differ from the arguments on rank 0, which can make training hang: "
        "find_unused_parameters is True instead of False.\n"
    )


@pytest.mark.parametrize(
    ("named", "said"),
    [
        pytest.param(
            {"key": torch.float32, "query": torch.float32},
            "key is where the first rank has query; query is where the first rank has key",
            id="another-order",
        ),
        pytest.param(
            {"query": torch.float64, "key": torch.float32}, "query is float64 instead of float32", id="another-type"
        ),
        pytest.param({"query": torch.float32, "key": torch.float32}, None, id="the-same"),
        pytest.param({"q": torch.float32, "k": torch.float32}, None, id="other-names-at-the-same-places"),
    ],
)
def test_what_differs_although_all_shapes_are_the_same(
    named: dict[str, torch.dtype],
    said: str | None,
    group: dist.Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def model(parameters: dict[str, torch.dtype]) -> nn.ParameterDict:
        return nn.ParameterDict([(name, nn.Parameter(torch.zeros(2, dtype=one))) for name, one in parameters.items()])

    ddp = DistributedDataParallel(model({"query": torch.float32, "key": torch.float32}))
    of_rank_0, of_rank_1 = ModelComparison(), ModelComparison()
    of_rank_0.constructs(ddp)
    of_rank_0.before_comparing()
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_global_rank", lambda _group, rank: rank)
    other = OnRank1(ddp, model(named))
    other.find_unused_parameters = False
    of_rank_1.constructs(other)
    of_rank_1.before_comparing()
    of_rank_1.compare_what_passed()
    printed = capsys.readouterr().err
    assert (f"its model differs from the model of rank 0: {said}. DDP matches" in printed) is (said is not None)
    assert bool(printed) is (said is not None)


def test_without_a_word_of_rank_0_nothing_is_said(group: dist.Store, capsys: pytest.CaptureFixture[str]) -> None:
    ddp = DistributedDataParallel(nn.Linear(3, 2))
    comparison = ModelComparison()
    other = OnRank1(ddp, torch.nn.Linear(1, 1))
    comparison.constructs(other)
    comparison.before_comparing()
    comparison.explain_failure()
    comparison.compare_what_passed()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("replaced", "became"),
    [
        pytest.param({"bucket_cap_mb": 5}, {"bucket_cap_mb": 5}, id="a-cap-instead-of-the-list-that-goes-before-it"),
        pytest.param({"bucket_cap_mb_list": [2]}, {"bucket_cap_mb_list": [2]}, id="another-list"),
        pytest.param(
            {"static_graph": True}, {"bucket_cap_mb_list": [1, 3], "static_graph": True}, id="another-argument"
        ),
    ],
)
def test_a_script_that_gives_a_list_of_caps(replaced: dict[str, Any], became: dict[str, Any]) -> None:
    got: dict[str, Any] = {}

    def original(
        self: object, bucket_cap_mb: Any = None, bucket_cap_mb_list: Any = None, static_graph: Any = None
    ) -> None:
        given = {"bucket_cap_mb": bucket_cap_mb, "bucket_cap_mb_list": bucket_cap_mb_list, "static_graph": static_graph}
        got.update({name: value for name, value in given.items() if value is not None})

    _constructor(original, Settings("run", ddp=replaced))(object(), bucket_cap_mb_list=[1, 3])
    assert got == became


@pytest.mark.usefixtures("process_group")
def test_sync_batch_norm_computes_as_batch_norm_and_keeps_its_parameters() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    parameters = list(synced.parameters())
    ddp = SimpleNamespace(_use_python_reducer=False)
    _constructor(lambda _ddp, module: module.train(), Settings("run", switches={"sync_batch_norm": False}))(ddp, synced)
    x = torch.randn(8, 4)
    assert torch.equal(synced(x), plain(x))
    assert torch.equal(synced[1].running_var, plain[1].running_var)
    assert all(one is other for one, other in zip(synced.parameters(), parameters, strict=True))


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_the_script_cannot_turn_on_anomaly_detection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_anomaly_enabled", torch.set_anomaly_enabled)  # restores it afterwards
    distributed: Any = SimpleNamespace(DistributedDataParallel=type("Ddp", (), {"__init__": lambda _self: None}))
    modify_ddp(distributed, Settings("run", switches={"detect_anomaly": False}))
    torch.autograd.set_detect_anomaly(True)
    assert not torch.is_anomaly_enabled()
    with torch.autograd.detect_anomaly(check_nan=False):
        assert not torch.is_anomaly_enabled()


@pytest.mark.usefixtures("process_group")
def test_the_script_cannot_register_comm_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("register_comm_hook", "_register_builtin_comm_hook"):
        monkeypatch.setattr(DistributedDataParallel, name, getattr(DistributedDataParallel, name))
    monkeypatch.setattr(DistributedDataParallel, "__init__", DistributedDataParallel.__init__)
    modify_ddp(torch.nn.parallel.distributed, Settings("run", switches={"comm_hook": False}))
    ddp = DistributedDataParallel(nn.Linear(4, 3))
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    x = torch.randn(8, 4)
    ddp(x).sum().backward()
    assert ddp.module.weight.grad is not None
    assert torch.equal(ddp.module.weight.grad, x.sum(0).expand(3, 4)), "not rounded to 16 bits"


def test_embeddings_compute_sparse_gradients_before_ddp_looks() -> None:
    model = nn.Sequential(nn.Embedding(4, 3), nn.EmbeddingBag(4, 3), nn.Linear(3, 3))
    expected: list[bool] = []

    def constructed(ddp: Any, module: nn.Module) -> None:
        expected.extend(getattr(layer, "sparse", False) for layer in module)

    ddp = SimpleNamespace(_use_python_reducer=False)
    _constructor(constructed, Settings("run", switches={"sparse_embeddings": True}))(ddp, model)
    assert expected == [True, True, False]
