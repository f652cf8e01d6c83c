"""A rank's files and its end, and how all ranks agree on what to record."""

from __future__ import annotations

import faulthandler
import json
import os
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from ddpprof.errors import DdpprofError
from ddpprof.load.record import load_record
from ddpprof.model import StepMode
from ddpprof.record.job import (
    AgreedRecording,
    Agreement,
    CrashFile,
    JobRank,
    LastStep,
    _covered_ns,
    how_it_ends,
    note_exit,
    where_it_ends,
)
from ddpprof.record.machine import TrainingDevice
from ddpprof.record.run_directory import open_run
from ddpprof.record.settings import Settings
from ddpprof.record.window import Window
from ddpprof.rundir import LAST_STEP, last_step_file


def test_where_ranks_have_no_store_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under the MPI backend."""
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: [0])
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", dist.Store)
    job = JobRank(Settings(str(tmp_path / "run")))
    with pytest.raises(DdpprofError, match="MPI"):
        job.attach(cast("dist.ProcessGroup", None))
    assert not job.attached
    assert not (tmp_path / "run").exists()


def test_of_processes_that_train_apart_only_the_first_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    first = JobRank(Settings(str(tmp_path)))
    first.attach_alone()
    assert first.open_files(TrainingDevice())
    assert first.files is not None
    first.files.close()
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(DdpprofError, match="Only the first process is recorded"):
        JobRank(Settings(str(tmp_path))).attach_alone()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0.last_step", "rank-0.steps.jsonl", "run.json"]


def test_a_rank_that_has_failed_waits_for_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[tuple[float, ...]] = []

    def nobody_leads(_agreement: Agreement, *patience: float) -> None:
        waited.append(patience)

    monkeypatch.setenv("RANK", "0")
    failed = JobRank(Settings(str(tmp_path)))
    failed.attach_alone()
    monkeypatch.setattr(Agreement, "verdict", nobody_leads)
    with pytest.raises(DdpprofError, match="has not announced its run directory"):
        failed.open_files(None)
    assert waited == [(0.5, 0.5)] * 2
    with pytest.raises(DdpprofError):
        failed.open_files(TrainingDevice())
    assert waited[2:] == [()], "one that trains has patience"


def exit_while_handling(error: BaseException) -> SystemExit:
    """`mp.spawn` ends a rank so: it catches the error, and calls ``sys.exit(1)``."""
    made = SystemExit(1)
    made.__context__ = error
    return made


KILLED = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (None, "finished"),
        (SystemExit(0), "finished"),
        (SystemExit(None), "finished"),
        (SystemExit(3), "failed: SystemExit: 3"),
        (KeyboardInterrupt(), "interrupted"),
        (ValueError("boom\nmore"), "failed: ValueError: boom"),
        (
            RuntimeError("NCCL error in: a.cpp:9\nncclInvalidUsage: bad\nLast error:\nTwo ranks on one GPU\nmore"),
            "failed: RuntimeError: Two ranks on one GPU (NCCL error in: a.cpp:9)",
        ),
        (
            RuntimeError("Caught OSError in DataLoader worker process 0.\nOriginal Traceback:\n  x\nOSError: no space"),
            "failed: RuntimeError: OSError: no space (Caught OSError in DataLoader worker process 0.)",
        ),
        (
            OSError("Caught OSError in DataLoader worker process 0.\nOriginal Traceback:\n  x\nOSError: no space"),
            "failed: OSError: no space (Caught OSError in DataLoader worker process 0.)",
        ),
        (
            RuntimeError(
                2 * "Got the following error when running the callback: RuntimeError: " + "lost\n\nAt:\n  x.py"
            ),
            "failed: RuntimeError: lost",
        ),
        (exit_while_handling(ValueError("boom")), "failed: ValueError: boom"),
        (exit_while_handling(KeyboardInterrupt()), "interrupted"),
        (
            caused(RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), KILLED),
            f"failed: RuntimeError: {KILLED}",
        ),
        (caused(RuntimeError("no batch"), KILLED), "failed: RuntimeError: no batch"),
        (ValueError("x" * 300), "failed: ValueError: " + "x" * 199 + "…"),
    ],
)
def test_how_it_ends(error: BaseException | None, said: str) -> None:
    assert how_it_ends(error) == said


def raised(place: str) -> BaseException:
    """Return an error as raised by a script of that name, within a collective or not."""
    torch_file = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    names: dict[str, object] = {}
    exec(compile("def barrier():\n    raise RuntimeError('lost')\n", torch_file, "exec"), names)
    call = "barrier()" if place == "in-a-collective" else "raise ValueError('own')"
    exec(compile(f"def train():\n    {call}\n", "/home/me/train.py", "exec"), names)
    try:
        names["train"]()  # type: ignore[operator]
    except (RuntimeError, ValueError) as error:
        return error
    raise AssertionError("it must fail")


def test_where_it_ends() -> None:
    caller = f"{__file__}:{raised.__code__.co_firstlineno + 8} in raised"
    mine = {"ended_place": "/home/me/train.py:2 in train", "ended_called_at": caller}
    assert where_it_ends(raised("elsewhere")) == {**mine, "ended_in": None}
    assert where_it_ends(raised("in-a-collective")) == {**mine, "ended_in": "barrier"}
    assert where_it_ends(None) == where_it_ends(SystemExit(3)) == {}
    caught = SystemExit(1)
    caught.__context__ = raised("elsewhere")
    assert where_it_ends(caught)["ended_place"] == "/home/me/train.py:2 in train"


@pytest.mark.parametrize(("status", "message"), [("no time left", "no time left"), (3, "3"), (0, None), (None, None)])
def test_a_call_to_exit_is_noted(status: Any, message: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpprof.record.job._last_exit", {})
    monkeypatch.setattr(sys, "exit", note_exit(sys.exit))
    script = "import sys\ndef check(status):\n    sys.exit(status)\n"
    names: dict[str, Any] = {}
    exec(compile(script, "/home/me/train.py", "exec"), names)
    with pytest.raises(SystemExit) as left:
        names["check"](status)
    assert left.value.code == status
    where = {"exit_message": message, "exit_place": "/home/me/train.py:3 in check"}
    assert where_it_ends(None) == ({} if message is None else where)


FACTS = {"format": 1, "rank": 0, "world_size": 1, "host": "node", "pid": 7, "device": "cpu", "backend": "gloo",
         "torch": "2.13"}  # fmt: skip


def test_the_last_number_is_there_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "rank-0.facts.json").write_text(json.dumps(FACTS))
    last = LastStep(tmp_path / last_step_file(0))
    for number in (9, 10, 123_456):
        last.step_ends(number, 5 * number)
    record = load_record(tmp_path, 0)
    last.close()
    assert record is not None
    assert (record.ended, record.num_steps, record.ended_unix_ns) == (None, 123_456, None)
    assert record.last_step_unix_ns == 5 * 123_456


def test_without_a_pulse_the_number_is_written_after_each_step(tmp_path: Path) -> None:
    path = tmp_path / last_step_file(0)
    last, before_ns = LastStep(path), time.time_ns()
    last.step_ends(3)
    last.close()
    num_steps, ended_ns = struct.unpack(LAST_STEP, path.read_bytes())
    assert num_steps == 3
    assert before_ns <= ended_ns <= time.time_ns()


@pytest.mark.parametrize("content", [b"", b"short", bytes(16), b"\xff" * 16, bytes(range(17))], ids=range(5))
def test_a_file_that_says_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "rank-0.facts.json").write_text(json.dumps(FACTS))
    (tmp_path / last_step_file(0)).write_bytes(content)
    record = load_record(tmp_path, 0)
    assert record is not None
    assert (record.num_steps, record.last_step_unix_ns) == (None, None)


def test_a_rank_that_said_how_it_ended(tmp_path: Path) -> None:
    facts = {**FACTS, "ended": "failed: ValueError: x", "num_steps": 14, "ended_unix_ns": 99}
    (tmp_path / "rank-0.facts.json").write_text(json.dumps(facts))
    LastStep(tmp_path / last_step_file(0)).step_ends(3, 99)
    record = load_record(tmp_path, 0)
    assert record is not None
    assert (record.num_steps, record.ended_unix_ns, record.last_step_unix_ns) == (14, 99, None)


class Handler:
    """Stands for `faulthandler`, which the tests themselves use already: it holds the last file that it was given."""

    def __init__(self) -> None:
        self.file: Any = None

    def enable(self, file: Any, **_options: bool) -> None:
        self.file = file

    def disable(self) -> None:
        self.file = None

    def is_enabled(self) -> bool:
        return self.file is not None


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> Handler:
    made = Handler()
    for name in ("enable", "disable", "is_enabled"):
        monkeypatch.setattr(faulthandler, name, getattr(made, name))
    return made


def test_a_file_without_stacks_goes_at_the_end(handler: Handler, tmp_path: Path) -> None:
    path, crash = tmp_path / "rank-0.crash.txt", CrashFile()
    crash.open(path)
    assert (handler.is_enabled(), path.exists()) == (True, True)
    crash.close()
    crash.close()
    assert (handler.is_enabled(), path.exists()) == (False, False)


def test_stacks_are_kept(handler: Handler, tmp_path: Path) -> None:
    path, crash = tmp_path / "rank-0.crash.txt", CrashFile()
    crash.open(path)
    os.write(handler.file.fileno(), b"Fatal Python error: Aborted\n")
    crash.close()
    assert path.read_text() == "Fatal Python error: Aborted\n"
    assert not handler.is_enabled()


def test_a_script_that_has_stacks_written_keeps_that(handler: Handler, tmp_path: Path) -> None:
    handler.file = "of the script"
    path, crash = tmp_path / "rank-0.crash.txt", CrashFile()
    crash.open(path)
    crash.close()
    assert (handler.file, path.exists()) == ("of the script", False)


def test_a_script_that_has_stacks_written_later_keeps_that(handler: Handler, tmp_path: Path) -> None:
    path, crash = tmp_path / "rank-0.crash.txt", CrashFile()
    crash.open(path)
    handler.enable("of the script")
    crash.close()
    assert (handler.file, path.exists()) == ("of the script", False)


def test_a_run_that_was_removed_is_no_error_at_the_end(handler: Handler, tmp_path: Path) -> None:
    path, crash = tmp_path / "rank-0.crash.txt", CrashFile()
    crash.open(path)
    path.unlink()
    crash.close()
    assert not handler.is_enabled()


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

    def facts(self, _step: int) -> dict[str, Any]:
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
    assert window.profiler.pauses == []
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


@pytest.fixture
def job(store: dist.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobRank:
    """Rank 1 of two ranks."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda _: [0, 1])
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    return JobRank(Settings(str(tmp_path / "run")))


