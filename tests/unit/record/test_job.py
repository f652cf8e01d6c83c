"""A rank's files, and how it says that it ended."""

from __future__ import annotations

import faulthandler
import json
import os
import struct
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch.distributed as dist

from ddpprof.errors import DdpprofError
from ddpprof.load.record import load_record
from ddpprof.record.job import Agreement, CrashFile, EndPlace, JobRank, LastStep, how_it_ends, where_it_ends
from ddpprof.record.settings import Settings
from ddpprof.record.waiting import TrainingDevice
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
    with pytest.raises(DdpprofError, match="only the first one is recorded"):
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
    with pytest.raises(DdpprofError, match="has not said where it records"):
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
    assert where_it_ends(raised("elsewhere")) == EndPlace("/home/me/train.py:2 in train", None)
    assert where_it_ends(raised("in-a-collective")) == EndPlace("/home/me/train.py:2 in train", "barrier")
    assert where_it_ends(None) == where_it_ends(SystemExit(3)) == EndPlace()
    caught = SystemExit(1)
    caught.__context__ = raised("elsewhere")
    assert where_it_ends(caught).line == "/home/me/train.py:2 in train"


FACTS = {"format": 1, "rank": 0, "world_size": 1, "host": "node", "pid": 7, "device": "cpu", "backend": "gloo",
         "torch": "2.13"}  # fmt: skip


def test_the_last_number_is_there_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "rank-0.facts.json").write_text(json.dumps(FACTS))
    last = LastStep(tmp_path / last_step_file(0))
    for number in (9, 10, 123_456):
        last.is_over(number, 5 * number)
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
    LastStep(tmp_path / last_step_file(0)).is_over(3, 99)
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
