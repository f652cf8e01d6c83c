"""Where training runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from ddpprof.record.environment import JobEnvironment, backend_for


@pytest.mark.parametrize("given", [None, "gloo", "cpu:gloo", "cpu:gloo,cuda:gloo"])
def test_the_backend_is_that_for_the_device(given: str | None, tmp_path: Path) -> None:
    """`init_process_group()` without backend: torch calls it "undefined"."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group(given, store=store, rank=0, world_size=1)
    try:
        assert backend_for(dist.group.WORLD, "cpu") == "gloo"
    finally:
        dist.destroy_process_group()


def test_a_group_without_backends_says_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda _: "mine")
    assert backend_for(object(), "cuda") == "mine"


@pytest.mark.parametrize(
    ("groups", "size", "ranks"),
    [
        pytest.param([(0, 1, 2, 3)], 4, None, id="all-ranks"),
        pytest.param([(0, 1)], 2, (0, 1), id="some-ranks"),
        pytest.param([(0, 1), (0, 1)], 2, (0, 1), id="twice-the-same"),
        pytest.param([(0, 1), (0, 1, 2, 3)], None, None, id="one-module-over-all-ranks"),
        pytest.param([(0, 1), (0, 2)], None, (0, 1, 2), id="another-group-for-each-module"),
    ],
)
def test_with_whom_gradients_are_averaged(
    groups: list[tuple[int, ...]], size: int | None, ranks: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_process_group_ranks", list)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    environment = JobEnvironment()
    for group in groups:
        environment.averages_in(group)
    facts = environment.facts()
    assert (facts["group_size"], facts["group_ranks"]) == (size, ranks)


@pytest.mark.parametrize(("name", "known"), [("nccl", "nccl"), ("nccl2", "nccl"), ("nccl-lazy", "nccl"), ("x", "x")])
def test_other_names_of_nccl(name: str, known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda _: name)
    assert backend_for(object(), "cuda") == known
