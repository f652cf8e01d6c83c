"""What is known of each rank, gathered from the files of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hung_ranks import died, process, rank
from pulse_files import BEGIN_NS, SECOND, MadeStep, write_pulse

from ddpprof.model.overdue import OverdueFacts, Wait, crc_of
from ddpprof.model.pulse import Ended
from ddpprof.monitor import evidence, pulse_files
from ddpprof.monitor.evidence import RankEvidence, gather
from ddpprof.monitor.processes import Process
from ddpprof.monitor.pulse_files import PulseHead


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "_LOOK_AGAIN_S", 0.0)


def of_one_rank(directory: Path, **seen: object) -> RankEvidence:
    """Return the evidence of a rank whose end was seen like this, if at all."""
    write_pulse(directory, 0, [MadeStep()])
    if seen:
        (directory / "exits.jsonl").write_text(json.dumps({"rank": 0, **seen}) + "\n")
    (found,) = gather(directory)
    return found


def of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pulses made by hand be of this machine."""
    monkeypatch.setattr(pulse_files, "machine_id", lambda: "of another machine")


def test_an_end_that_was_seen(tmp_path: Path) -> None:
    found = of_one_rank(tmp_path, exit_code=-9, unix_ns=BEGIN_NS + SECOND)
    assert found.exit is not None
    assert found.is_dead


def test_a_rank_that_said_nothing_has_not_died_in_a_job_that_ended_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As one does that ends by ``os._exit(0)``."""
    of_this_machine(monkeypatch)
    monkeypatch.setattr(evidence, "look_at", lambda *_: None)
    assert of_one_rank(tmp_path).is_dead
    (tmp_path / "exits.jsonl").write_text(json.dumps({"is_job": True, "exit_code": 0, "unix_ns": BEGIN_NS + SECOND}))
    (found,) = gather(tmp_path)
    assert not found.is_dead


@pytest.mark.parametrize(
    ("exit_code", "is_dead"),
    [
        pytest.param(0, False, id="well"),
        pytest.param(-15, False, id="by-its-launcher-since-another-rank-failed"),
        pytest.param(-9, True, id="killed"),
    ],
)
def test_a_rank_that_had_finished_its_training_and_then_ended(exit_code: int, is_dead: bool) -> None:
    assert died(rank(0, ended=Ended.FINISHED), "finished", exit_code).is_dead is is_dead
    assert died(rank(0), None, -15).is_dead, "it had not finished"


def test_the_end_of_a_job_that_failed_says_nothing_of_its_ranks(tmp_path: Path) -> None:
    write_pulse(tmp_path, 0, [MadeStep()])
    (tmp_path / "exits.jsonl").write_text(json.dumps({"is_job": True, "exit_code": 1, "unix_ns": BEGIN_NS + SECOND}))
    (found,) = gather(tmp_path)
    assert (found.exit, found.is_dead) == (None, False)


@pytest.mark.parametrize(
    ("before", "now", "computes"),
    [
        pytest.param(process(), process(seen_s=1.0, main_thread_cpu_s=5.4), True, id="for-a-while"),
        pytest.param(process(), process(seen_s=1.0, main_thread_cpu_s=5.2), False, id="hardly"),
        pytest.param(process(), process("R", seen_s=1.0), True, id="as-soon-as-it-gets-a-core"),
        pytest.param(None, process("R"), True, id="seen-once-as-it-runs"),
        pytest.param(None, process(), False, id="seen-once-as-it-sleeps"),
    ],
)
def test_a_rank_computes(
    before: Process | None, now: Process, computes: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_this_machine(monkeypatch)
    monkeypatch.setattr(evidence, "is_gone", lambda _: False)
    seen = iter((before, now))
    monkeypatch.setattr(evidence, "look_at", lambda *_: next(seen))
    assert of_one_rank(tmp_path).computes is computes


@pytest.mark.parametrize(
    ("device", "spent", "compute"),
    [
        pytest.param("cpu", {"children_cpu_s": 0.4}, True, id="children"),
        pytest.param("cpu", {"children_cpu_s": 0.2}, False, id="children-hardly"),
        pytest.param("cpu", {"threads_cpu_s": 0.4}, True, id="threads"),
        pytest.param("cuda", {"threads_cpu_s": 0.4}, False, id="threads-that-may-spin"),
        pytest.param("cuda", {"children_cpu_s": 0.4}, True, id="children-beside-an-accelerator"),
    ],
)
def test_others_compute_for_a_rank(device: str, spent: dict[str, float], compute: bool) -> None:
    now = process(seen_s=1.0, **spent)
    assert evidence._helpers_compute(process(), now, with_threads=device == "cpu") is compute


@pytest.mark.parametrize(
    ("device", "seen", "compute"),
    [
        pytest.param("cpu", {"do_threads_run": True}, True, id="threads"),
        pytest.param("cuda", {"do_threads_run": True}, False, id="threads-that-may-spin"),
        pytest.param("cuda", {"do_children_run": True}, True, id="children"),
    ],
)
def test_others_that_are_ready_to_run_compute_though_they_have_no_core(
    device: str, seen: dict[str, bool], compute: bool
) -> None:
    before, now = process(**seen), process(seen_s=0.2, **seen)
    assert evidence._helpers_compute(before, now, with_threads=device == "cpu") is compute
    assert not evidence._helpers_compute(process(), now, with_threads=device == "cpu")


@pytest.mark.parametrize(
    ("before", "moved_mib", "moves_data"),
    [
        pytest.param(process(), 2, True, id="much"),
        pytest.param(process(), 0.9, False, id="little"),
        pytest.param(None, 2, False, id="seen-once"),
    ],
)
def test_a_rank_reads_or_writes(
    before: Process | None, moved_mib: float, moves_data: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_this_machine(monkeypatch)
    monkeypatch.setattr(evidence, "is_gone", lambda _: False)
    seen = iter((before, process(seen_s=1.0, moved_bytes=int(moved_mib * 2**20))))
    monkeypatch.setattr(evidence, "look_at", lambda *_: next(seen))
    assert of_one_rank(tmp_path).moves_data is moves_data


@pytest.mark.parametrize(
    ("num_paged_in", "num_swapped_in", "swapped_mb", "seconds", "is_swapping"),
    [
        pytest.param(40, 40, 100, 0.2, True, id="swaps"),
        pytest.param(4, 4, 100, 0.2, False, id="has-memory-in-swap-for-good"),
        pytest.param(40, 0, 100, 0.2, False, id="reads-a-file-in-memory"),
        pytest.param(40, 400, 0, 0.2, False, id="another-process-swaps"),
        pytest.param(40, 40, 100, 2.0, False, id="was-looked-at-late"),
    ],
)
def test_a_rank_swaps_if_it_reads_its_memory_back_again_and_again(
    num_paged_in: int,
    num_swapped_in: int,
    swapped_mb: int,
    seconds: float,
    is_swapping: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    of_this_machine(monkeypatch)
    monkeypatch.setattr(evidence, "is_gone", lambda _: False)
    swapped_in = iter((1, 1 + num_swapped_in))
    monkeypatch.setattr(evidence, "num_swapped_in", lambda: next(swapped_in))
    before = process(num_paged_in=7, swapped_bytes=swapped_mb * 2**20, seen_s=3.0)
    after = replace(before, num_paged_in=7 + num_paged_in, seen_s=before.seen_s + seconds)
    seen = iter((before, after))
    monkeypatch.setattr(evidence, "look_at", lambda *_: next(seen))
    assert of_one_rank(tmp_path).is_swapping is is_swapping


@pytest.mark.parametrize("is_locked", [True, False], ids=["living", "dead"])
def test_another_process_with_the_number_of_a_dead_rank(
    is_locked: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A living rank holds a lock on its pulse in memory."""
    of_this_machine(monkeypatch)
    monkeypatch.setattr(evidence, "is_gone", lambda _: not is_locked)
    monkeypatch.setattr(evidence, "look_at", lambda number, _thread: process(pid=number))
    found = of_one_rank(tmp_path)
    assert (found.process is not None, found.is_dead) == (is_locked, not is_locked)


