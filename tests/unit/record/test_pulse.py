"""A rank's pulse: what is noted, and what outlives the rank."""

from __future__ import annotations

import errno
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpprof import rundir
from ddpprof.errors import DdpprofError
from ddpprof.model import UNKNOWN
from ddpprof.model import pulse_layout as layout
from ddpprof.model.pulse import Activity, Ended, Pulse, PulseIdentity, StepFlag
from ddpprof.monitor import pulse_files
from ddpprof.monitor.pulse_files import gather_left, read_head, read_pulse
from ddpprof.record.flight_recorder import AllReduce
from ddpprof.record.last_step import LastStep
from ddpprof.record.pulse import PulseWriter
from ddpprof.record.pulse_keeper import PulseKeeper
from ddpprof.rundir import LAST_STEP, last_step_file

needs_memory = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")
pytestmark = needs_memory


def identity(directory: Path, first_step: int = 0) -> PulseIdentity:
    return PulseIdentity(
        run_id="run",
        rank=0,
        world_size=1,
        host="host",
        machine_id=pulse_files.machine_id(),
        pid=os.getpid(),
        created_ns=time.time_ns(),
        shared=str(pulse_files.shared_path(0)),
        kept=str(directory / "rank-0.pulse"),
        first_step=first_step,
    )


class Clock:
    """Replacement for the module ``time`` whose clock only a test moves."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000

    def time_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("ddpprof.record.pulse.time", clock)
    return clock


@pytest.fixture
def pulse(tmp_path: Path) -> Iterator[PulseWriter]:
    pulse = PulseWriter(identity(tmp_path))
    yield pulse
    pulse.close()


def keep(pulse: PulseWriter, said: list[str] | None = None) -> PulseKeeper:
    last_step = LastStep(Path(pulse.identity.kept).with_name(last_step_file(0)))
    warn = (said if said is not None else []).append
    return PulseKeeper(pulse, last_step, threading.get_ident(), ((8, 4), (8,)), warn)


def do(pulse: PulseWriter, clock: Clock, activity: Activity, ns: int) -> None:
    pulse.begins(activity)
    clock.now_ns += ns
    pulse.begins(Activity.OTHER)


def decoded(pulse: PulseWriter) -> Pulse:
    return layout.decode(bytes(pulse.memory))


class Reducer:
    """Stands for torch's: it tells when gradients came."""

    def __init__(self, *came_ns: int) -> None:
        self.came_ns = came_ns

    def get_backward_stats(self) -> list[int]:
        return list(self.came_ns)


def forward_ends(pulse: PulseWriter, reducer: Reducer | None, end_ns: int, synchronises: bool = True) -> None:
    """End a forward of a DDP module, on an accelerator if there is no `reducer`."""
    device = "cpu" if reducer else "cuda"
    module = SimpleNamespace(reducer=reducer, device_type=device, require_backward_grad_sync=synchronises)
    pulse.forward_ends(module, end_ns)  # type: ignore[arg-type]


def test_a_step_is_one_row_with_its_parts(clock: Clock, tmp_path: Path) -> None:
    pulse = PulseWriter(identity(tmp_path))
    do(pulse, clock, Activity.DATA, 100)
    pulse.begins(Activity.FORWARD)
    clock.now_ns += 200
    forward_ends(pulse, Reducer(55, 85), clock.now_ns)
    clock.now_ns += 5
    pulse.backward_begins()
    clock.now_ns += 480
    pulse.backward_ends()
    do(pulse, clock, Activity.OPTIMIZER, 60)
    clock.now_ns += 7
    pulse.flag(StepFlag.BEGAN_EPOCH)
    pulse.step_ends(1)
    steps = decoded(pulse).steps
    pulse.close()
    columns = (steps.number, steps.length_ns, steps.data_ns, steps.forward_ns, steps.backward_ns, steps.optimizer_ns)
    assert [column.tolist() for column in columns] == [[0], [852], [100], [200], [480], [60]]
    columns = (steps.wait_ns, steps.first_gradient_ns, steps.own_ns, steps.flags)
    assert [column.tolist() for column in columns] == [[400], [50], [452], [int(StepFlag.BEGAN_EPOCH)]]


