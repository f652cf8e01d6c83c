"""The pulse of one rank: what the training thread notes, and the rows made of it."""

from __future__ import annotations

import errno
import gc
import os
import threading
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pulse_writers import Clock, Reducer, backward, decoded, forward_ends, identity, keep

from ddpprof.errors import DdpprofError
from ddpprof.model import UNKNOWN
from ddpprof.model import pulse_layout as layout
from ddpprof.model.pulse import Activity, Ended, StepFlag
from ddpprof.model.pulse_layout import state_word
from ddpprof.monitor.pulse_files import read_head, read_pulse
from ddpprof.record.pulse import PulseWriter

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")


def do(pulse: PulseWriter, clock: Clock, activity: Activity, ns: int) -> None:
    pulse.begins(activity)
    clock.now_ns += ns
    pulse.begins(Activity.OTHER)


def test_a_step_is_one_row_with_its_parts(clock: Clock, tmp_path: Path) -> None:
    pulse = PulseWriter(identity(tmp_path), threading.get_ident())
    do(pulse, clock, Activity.DATA, 100)
    pulse.begins(Activity.FORWARD)
    clock.now_ns += 200
    forward_ends(pulse, clock, Reducer(55, 85))
    clock.now_ns += 5
    pulse.backward_begins(())
    clock.now_ns += 480
    pulse.backward_ends()
    do(pulse, clock, Activity.OPTIMIZER, 60)
    clock.now_ns += 7
    pulse.flagged(StepFlag.BEGAN_EPOCH)
    pulse.step_ends(1)
    steps = decoded(pulse).steps
    pulse.close()
    columns = (steps.number, steps.length_ns, steps.data_ns, steps.forward_ns, steps.backward_ns, steps.optimizer_ns)
    assert [column.tolist() for column in columns] == [[0], [852], [100], [200], [480], [60]]
    columns = (steps.wait_ns, steps.first_gradient_ns, steps.own_ns, steps.flags)
    assert [column.tolist() for column in columns] == [[400], [50], [452], [int(StepFlag.BEGAN_EPOCH)]]


