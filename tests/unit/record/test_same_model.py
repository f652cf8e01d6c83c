"""The models and arguments that ranks give to DDP, compared by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpprof.record.same_model import DdpModel, ModelComparison, differing_arguments, differing_parameters

SMALL, LARGE, NUMBER = ((2,), "float32"), ((3, 2), "float32"), ((), "float32")
HALF = ((2,), "float16")


@pytest.mark.parametrize(
    ("mine", "first", "said"),
    [
        pytest.param({"a": SMALL}, {"a": SMALL}, [], id="same"),
        pytest.param({"a": LARGE}, {"a": SMALL}, ["a is 3×2 here and 2 there"], id="shape"),
        pytest.param({"a": NUMBER}, {"a": SMALL}, ["a is a number here and 2 there"], id="no-dimension"),
        pytest.param({"a": HALF}, {"a": SMALL}, ["a is float16 here and float32 there"], id="dtype"),
        pytest.param({"a": SMALL, "b": SMALL}, {"a": SMALL}, ["b is trained only here"], id="more"),
        pytest.param({"a": SMALL}, {"a": SMALL, "b": SMALL}, ["b is not trained here"], id="fewer"),
        pytest.param({}, {"a": SMALL}, [], id="too-many-to-describe"),
        pytest.param(
            {"b": SMALL, "a": SMALL},
            {"a": SMALL, "b": SMALL},
            ["b stands here where a stands there", "a stands here where b stands there"],
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
    assert list(differing_arguments(mine, first)) == ["bucket_bytes_cap is 1 here and 2 there"]


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
        "ddpprof: rank 1: its model is not the same as on rank 0: weight is 4×3 here and 2×3 there; bias is 4 here and "
        "2 there.\n"
        "ddpprof: rank 1: DDP has other arguments than on rank 0, which can hang the training: find_unused_parameters "
        "is True here and False there.\n"
    )


@pytest.mark.parametrize(
    ("named", "said"),
    [
        pytest.param(
            {"key": torch.float32, "query": torch.float32},
            "key stands here where query stands there; query stands here where key stands there",
            id="another-order",
        ),
        pytest.param(
            {"query": torch.float64, "key": torch.float32}, "query is float64 here and float32 there", id="another-type"
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
    assert (f"its model is not the same as on rank 0: {said}. DDP matches" in printed) is (said is not None)
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