def backward(pulse: PulseWriter, clock: Clock, reducer: Reducer | None, ns: int, synchronises: bool = True) -> None:
    forward_ends(pulse, reducer, clock.now_ns, synchronises)
    pulse.backward_begins()
    clock.now_ns += ns
    pulse.backward_ends()


def test_two_backward_passes_wait_twice(pulse: PulseWriter, clock: Clock) -> None:
    backward(pulse, clock, Reducer(3, 10), 30)
    backward(pulse, clock, Reducer(5, 10), 20)
    pulse.step_ends(1)
    assert decoded(pulse).steps.wait_ns.tolist() == [30]
    assert decoded(pulse).state.num_passes == 2


@pytest.mark.parametrize(
    ("reducer", "synchronises", "num_passes"),
    [
        pytest.param(Reducer(3), False, 0, id="without-reduction"),
        pytest.param(None, True, 1, id="on-an-accelerator"),
        pytest.param(Reducer(99), True, 1, id="times-of-another-pass"),
    ],
)
def test_waiting_that_is_not_known(
    reducer: Reducer | None, synchronises: bool, num_passes: int, pulse: PulseWriter, clock: Clock
) -> None:
    backward(pulse, clock, reducer, 10, synchronises)
    pulse.step_ends(1)
    assert decoded(pulse).steps.wait_ns.tolist() == [UNKNOWN]
    assert decoded(pulse).state.num_passes == num_passes


def test_times_count_from_a_moment_before_the_backward_pass(pulse: PulseWriter, clock: Clock) -> None:
    """The process lost its processor for 20 ns before torch noted the moment from which gradients' times count."""
    end_ns = clock.now_ns
    clock.now_ns += 20
    forward_ends(pulse, Reducer(3, 5), end_ns)
    pulse.backward_begins()
    clock.now_ns += 10
    pulse.backward_ends()
    pulse.step_ends(1)
    assert decoded(pulse).steps.wait_ns.tolist() == [10]


def test_very_many_gradients_are_looked_at_in_some_steps(pulse: PulseWriter, clock: Clock) -> None:
    for number in range(1, 7):
        backward(pulse, clock, Reducer(*[5] * 1200), 30)
        pulse.step_ends(number)
    assert decoded(pulse).steps.wait_ns.tolist() == [25, UNKNOWN, 25, UNKNOWN, UNKNOWN, 25]


def test_the_state_tells_what_happens_now(pulse: PulseWriter, clock: Clock) -> None:
    pulse.step_ends(1)
    forward_ends(pulse, None, clock.now_ns)
    clock.now_ns = 5_000_000
    pulse.backward_begins()
    state = decoded(pulse).state
    assert (state.activity, state.since_ns, state.step) == (Activity.BACKWARD, 5_000_000, 1)
    assert (state.module, state.bucket, state.num_passes) == (UNKNOWN, UNKNOWN, 1)


def test_the_ring_keeps_the_last_steps(pulse: PulseWriter, clock: Clock) -> None:
    num_steps = layout.NUM_STEPS_KEPT + 5
    for number in range(1, num_steps + 1):
        clock.now_ns += number
        pulse.step_ends(number)
    steps = decoded(pulse).steps
    assert steps.number.tolist() == list(range(5, num_steps))
    assert steps.length_ns[-1] == num_steps


def test_summaries_cover_all_steps(pulse: PulseWriter, clock: Clock) -> None:
    for number in range(1, 301):
        clock.now_ns += 10 if number <= 150 else 20
        pulse.step_ends(number)
    summaries = decoded(pulse).summaries
    assert summaries.first_step.tolist() == [0, 100, 200]
    assert summaries.num_steps.tolist() == [100, 100, 100]
    assert summaries.median_ns.tolist() == [10, 15, 20]
    assert summaries.longest_ns.tolist() == [10, 20, 20]


def test_full_summaries_become_half_as_many(monkeypatch: pytest.MonkeyPatch, pulse: PulseWriter, clock: Clock) -> None:
    monkeypatch.setattr(layout, "NUM_SUMMARIES_KEPT", 4)
    monkeypatch.setattr(layout, "SAMPLES_AT", layout.SUMMARIES_AT + 4 * layout.SUMMARY.size)
    samples = layout.NUM_SAMPLES_KEPT * layout.SAMPLE.size
    monkeypatch.setattr(layout, "NUM_BYTES", layout.SAMPLES_AT + samples)
    for number in range(1, 701):
        clock.now_ns += 10
        pulse.step_ends(number)
    summaries = decoded(pulse).summaries
    assert summaries.first_step.tolist() == [0, 200, 400, 500]
    assert summaries.num_steps.tolist() == [200, 200, 100, 200]
    assert decoded(pulse).state.steps_per_summary == 200


