"""What ranks agree on while an accelerator is behind: whether to profile, and where to end."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddpprof.model import StepMode
from ddpprof.record.job import AgreedRecording, Agreement
from ddpprof.record.settings import Settings
from ddpprof.record.waiting import TrainingDevice
from ddpprof.record.window import Window


class Job:
    rank, world_size = 0, 1

    """Another rank's word arrives when this rank's device has ended the all-reduce that came after it."""

    def __init__(self, veto: bool = False, all_came: bool = True) -> None:
        self.device_is_done = False
        self.said: list[str] = []
        self.files = self
        self.agreement = self
        self.trace = self
        self._veto, self._all_came = veto, all_came

    def vetoed(self) -> bool:
        self.said.append("asks")
        return self._veto and self.device_is_done

    def veto(self) -> None:
        self.said.append("vetoes")

    def come_to_the_end(self) -> None:
        self.said.append("comes")

    def all_came_to_the_end(self) -> bool:
        return self._all_came and self.device_is_done

    def nothing(self, *_: object) -> None:
        pass

    append_step = write_facts = write = wait = warn_for_all = nothing


class Notes:
    modules: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.device = TrainingDevice()
        self.device.found([torch.device("cuda", 1)])

    def facts(self) -> dict[str, Any]:
        return {}

    def nothing(self, *_: object) -> None:
        pass

    recorded_step = begin_step = end_step = release_modules = recording_begins = recording_ends = nothing


def modes_of(job: Job, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[list[StepMode], Window]:
    """Of all steps until the record is over."""
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda _: setattr(job, "device_is_done", True))
    chosen = Settings("run", skip_first=11, cost_steps=2, steps=3, **settings)
    window, modes = Window(chosen, job, Notes()), []  # type: ignore[arg-type]
    window.begin()
    while window.mode is not StepMode.DONE:
        modes.append(window.mode)
        assert len(modes) < 100
        job.device_is_done = False
        window.end_step()
        window.begin_step()
    window.profiler.stop()
    return modes, window


@pytest.mark.parametrize("warmup", [0, 1, 2])
@pytest.mark.parametrize("baseline", [0, 4])
def test_a_veto_that_the_device_is_yet_to_reach_counts(
    warmup: int, baseline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"warmup": warmup, "baseline_steps": baseline, "alone_steps": baseline, "stop_after": baseline > 0}
    vetoed, window = modes_of(Job(veto=True), monkeypatch, **options)
    assert vetoed.count(StepMode.PROFILED) == (0 if warmup else 1)
    assert StepMode.BASELINE not in vetoed
    assert not torch.autograd._profiler_enabled()
    with monkeypatch.context() as patch:  # the rank that vetoes ends at the same step
        patch.setattr(torch.autograd, "_profiler_enabled", lambda: True)
        vetoing, _ = modes_of(Job(), monkeypatch, **options)
    assert len(vetoing) == len(vetoed) == window.step
    assert vetoing[len(vetoing) - baseline :] == vetoed[len(vetoed) - baseline :]


@pytest.mark.parametrize(("all_came", "ends"), [(True, True), (False, False)])
@pytest.mark.parametrize("baseline", [0, 4])
def test_a_rank_that_records_no_more_keeps_the_others_from_leaving_it_alone(
    all_came: bool, ends: bool, baseline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(all_came=all_came)
    modes, window = modes_of(job, monkeypatch, baseline_steps=baseline, alone_steps=baseline, stop_after=True)
    assert job.said.count("comes") == 1
    assert window.stopping is ends
    assert modes.count(StepMode.BASELINE) == modes.count(StepMode.ALONE) == (baseline if ends else 0)
    assert modes.count(StepMode.PROFILED) == 3


def test_a_rank_that_is_not_profiled_takes_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"baseline_steps": 4, "alone_steps": 4, "stop_after": True}
    profiled, _ = modes_of(Job(), monkeypatch, **options)
    other, window = modes_of(Job(), monkeypatch, profile_ranks=((1, 3),), **options)
    assert [mode for mode in profiled if mode in (StepMode.WARMUP, StepMode.PROFILED)] == [
        StepMode.WARMUP,
        *[StepMode.PROFILED] * 3,
    ]
    assert other == [StepMode.SKIP if mode in (StepMode.WARMUP, StepMode.PROFILED) else mode for mode in profiled]
    assert window.profiler.pause_ns == 0
    vetoed, _ = modes_of(Job(veto=True), monkeypatch, profile_ranks=((1, 3),), **options)
    assert StepMode.BASELINE not in vetoed


def test_all_have_come_when_each_has_said_so() -> None:
    store = dist.HashStore()
    first, second = (Agreement(store, 2, (0, 1)) for _ in range(2))
    first.come_to_the_end()
    assert not second.all_came_to_the_end()
    second.come_to_the_end()
    assert first.all_came_to_the_end()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.Store:
    monkeypatch.setattr("ddpprof.record.job._JOIN_PATIENCE_S", 0.05)
    monkeypatch.setattr("ddpprof.record.job._OFFER_S", 0.5)
    return dist.HashStore()


def recording(store: dist.Store, world_size: int, groups: dict[int, tuple[int, ...]]) -> list[Agreement]:
    """The agreements of ranks that record, with the process groups of their first modules."""
    made = [Agreement(store, world_size, group) for group in groups.values()]
    for rank, one in zip(groups, made, strict=True):
        one.join(rank)
    return made


def led(by: Agreement, rank: int) -> None:
    assert by.lead(rank)
    by.offer("runs/a", "id", None)


def everyone_of(agreements: list[Agreement]) -> list[bool]:
    verdicts = [one.verdict() for one in agreements]
    return [one is not None and one.everyone for one in verdicts]


def test_ranks_that_do_not_train_are_not_awaited(store: dist.Store) -> None:
    ranks = recording(store, 3, {0: (0, 1), 1: (0, 1)})
    led(ranks[0], 0)
    assert not ranks[1].lead(1)
    assert [one.verdict() for one in ranks] == [AgreedRecording("runs/a", "id", True, None, 0)] * 2


def test_each_process_group_has_a_verdict_of_its_own(store: dist.Store) -> None:
    ranks = recording(store, 4, {0: (0, 1), 2: (2, 3), 3: (2, 3)})
    led(ranks[0], 0)
    assert everyone_of(ranks) == [False, True, True], "rank 1 does not record"


def test_process_groups_that_overlap(store: dist.Store) -> None:
    ranks = recording(store, 4, {0: (0, 1), 1: (0, 1), 2: (1, 2, 3), 3: (1, 2, 3)})
    led(ranks[0], 0)
    assert everyone_of(ranks) == [True] * 4


def test_no_rank_leads_yet(store: dist.Store) -> None:
    ranks = recording(store, 3, {1: (1, 2), 2: (1, 2)})
    assert ranks[0].verdict() is None
    led(ranks[0], 1)
    assert [one.verdict() for one in ranks] == [AgreedRecording("runs/a", "id", True, None, 1)] * 2


def test_a_rank_that_opens_the_run_directory_slowly_is_awaited(store: dist.Store) -> None:
    ranks = recording(store, 2, {0: (0, 1), 1: (0, 1)})
    assert ranks[0].lead(0)
    later = threading.Timer(0.2, ranks[0].offer, ("runs/a", "id", None))
    later.start()
    assert everyone_of(ranks) == [True, True]
    later.join()