def test_the_end_of_an_earlier_attempt_is_not_that_of_this_one(tmp_path: Path) -> None:
    found = of_one_rank(tmp_path, exit_code=-9, unix_ns=BEGIN_NS - 3600 * SECOND)
    assert found.exit is None
    assert not found.is_dead


def test_a_rank_on_another_machine_has_no_process(tmp_path: Path) -> None:
    found = of_one_rank(tmp_path)
    assert (found.is_here, found.process, found.workers, found.computes, found.record) == (False, None, (), False, None)
    assert found.is_silent, "its last sign is years old"


@pytest.mark.parametrize(
    ("stack", "ended", "counts"),
    [
        pytest.param("a.py:3 in f", Ended.NOT_YET, True, id="stands-there"),
        pytest.param("a.py:4 in f", Ended.NOT_YET, False, id="has-moved-on"),
        pytest.param("", Ended.FAILED, True, id="has-failed"),
    ],
)
def test_facts_count_for_the_place_for_which_they_were_written(stack: str, ended: Ended, counts: bool) -> None:
    facts = OverdueFacts(stack_crc=crc_of("a.py:3 in f"), error="ValueError")
    one = rank(0, ended=ended)
    head = PulseHead(one.identity, one.state, stack, one.steps, facts=facts)
    assert (evidence._facts_of(head).error is not None) is counts


@pytest.mark.parametrize(
    ("holder", "wait"),
    [
        pytest.param(7, Wait.FOREIGN_LOCK, id="another-job"),
        pytest.param(101, Wait.LOCK, id="another-rank"),
        pytest.param(0, Wait.LOCK, id="out-of-sight"),
        pytest.param(None, Wait.LOCK, id="a-thread"),
    ],
)
def test_who_holds_the_lock_for_which_a_rank_waits(
    holder: int | None, wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "holder_of_lock", lambda _: holder)
    one = replace(rank(0), process=process(wait=Wait.LOCK))
    assert evidence._with_holder(one, {100, 101}).wait is wait
