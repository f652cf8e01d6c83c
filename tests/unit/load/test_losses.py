"""Losses come back to the last bit."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path

import pytest
import torch

from ddpprof.load.losses import load_losses
from ddpprof.record.step_notes import LossNotes


def test_scalars_are_kept_and_read_back(tmp_path: Path) -> None:
    notes = LossNotes()
    loss = torch.tensor(0.1)
    notes.backward_begins(loss)
    loss.add_(1)
    notes.backward_begins([torch.zeros(3), torch.tensor([float("nan")]), torch.tensor(3)])
    notes.step_ends(1)
    notes.step_ends(1)
    (tmp_path / "rank-2.losses.json").write_text(json.dumps(notes.values()))
    losses = load_losses(tmp_path, 2)
    assert losses is not None
    (first, broken), nothing = losses
    assert (first, isnan(broken), nothing) == (torch.tensor(0.1).item(), True, ())


@pytest.mark.parametrize("text", [None, "", "[[0.5]]", '[["x"]]', '[["0x1p99999"]]', "{}"])
def test_without_losses_there_are_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "rank-0.losses.json").write_text(text)
    assert load_losses(tmp_path, 0) is None