def test_flagged_steps_are_no_part_of_the_median(pulse: PulseWriter, clock: Clock) -> None:
    for number in range(1, 101):
        is_flagged = number % 2 == 0
        clock.now_ns += 1000 if is_flagged else 10
        if is_flagged:
            pulse.flag(StepFlag.SAVED)
        pulse.step_ends(number)
    summaries = decoded(pulse).summaries
    assert (summaries.median_ns.tolist(), summaries.num_flagged.tolist()) == ([10], [50])


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


def test_the_memory_is_read_while_the_rank_lives(pulse: PulseWriter, tmp_path: Path) -> None:
    keeper = keep(pulse)
    pulse.step_ends(1)
    assert rundir.pulses_in(tmp_path) == [0]
    assert read_pulse(tmp_path, 0).state.num_steps == 1
    assert read_head(tmp_path, 0, 10).steps.number.tolist() == [0]
    keeper.close()


def test_the_copy_is_read_on_another_machine(
    pulse: PulseWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    expected = list(range(max(0, num_steps - min(wanted, layout.NUM_STEPS_KEPT)), num_steps))
    assert read_head(tmp_path, 0, wanted).steps.number.tolist() == expected
    keeper.close()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"x" * layout.NUM_BYTES, id="something-else"),
        pytest.param(layout.HEAD.pack(layout.MAGIC, 99, 2) + b"{}" + bytes(layout.NUM_BYTES), id="newer"),
        pytest.param(layout.HEAD.pack(layout.MAGIC, 1, 1 << 60) + b"{" + bytes(layout.NUM_BYTES), id="no-json"),
    ],
)
def test_what_is_no_pulse_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "rank-0.pulse").write_bytes(content)
    with pytest.raises(DdpprofError, match=r"rank-0\.pulse cannot be read"):
        read_pulse(tmp_path, 0)
    with pytest.raises(DdpprofError, match=r"rank-0\.pulse cannot be read"):
        read_head(tmp_path, 0, 5)


def test_full_memory_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    about = identity(tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        PulseWriter(about)
    assert not list(Path(about.shared).parent.glob(f"*{Path(about.shared).name}"))


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


RANK = """
import os, sys, threading, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from unit.record.test_pulse import identity, keep
from ddpprof.record.pulse import PulseWriter
pulse = PulseWriter(identity(Path({directory!r})))
keep(pulse)
pulse.step_ends(1)
print(pulse.identity.shared, flush=True)
time.sleep(60)
"""


def test_a_killed_rank_leaves_its_pulse(tmp_path: Path) -> None:
    program = RANK.format(tests=str(Path(__file__).parents[2]), directory=str(tmp_path))
    rank = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    shared = Path(rank.stdout.readline().strip())
    gather_left()
    assert shared.exists()  # it lives
    rank.send_signal(signal.SIGKILL)
    rank.wait()
    rank.stdout.close()
    assert read_pulse(tmp_path, 0).state.num_steps == 1
    gather_left()
    assert not shared.exists()
    assert read_pulse(tmp_path, 0).state.num_steps == 1
    last_step = struct.unpack(LAST_STEP, (tmp_path / last_step_file(0)).read_bytes())
    assert last_step == (1, read_pulse(tmp_path, 0).state.step_since_ns)


@needs_memory
def test_a_pulse_of_another_version_is_left_to_it(tmp_path: Path) -> None:
    left = pulse_files.shared_path(0)
    left.write_bytes(b"a layout of the future")
    try:
        gather_left()
        assert left.exists()
    finally:
        left.unlink()


def test_an_overdue_backward_pass_has_a_bucket(
    pulse: PulseWriter, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpprof.record.pulse_keeper.OVERDUE_S", 0.0)
    launched = [AllReduce(3, 8), AllReduce(4, 3), AllReduce(5, 8), AllReduce(6, 4)]
    monkeypatch.setattr("ddpprof.record.pulse_keeper.all_reduces_since", lambda _since_ns: launched)
    keeper = keep(pulse)
    pulse.backward_begins()
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