def test_a_rank_without_progress_creates_the_run_once(job: JobRank, tmp_path: Path) -> None:
    assert job.find_run(may_lead=False) is None
    assert job.find_run(may_lead=True) == tmp_path / "run"
    created = (tmp_path / "run" / "run.json").read_bytes()
    assert job.find_run(may_lead=True) == tmp_path / "run"
    job.attach(cast("dist.ProcessGroup", None))
    assert job.leads, "it has led since it created the run"
    assert (tmp_path / "run" / "run.json").read_bytes() == created
    assert job.open_files(TrainingDevice())
    assert job.files is not None
    job.files.close()


def test_a_rank_without_progress_uses_the_run_that_another_rank_has_created(job: JobRank, tmp_path: Path) -> None:
    run = tmp_path / "run"
    leader = job._agreement_in((0, 1))
    assert leader.lead(0)
    assert job.find_run(may_lead=True) is None, "rank 0 has not created it yet"
    leader.offer(str(open_run(Settings(str(run)), "id", 2)), "id", None)
    assert job.find_run(may_lead=True) == run
    job.attach(cast("dist.ProcessGroup", None))
    assert not job.leads


def recording(store: dist.Store, world_size: int, groups: dict[int, tuple[int, ...]]) -> list[Agreement]:
    """The agreements of ranks that record, with the process groups of their first modules."""
    made = [Agreement(store, world_size, group) for group in groups.values()]
    for rank, one in zip(groups, made, strict=True):
        one.join(rank)
    return made


