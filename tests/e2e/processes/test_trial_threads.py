"""The number of threads of a trial, in the rank and in a worker of a DataLoader."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from ddpprof.record.ddp_construction import _fix_threads


def test_the_script_sets_the_threads_of_the_trial_but_workers_keep_one(monkeypatch: pytest.MonkeyPatch) -> None:
    set_num_threads, before = torch.set_num_threads, torch.get_num_threads()
    monkeypatch.setattr(torch, "set_num_threads", set_num_threads)
    _fix_threads(torch, 2)
    torch.set_num_threads(7)
    of_rank = torch.get_num_threads()
    (of_worker,) = DataLoader([0], num_workers=1, collate_fn=lambda _: torch.get_num_threads())
    set_num_threads(before)
    assert (of_rank, of_worker) == (2, 1)
