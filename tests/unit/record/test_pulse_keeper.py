"""What keeps a pulse while the training continues."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from msgspec import structs
from processes import wait_until
from pulse_writers import Clock, decoded, identity, keep

from ddpprof import rundir
from ddpprof.model import UNKNOWN
from ddpprof.model import pulse_layout as layout
from ddpprof.model.overdue import Frame
from ddpprof.model.pulse import Activity, Ended, PulseIdentity
from ddpprof.model.pulse_layout import state_word
from ddpprof.monitor import pulse_files
from ddpprof.monitor.pulse_files import gather_left, read_head, read_pulse
from ddpprof.record.overdue_facts import Collective
from ddpprof.record.pulse import PulseWriter
from ddpprof.record.pulse_keeper import _ROUNDS_PER_LOOK, FirstSteps, PulseKeeper, RunningPulse

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")


def test_the_copy_equals_the_memory(pulse: PulseWriter, clock: Clock, tmp_path: Path) -> None:
    keeper = keep(pulse)
    for number in range(1, 2 * layout.NUM_STEPS_KEPT):
        clock.now_ns += number
        pulse.step_ends(number)
        if number in (1, 700, 3000):
            keeper._keep()
    pulse.ends_as(Ended.FINISHED)
    keeper.close()
    assert (tmp_path / "rank-0.pulse").read_bytes() == bytes(pulse.memory)


def test_the_copy_is_never_there_in_part(pulse: PulseWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[int]] = []
    write = os.pwrite

    def looked_at_write(*where: Any) -> int:
        found.append(rundir.pulses_in(tmp_path))
        return write(*where)

    monkeypatch.setattr(os, "pwrite", looked_at_write)
    keeper = keep(pulse)
    monkeypatch.undo()
    assert found
    assert set(map(tuple, found)) == {()}
    assert rundir.pulses_in(tmp_path) == [0]
    keeper.close()


def test_the_memory_is_read_while_the_rank_lives(pulse: PulseWriter, tmp_path: Path) -> None:
    keeper = keep(pulse)
    pulse.step_ends(1)
    pulse.rows.make()
    assert rundir.pulses_in(tmp_path) == [0]
    assert read_pulse(tmp_path, 0).state.num_steps == 1
    assert read_head(tmp_path, 0, 10).steps.number.tolist() == [0]
    keeper.close()


def test_the_copy_is_read_on_another_machine(
    pulse: PulseWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpprof.record.pulse_keeper._ROUND_S", 600.0)
    keeper = keep(pulse)
    monkeypatch.setattr(pulse_files, "machine_id", lambda: "another")
    pulse.step_ends(1)
    assert read_pulse(tmp_path, 0).state.num_steps == 0
    keeper.close()
    assert read_pulse(tmp_path, 0).state.num_steps == 1


@pytest.mark.parametrize("num_steps", [1, 5, 2047, 2048, 2049, 5000])
@pytest.mark.parametrize("wanted", [1, 64, 5000])
def test_a_head_has_the_last_steps(
    num_steps: int, wanted: int, pulse: PulseWriter, clock: Clock, tmp_path: Path
) -> None:
    keeper = keep(pulse)
    for number in range(1, num_steps + 1):
        pulse.step_ends(number)
    pulse.rows.make()
    expected = list(range(max(0, num_steps - min(wanted, layout.NUM_STEPS_KEPT)), num_steps))
    assert read_head(tmp_path, 0, wanted).steps.number.tolist() == expected
    keeper.close()


def test_a_full_disk_ends_the_copying_with_one_line(
    pulse: PulseWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    keeper = keep(pulse, said)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    for _ in range(2):
        keeper._keep()
    assert len(said) == 1
    assert "No space left on device" in said[0]
    keeper.close()


def test_a_pulse_of_another_version_is_left_to_it(tmp_path: Path) -> None:
    left = pulse_files.shared_path(0)
    left.write_bytes(b"a layout of the future")
    try:
        gather_left()
        assert left.exists()
    finally:
        left.unlink()


def test_a_sample_tells_the_training_thread_from_other_threads(pulse: PulseWriter) -> None:
    keeper = keep(pulse)
    keeper._sample()
    samples = decoded(pulse).samples
    assert samples.process_cpu_ns[-1] > samples.cpu_ns[-1] > 0
    of_all, of_training = samples.queued_ns[-1], samples.training_queued_ns[-1]
    assert of_all == of_training == UNKNOWN or of_all >= of_training >= 0, "the system may not report it"
    keeper.close()


def test_an_overdue_backward_pass_has_a_bucket(
    pulse: PulseWriter, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpprof.record.pulse_keeper.OVERDUE_S", 0.0)
    launched = [Collective(at, "all_reduce", numel) for at, numel in ((3, 8), (4, 3), (5, 8), (6, 4))]
    monkeypatch.setattr("ddpprof.record.pulse_keeper.all_reduces_since", lambda _since_ns: launched)
    keeper = keep(pulse)
    pulse.backward_begins(())
    keeper._find_stack()
    state = read_pulse(tmp_path, 0).state
    assert (state.module, state.bucket, state.bucket_ns) == (0, 1, 6)
    monkeypatch.setattr("ddpprof.record.pulse_keeper.OVERDUE_S", 1e9)
    keeper._find_stack()
    assert (read_pulse(tmp_path, 0).state.bucket, read_pulse(tmp_path, 0).stack) == (UNKNOWN, None)
    keeper.close()


def test_an_overdue_step_has_a_stack(pulse: PulseWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = keep(pulse)
    keeper._find_stack()
    assert read_pulse(tmp_path, 0).stack is None
    monkeypatch.setattr("ddpprof.record.pulse_keeper.OVERDUE_S", 0.0)
    keeper._find_stack()
    stack = read_pulse(tmp_path, 0).stack
    assert stack is not None
    assert f"{__file__}:" in stack
    assert "in test_an_overdue_step_has_a_stack" in stack
    keeper.close()


def test_torch_is_asked_for_facts_as_a_step_becomes_overdue_and_where_it_stands_still_later(
    pulse: PulseWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = keep(pulse)
    now_s, asked = 100.0, []
    monkeypatch.setattr("ddpprof.record.pulse_keeper.OVERDUE_S", 0.0)
    monkeypatch.setattr("ddpprof.record.pulse_keeper.time.monotonic", lambda: now_s)
    monkeypatch.setattr(keeper, "write_facts", asked.append)

    def looks(at_s: float, line: int) -> int:
        nonlocal now_s
        now_s = at_s
        monkeypatch.setattr("ddpprof.record.pulse_keeper.frames_of", lambda _: [Frame("train.py", line, "f")])
        keeper._find_stack()
        return len(asked)

    assert [looks(100, 1), looks(101, 1)] == [1, 1]
    assert [looks(number, number) for number in range(102, 120)] == [1] * 18, "it moves on, as in an evaluation"
    assert looks(120, 119) == 2
    assert [looks(121, 5), looks(122, 5), looks(131, 5)] == [2, 2, 3]
    monkeypatch.setattr("ddpprof.record.pulse_keeper.OVERDUE_S", 1e9)
    keeper._find_stack()
    monkeypatch.setattr("ddpprof.record.pulse_keeper.OVERDUE_S", 0.0)
    assert looks(132, 5) == 4
    monkeypatch.undo()
    keeper.close()


def test_facts_can_be_read_once_a_loss_was_nan(pulse: PulseWriter, tmp_path: Path) -> None:
    keeper = keep(pulse)
    keeper.learning_rate = lambda: 0.5
    keeper.write_facts()
    assert read_head(tmp_path, 0, 0).facts is None
    pulse.backward_begins(torch.tensor(float("nan")))
    facts = read_head(tmp_path, 0, 0).facts
    assert facts is not None
    assert facts.learning_rate == 0.5
    keeper.close()


def test_an_overdue_step_of_modules_that_left_training_mode_is_an_evaluation(
    pulse: PulseWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = iter((False, False, True, False, True))
    keeper = keep(pulse, evaluates=lambda: next(modes))

    def looks(overdue_s: float) -> int:
        monkeypatch.setattr("ddpprof.record.pulse_keeper.OVERDUE_S", overdue_s)
        keeper._find_stack()
        return read_pulse(tmp_path, 0).state.evaluates

    assert [looks(1e9), looks(0.0), looks(0.0)] == [0, 1, 0]
    assert looks(0.0) == 1
    assert looks(1e9) == 0, "whatever was wrong with a module"
    keeper.close()


def test_an_evaluation_before_the_first_look_is_one(
    pulse: PulseWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mode is known from the end of the step with which the pulse begins."""
    modes = iter((False, True))
    keeper = keep(pulse, evaluates=lambda: next(modes))
    monkeypatch.setattr("ddpprof.record.pulse_keeper.OVERDUE_S", 0.0)
    keeper._find_stack()
    assert read_pulse(tmp_path, 0).state.evaluates == 1
    keeper.close()