def led(by: Agreement, rank: int) -> None:
    assert by.lead(rank)
    by.offer("runs/a", "id", None)


def everyone_of(agreements: list[Agreement], **patience: float) -> list[bool]:
    verdicts = [one.verdict(**patience) for one in agreements]
    return [one is not None and one.everyone for one in verdicts]


def test_ranks_that_do_not_train_are_not_awaited(store: dist.Store) -> None:
    ranks = recording(store, 3, {0: (0, 1), 1: (0, 1)})
    led(ranks[0], 0)
    assert not ranks[1].lead(1)
    assert [one.verdict() for one in ranks] == [AgreedRecording("runs/a", "id", True, None, 0)] * 2


def test_each_process_group_has_a_verdict_of_its_own(store: dist.Store) -> None:
    ranks = recording(store, 4, {0: (0, 1), 2: (2, 3), 3: (2, 3)})
    led(ranks[0], 0)
    assert everyone_of(ranks, patience_s=0.1) == [False, True, True], "rank 1 does not record"


def test_process_groups_that_overlap(store: dist.Store) -> None:
    ranks = recording(store, 4, {0: (0, 1), 1: (0, 1), 2: (1, 2, 3), 3: (1, 2, 3)})
    led(ranks[0], 0)
    assert everyone_of(ranks) == [True] * 4