def test_a_step_in_which_torch_compiles_is_flagged(
    pulse: PulseWriter, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = Counter(ok=2)
    monkeypatch.setitem(torch._dynamo.utils.counters, "frames", frames)
    for num_steps, num_compiled in enumerate((2, 3, 3, 5), 1):
        frames["ok"] = num_compiled
        clock.now_ns += 2_000_000
        pulse.step_ends(num_steps)
    is_compiled = [bool(flags & StepFlag.COMPILED) for flags in decoded(pulse).steps.flags.tolist()]
    assert is_compiled[1:] == [True, False, True]


def test_two_backward_passes_wait_twice(pulse: PulseWriter, clock: Clock) -> None:
    backward(pulse, clock, Reducer(3, 10), 30)
    backward(pulse, clock, Reducer(5, 10), 20)
    pulse.step_ends(1)
    assert decoded(pulse).steps.wait_ns.tolist() == [30]
    assert decoded(pulse).state.num_passes == 2


def test_a_backward_pass_through_two_modules_waits_after_the_last_gradient_of_both(
    pulse: PulseWriter, clock: Clock
) -> None:
    forward_ends(pulse, clock, Reducer(30, 40))
    backward(pulse, clock, Reducer(10, 20), 50)
    pulse.step_ends(1)
    forward_ends(pulse, clock, Reducer(5))  # no gradient of this one came in the pass, which began later
    clock.now_ns += 100
    backward(pulse, clock, Reducer(15, 20), 50)
    pulse.step_ends(2)
    steps = decoded(pulse).steps
    assert (steps.wait_ns.tolist(), steps.first_gradient_ns.tolist()) == ([10, 30], [10, 0])


@pytest.mark.parametrize(
    ("reducer", "synchronizes", "num_passes"),
    [
        pytest.param(Reducer(3), False, 0, id="without-reduction"),
        pytest.param(None, True, 1, id="on-an-accelerator"),
        pytest.param(Reducer(99), True, 1, id="times-of-another-pass"),
    ],
)
def test_waiting_that_is_not_known(
    reducer: Reducer | None, synchronizes: bool, num_passes: int, pulse: PulseWriter, clock: Clock
) -> None:
    backward(pulse, clock, reducer, 10, synchronizes)
    pulse.step_ends(1)
    assert decoded(pulse).steps.wait_ns.tolist() == [UNKNOWN]
    assert decoded(pulse).state.num_passes == num_passes


def test_times_count_from_a_moment_before_the_backward_pass(pulse: PulseWriter, clock: Clock) -> None:
    """The process lost its processor for 20 ns before torch noted the moment from which gradients' times count."""
    forward_ends(pulse, clock, Reducer(3, 5), after_ns=20)
    pulse.backward_begins(())
    clock.now_ns += 10
    pulse.backward_ends()
    pulse.step_ends(1)
    assert decoded(pulse).steps.wait_ns.tolist() == [10]


NAN, INFINITE, FINITE = torch.tensor(float("nan")), torch.tensor([[float("inf")]]), torch.tensor(2.5)


@pytest.mark.parametrize(
    ("losses", "noted"),
    [
        pytest.param([FINITE, FINITE], (UNKNOWN, 0, UNKNOWN), id="finite"),
        pytest.param([FINITE, NAN, FINITE, INFINITE], (1, 2, 0), id="nan-and-infinite"),
        pytest.param([FINITE, None, None, NAN, NAN], (3, 2, 0), id="after-steps-that-were-not-looked-at"),
        pytest.param([NAN], (0, 1, UNKNOWN), id="from-the-begin-on"),
        pytest.param([torch.full((2,), float("nan")), (NAN,), (), 1.0], (UNKNOWN, 0, UNKNOWN), id="not-one-tensor"),
        pytest.param([torch.empty((), device="meta"), torch.tensor(1j)], (UNKNOWN, 0, UNKNOWN), id="no-real-value"),
    ],
)
def test_a_loss_that_is_not_finite_is_noted(
    losses: list[object], noted: tuple[int, int, int], pulse: PulseWriter
) -> None:
    for number, loss in enumerate(losses, 1):
        for _ in range(2):  # as in gradient accumulation
            pulse.backward_begins(loss)
            pulse.backward_ends()
        pulse.step_ends(number)
    state = decoded(pulse).state
    assert (state.nonfinite_step, state.num_nonfinite, state.finite_step) == noted


def test_the_training_does_not_wait_for_a_loss_on_another_device(
    pulse: PulseWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[torch.Tensor] = []

    def item(loss: torch.Tensor) -> float:
        read.append(loss)
        return 1.0

    monkeypatch.setattr(torch.Tensor, "item", item)
    pulse.backward_begins(torch.empty((), device="meta"))
    assert read == []


def test_the_training_thread_makes_rows_if_nobody_else_does(pulse: PulseWriter, clock: Clock) -> None:
    """As when a disk does not answer."""
    pulse.step_ends(1)
    assert layout.decode(bytes(pulse.memory)).state.num_steps == 0
    clock.now_ns = pulse.rows.made_ns + 2 * 10**9
    pulse.step_ends(2)
    assert layout.decode(bytes(pulse.memory)).steps.number.tolist() == [0, 1]


def test_a_long_evaluation_takes_no_more_memory(pulse: PulseWriter, clock: Clock) -> None:
    clock.now_ns = 10
    for _ in range(30_000):
        pulse.flagged(StepFlag.EVALUATED)
        do(pulse, clock, Activity.EVALUATION, 7)
    assert len(pulse.rows.notes) <= 10_002
    pulse.step_ends(1)
    assert decoded(pulse).steps.evaluation_ns.tolist() == [210_000]


def test_the_state_tells_what_happens_now(pulse: PulseWriter, clock: Clock) -> None:
    pulse.step_ends(1)
    forward_ends(pulse, clock, None)
    clock.now_ns = 5_000_000
    pulse.backward_begins(())
    state = decoded(pulse).state
    assert (state.activity, state.since_ns, state.step) == (Activity.BACKWARD, 5_000_000, 1)
    assert (state.module, state.bucket, state.num_passes) == (UNKNOWN, UNKNOWN, 1)


def test_an_unknown_ddp_ends_only_the_rows(pulse: PulseWriter) -> None:
    pulse.forward_ends(object(), 3, None)  # type: ignore[arg-type]
    pulse.step_ends(1)
    assert "require_backward_grad_sync" in (pulse.rows.problem or "")
    assert (decoded(pulse).state.step, decoded(pulse).state.num_steps) == (1, 0)


def test_an_unknown_reducer_ends_only_the_rows(pulse: PulseWriter, clock: Clock) -> None:
    forward_ends(pulse, clock, object())  # type: ignore[arg-type]
    pulse.backward_begins(None)
    pulse.backward_ends()
    pulse.step_ends(1)
    assert "get_backward_stats" in (pulse.rows.problem or "")
    assert (decoded(pulse).state.step, decoded(pulse).state.num_steps) == (1, 0)


def test_a_problem_keeps_no_model_alive(pulse: PulseWriter) -> None:
    class Model:
        """Has nothing that DDP has."""

    model = Model()
    seen = weakref.ref(model)
    pulse.forward_ends(model, 3, None)  # type: ignore[arg-type]
    del model
    gc.collect()
    assert pulse.rows.problem is not None
    assert seen() is None


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"x" * layout.NUM_BYTES, id="something-else"),
        pytest.param(layout.HEAD.pack(layout.MAGIC, 99, 2) + b"{}" + bytes(layout.NUM_BYTES), id="newer"),
        pytest.param(
            layout.HEAD.pack(layout.MAGIC, layout.FORMAT, 1 << 60) + b"{" + bytes(layout.NUM_BYTES), id="no-json"
        ),
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
        PulseWriter(about, threading.get_ident())
    assert not list(Path(about.shared).parent.glob(f"*{Path(about.shared).name}"))


def a_step(pulse: PulseWriter, number: int, calls: str) -> None:
    """Take a step: `F` a forward, `x` one that fails, `f` one under ``no_sync()``, `B` a backward pass."""
    for call in calls:
        ddp = SimpleNamespace(require_backward_grad_sync=call != "f", device_type="cuda", reducer=None)
        if call == "x":
            pulse.forward_fails(ddp, ValueError())  # type: ignore[arg-type]
        elif call == "B":
            pulse.backward_begins(None)
            pulse.backward_ends()
        else:
            pulse.forward_ends(ddp, 0, None)  # type: ignore[arg-type]
    pulse.step_ends(number + 1)


@pytest.mark.parametrize(
    ("steps", "unpaired"),
    [
        pytest.param(["FB", "FB", "FB"], (0, None), id="each-has-its-backward-pass"),
        pytest.param(["FB", "xFB", "FB"], (1, 1), id="a-forward-failed"),
        pytest.param(["FB", "FB", "FFFB", "FFB"], (3, 2), id="losses-were-left-out"),
        pytest.param(["FB", "F", "FB"], (1, 1), id="the-optimizer-stepped-without"),
        pytest.param(["FFB", "FFB", "FFB"], (0, None), id="two-forwards-for-one-backward-pass"),
        pytest.param(["ffFB", "ffFB"], (0, None), id="accumulation"),
        pytest.param(["FFB", "FB", "FB"], (0, None), id="more-in-the-first-step"),
    ],
)
def test_forwards_without_a_backward_pass(
    steps: list[str], unpaired: tuple[int, int | None], pulse: PulseWriter
) -> None:
    for number, calls in enumerate(steps):
        a_step(pulse, number, calls)
    state = decoded(pulse).state
    assert (state.num_unpaired, state.unpaired_step if state.num_unpaired else None) == unpaired


@pytest.mark.parametrize("exits", [False, True])
def test_whether_the_process_exits_when_the_training_ends(exits: bool, pulse: PulseWriter) -> None:
    pulse.ends_as(Ended.FINISHED, exits)
    state = decoded(pulse).state
    assert (state.ended, state.exits) == (Ended.FINISHED, exits)


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
    samples = layout.SAMPLES._replace(at=layout.SUMMARIES_AT + 4 * layout.SUMMARY.size)
    monkeypatch.setattr(layout, "SAMPLES", samples)
    monkeypatch.setattr(layout, "NUM_BYTES", samples.end)
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
            pulse.flagged(StepFlag.SAVED)
        pulse.step_ends(number)
    summaries = decoded(pulse).summaries
    assert (summaries.median_ns.tolist(), summaries.num_flagged.tolist()) == ([10], [50])


def test_rows_are_made_by_two_threads_at_once(pulse: PulseWriter) -> None:
    done = threading.Event()

    def make() -> None:
        while not done.is_set():
            pulse.rows.make()

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 1501):
        pulse.begins(Activity.FORWARD)
        pulse.step_ends(number)
    done.set()
    for thread in threads:
        thread.join()
    steps = decoded(pulse).steps
    assert steps.number.tolist() == list(range(1500))
    assert (steps.length_ns >= 0).all()