def test_an_overdue_step_of_modules_that_train_in_evaluation_mode_is_none(
    pulse: PulseWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = keep(pulse, evaluates=lambda: True)
    monkeypatch.setattr("ddpprof.record.pulse_keeper.OVERDUE_S", 0.0)
    keeper._find_stack()
    assert read_pulse(tmp_path, 0).state.evaluates == 0
    keeper.close()


def test_it_says_if_a_disk_holds_its_copy(pulse: PulseWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the memory must stay: the next job brings it home."""
    is_held, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        goes_on.wait()

    monkeypatch.setattr("ddpprof.record.pulse_keeper._ROUND_S", 0.01)
    monkeypatch.setattr("ddpprof.record.pulse_keeper._END_S", 0.1)
    keeper = keep(pulse)
    keeper.each_round = hold
    assert is_held.wait(60)
    assert keeper.close() is False
    goes_on.set()
    keeper._thread.join()


def test_a_process_that_does_not_exit_says_where_it_stands(pulse: PulseWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpprof.record.pulse_keeper._EXIT_S", 0.05)
    keeper = keep(pulse)
    assert keeper.close(process_exits=True)
    kept = Path(pulse.identity.kept)
    wait_until(lambda: layout.decode(kept.read_bytes()).state.stack_ns != UNKNOWN, "the stack")
    assert "test_a_process_that_does_not_exit_says" in (layout.decode(kept.read_bytes()).stack or "")
    monkeypatch.setattr("sys._current_frames", dict)  # so that its thread ends
    keeper._thread.join(20)
    assert not keeper._thread.is_alive()


def test_its_end_is_known_though_its_thread_failed(pulse: PulseWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[object] = []

    def fails(_keeper: PulseKeeper) -> None:
        raise MemoryError

    monkeypatch.setattr(PulseKeeper, "_find_stack", fails)
    monkeypatch.setattr("threading.excepthook", failures.append)
    monkeypatch.setattr("ddpprof.record.pulse_keeper._ROUND_S", 0.01)
    keeper = keep(pulse)
    keeper._thread.join(20)
    assert keeper.close(), "no disk holds it"
    assert len(failures) == 1


def running(unfrozen: list[tuple[str, ...]], said: list[str]) -> RunningPulse:
    """A pulse whose notes find these parameters, round by round."""
    pulse = cast("Any", RunningPulse.__new__(RunningPulse))
    pulse.captures = SimpleNamespace(round=lambda: None)
    pulse._notes = SimpleNamespace(unfrozen=iter(unfrozen).__next__)
    pulse._job, pulse._unfrozen, pulse._looks_for_unfrozen = SimpleNamespace(warn=said.append), (), True
    pulse._num_rounds, pulse._tells_rate = 0, False
    return cast("RunningPulse", pulse)


@pytest.mark.parametrize(
    ("found", "num_said"),
    [
        pytest.param([(), (), ()], 0, id="none"),
        pytest.param([(), ("a",), ("a", "b"), ("a", "b")], 1, id="said-once-no-more-are-unfrozen"),
        pytest.param([("a",)], 0, id="perhaps-more-will-be"),
    ],
)
def test_parameters_that_ddp_does_not_average_are_named_while_the_job_trains(
    found: list[tuple[str, ...]], num_said: int
) -> None:
    said: list[str] = []
    pulse = running(found, said)
    for _ in range(len(found) * _ROUNDS_PER_LOOK):
        pulse._round()
    assert len(said) == num_said
    if said:
        assert said[0].startswith("DDP does not average the gradients of 2 parameters")
        for _ in range(_ROUNDS_PER_LOOK):
            pulse._round()  # which looks no more
    assert len(said) == num_said


class Launched:
    """Stands for the rank's job, whose run directory another rank has created."""

    rank = 0
    leads, attached = True, False

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.asked: list[bool] = []

    def find_run(self, may_lead: bool) -> Path | None:
        self.asked.append(may_lead)
        return self.directory if len(self.asked) > 1 else None

    def identity(self, directory: Path, device: str | None, first_step: int) -> PulseIdentity:
        return structs.replace(identity(directory, first_step), device=device)

    def in_this_process(self) -> bool:
        return True


@pytest.fixture
def first_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FirstSteps, Launched]]:
    monkeypatch.setattr("ddpprof.record.pulse_keeper._FIRST_ROUND_S", 0.01)
    for name, value in (("is_initialized", True), ("get_rank", 0), ("get_backend", "gloo")):
        monkeypatch.setattr(dist, name, lambda value=value: value)
    job: Any = Launched(tmp_path)
    notes: Any = SimpleNamespace(modules=[], is_evaluating=lambda: False)
    me = threading.get_ident()
    made = FirstSteps(job, notes, me, time.pthread_getcpuclockid(me))
    yield made, job
    made.end()


