"""Where training runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from ddpprof.record.environment import backend_for


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