def test_an_error_ends_the_rows_and_nothing_else(pulse: PulseWriter, clock: Clock, tmp_path: Path) -> None:
    said: list[str] = []
    keeper = keep(pulse, said)
    pulse.step_ends(1)
    pulse.rows.make()
    pulse.rows.notes.append((int(Activity.FORWARD), "no time"))
    pulse.rows.make()  # in the training thread, which says nothing
    for number in (2, 3):
        pulse.step_ends(number)
        keeper._keep()
    assert len(said) == 1
    assert "stopped recording how long steps take" in said[0]
    keeper.close()
    kept = read_pulse(tmp_path, 0)
    assert (kept.state.step, kept.steps.number.tolist(), len(pulse.rows.notes)) == (3, [0], 0)


def test_a_problem_without_words_has_the_name_of_its_error(pulse: PulseWriter) -> None:
    pulse.rows.end_for(MemoryError())
    assert pulse.rows.problem == "MemoryError"


def test_a_clock_that_stands_still_is_no_problem(clock: Clock, pulse: PulseWriter) -> None:
    for number in range(1, 61):
        clock.now_ns += 5_000_000 if number <= 20 else 0
        pulse.step_ends(number)
        if number == 20:
            pulse.rows.make()
    assert decoded(pulse).steps.length_ns.tolist() == [5_000_000] * 20 + [0] * 40
    assert (pulse.rows.problem, pulse.rows.looks_every) == (None, 1)