def test_no_rank_leads_yet(store: dist.Store) -> None:
    ranks = recording(store, 3, {1: (1, 2), 2: (1, 2)})
    assert ranks[0].verdict(patience_s=0.1) is None
    led(ranks[0], 1)
    assert [one.verdict() for one in ranks] == [AgreedRecording("runs/a", "id", True, None, 1)] * 2


def test_a_rank_that_opens_the_run_directory_slowly_is_awaited(store: dist.Store) -> None:
    ranks = recording(store, 2, {0: (0, 1), 1: (0, 1)})
    assert ranks[0].lead(0)
    later = threading.Timer(0.2, ranks[0].offer, ("runs/a", "id", None))
    later.start()
    assert everyone_of(ranks) == [True, True]
    later.join()


def test_pauses_that_overlap_count_once() -> None:
    """The trace is written from 30 to 50, while the training thread is paused until 40, and again from 70 to 75."""
    assert _covered_ns([(70, 75), (10, 40), (30, 50), (12, 20)]) == 45
    assert _covered_ns([]) == 0


class SlowStore:
    """A store whose answers come after 20, 5 and then 10 ms."""

    def __init__(self) -> None:
        self.waits_s = iter((0.1, 0.005))

    def check(self, _keys: list[str]) -> bool:
        time.sleep(next(self.waits_s, 0.1))
        return True


def test_the_shortest_round_trip_to_the_store_counts() -> None:
    agreement = Agreement(SlowStore(), 2, (0, 1))  # type: ignore[arg-type]
    assert 5_000_000 <= (agreement.round_trip_ns() or 0) < 100_000_000


def test_a_store_in_a_file_has_no_round_trip(tmp_path: Path) -> None:
    store = dist.PrefixStore("ddpprof", dist.FileStore(str(tmp_path / "store"), 2))
    assert Agreement(store, 2, (0, 1)).round_trip_ns() is None