def test_a_rank_without_progress_in_its_first_steps_can_be_seen(
    first_steps: tuple[FirstSteps, Launched], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, job = first_steps
    first.writer.begins(Activity.FORWARD)
    first.writer.backward_ends()
    first.writer.step_ends(1)
    time.sleep(0.1)
    assert (job.asked, list(tmp_path.iterdir())) == ([], []), "it makes progress"
    began_ns = first.writer.identity.created_ns
    monkeypatch.setattr("ddpprof.record.pulse_keeper._NO_PROGRESS_S", 0.0)
    path = tmp_path / "rank-0.pulse"
    wait_until(path.exists, "the preliminary pulse")
    seen = read_pulse(tmp_path, 0)
    assert (seen.state.step, seen.identity.device, seen.identity.created_ns) == (1, "cpu", began_ns)
    assert seen.identity.shared == ""
    first.end(Ended.INTERRUPTED)
    assert read_pulse(tmp_path, 0).state.ended == Ended.INTERRUPTED


def test_a_script_that_ends_without_training_leaves_no_run(
    first_steps: tuple[FirstSteps, Launched], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = first_steps
    (tmp_path / "run.json").write_text("{}")
    monkeypatch.setattr("ddpprof.record.pulse_keeper._NO_PROGRESS_S", 0.0)
    wait_until((tmp_path / "rank-0.pulse").exists, "the preliminary pulse")
    first.end(Ended.FINISHED, process_exits=True)
    assert list(tmp_path.iterdir()) == []


def test_before_the_training_a_new_stack_is_progress(pulse: PulseWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpprof.record.pulse_keeper.OVERDUE_S", 0.0)
    keeper = keep(pulse, is_preliminary=True)
    since_ns = [pulse.words[state_word("since_ns")]]
    for stack in ("a", "a", "b"):
        monkeypatch.setattr("ddpprof.record.pulse_keeper.frames_of", lambda _walked, stack=stack: (stack,))
        keeper._find_stack()
        since_ns.append(pulse.words[state_word("since_ns")])
    assert [later > before for before, later in pairwise(since_ns)] == [False, False, True]
    keeper.close()


def test_a_pulse_goes_on_counting_passes(tmp_path: Path) -> None:
    later = PulseWriter(identity(tmp_path), threading.get_ident(), num_passes=3)
    assert decoded(later).state.num_passes == 3
    later._reduces = True
    later.backward_begins(())
    later.step_ends(1)
    assert (decoded(later).state.num_passes, decoded(later).state.num_unpaired) == (4, 0)
    later.close()