@pytest.mark.parametrize(("num_gradients", "every"), [(400, 1), (800, 2), (1200, 3)])
def test_with_many_gradients_some_steps_look(num_gradients: int, every: int, pulse: PulseWriter, clock: Clock) -> None:
    """They are in no rhythm that the steps of a training could have."""
    for number in range(1, 601):
        for _ in range(2):  # all passes of a step are looked at, or none
            backward(pulse, clock, Reducer(*[5] * num_gradients), 30)
        clock.now_ns += 2_000_000
        pulse.step_ends(number)
        pulse.rows.make()
    waits = decoded(pulse).steps.wait_ns
    assert set(waits[waits != UNKNOWN].tolist()) == {50}
    looked = np.flatnonzero(waits != UNKNOWN)
    assert len(looked) == pytest.approx(600 / every, rel=0.03)
    assert np.diff(looked).max() <= 2 * every
    for rhythm in (2, 3, 4, 5, 10):
        counts = np.bincount(looked % rhythm, minlength=rhythm)
        assert counts.min() >= 0.7 * counts.mean()
    assert decoded(pulse).state.num_passes == 1200


def test_few_of_very_short_steps_look(pulse: PulseWriter, clock: Clock) -> None:
    """The steps that look are 2 ms apart or more, on average."""
    looked = []
    for length_ns in (500_000, 2_000_000, 40_000_000):
        for number in range(pulse.words[state_word("step")] + 1, pulse.words[state_word("step")] + 601):
            backward(pulse, clock, Reducer(5, 5), 30)
            clock.now_ns += length_ns
            pulse.step_ends(number)
            if number % 10 == 0:
                pulse.rows.make()
        looked.append(int((decoded(pulse).steps.wait_ns[-500:] != UNKNOWN).sum()))
    assert looked == [pytest.approx(500 / 4, rel=0.03), 500, 500]
