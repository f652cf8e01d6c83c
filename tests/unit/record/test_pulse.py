"""A rank's pulse: what the training thread notes."""

from __future__ import annotations

import errno
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pulse_writers import Clock, Reducer, backward, decoded, forward_ends, identity

from ddpprof.errors import DdpprofError
from ddpprof.model import UNKNOWN
from ddpprof.model import pulse_layout as layout
from ddpprof.model.pulse import Activity, Ended, StepFlag
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
    pulse.backward_is_over()
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


def test_other_threads_wait_unseen(pulse: PulseWriter, clock: Clock) -> None:
    def takes() -> None:
        clock.now_ns += 70

    thread = threading.Thread(target=pulse.work_waits, args=(takes,))
    thread.start()
    thread.join()
    backward(pulse, clock, Reducer(5), 20)
    pulse.step_ends(1)
    assert decoded(pulse).steps.wait_ns.tolist() == [15]
    assert decoded(pulse).steps.backward_ns.tolist() == [20]


def test_two_backward_passes_wait_twice(pulse: PulseWriter, clock: Clock) -> None:
    backward(pulse, clock, Reducer(3, 10), 30)
    backward(pulse, clock, Reducer(5, 10), 20)
    pulse.step_ends(1)
    assert decoded(pulse).steps.wait_ns.tolist() == [30]
    assert decoded(pulse).state.num_passes == 2


def test_waiting_outside_backward_passes_is_waiting_too(pulse: PulseWriter, clock: Clock) -> None:
    """In a broadcast of buffers within a forward of 100 ns, and in an all-reduce of the script."""

    def takes(ns: int) -> str:
        clock.now_ns += ns
        return "done"

    pulse.begins(Activity.FORWARD)
    assert pulse.work_waits(lambda: pulse.work_waits(takes, 70)) == "done"  # as within `join()`
    clock.now_ns += 30
    backward(pulse, clock, Reducer(5), 20)
    pulse.begins(Activity.BACKWARD)
    pulse.work_waits(takes, 4)  # of a comm hook: the times of gradients contain it
    pulse.begins(Activity.OTHER)
    pulse.work_waits(takes, 200)
    clock.now_ns += 1
    with pytest.raises(ZeroDivisionError):
        pulse.work_waits(lambda: 1 // 0)
    pulse.step_ends(1)
    backward(pulse, clock, Reducer(5), 20)
    pulse.step_ends(2)
    steps = decoded(pulse).steps
    assert steps.forward_ns.tolist() == [30, 0]
    assert steps.wait_ns.tolist() == [285, 15]
    assert steps.backward_ns.tolist() == [294, 20]
    assert steps.own_ns.tolist()[1] == 5


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
    forward_ends(pulse, clock, Reducer(3, 5), after_ns=20)
    pulse.backward_begins(())
    clock.now_ns += 10
    pulse.backward_is_over()
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
            assert pulse.backward_begins(loss)
            pulse.backward_is_over()
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
    assert pulse.backward_begins(torch.empty((), device="meta"))
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
        pulse.flag(StepFlag.EVALUATED)
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


def test_a_loader_gives_its_batches_and_its_end(pulse: PulseWriter, clock: Clock) -> None:
    def fetch(batches: Iterator[int]) -> int:
        clock.now_ns += 40
        return next(batches)

    batches = iter([7, 8])
    fetched: list[int] = []
    thread = threading.Thread(target=lambda: fetched.append(pulse.loader_fetches(fetch, batches)))
    thread.start()
    thread.join()
    assert fetched == [7]  # other threads fetch unseen
    assert pulse.loader_fetches(fetch, batches) == 8
    with pytest.raises(StopIteration):
        pulse.loader_fetches(fetch, batches)
    pulse.step_ends(1)
    steps = decoded(pulse).steps
    assert (steps.data_ns.tolist(), steps.flags.tolist()) == ([80], [int(StepFlag.RAN_OUT)])


def test_passes_inside_others_and_in_other_threads_are_part_of_them(pulse: PulseWriter) -> None:
    began: list[bool] = []

    class Reentrant(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
            began.append(pulse.backward_begins(None))
            return gradient

    Reentrant.apply(torch.ones((), requires_grad=True)).backward()
    thread = threading.Thread(target=lambda: began.append(pulse.backward_begins(None)))
    thread.start()
    thread.join()
    assert began == [False, False]
    assert decoded(pulse).state.activity == Activity.OTHER


def test_an_unknown_ddp_ends_only_the_rows(pulse: PulseWriter) -> None:
    assert pulse.ddp_post_forward(lambda _ddp, output: output, object(), 3) == 3  # type: ignore[arg-type]
    pulse.step_ends(1)
    assert "require_backward_grad_sync" in (pulse.rows.problem or "")
    assert (decoded(pulse).state.step, decoded(pulse).state.num_steps) == (1, 0)


def test_an_unknown_reducer_ends_only_the_rows(pulse: PulseWriter, clock: Clock) -> None:
    forward_ends(pulse, clock, object())  # type: ignore[arg-type]
    pulse.backward_begins(None)
    pulse.backward_is_over()
    pulse.step_ends(1)
    assert "get_backward_stats" in (pulse.rows.problem or "")
    assert (decoded(pulse).state.step, decoded(pulse).state.num_steps) == (1, 0)


def test_a_problem_keeps_no_model_alive(pulse: PulseWriter) -> None:
    class Model:
        """Has nothing that DDP has."""

    model = Model()
    seen = weakref.ref(model)
    pulse.ddp_post_forward(lambda _ddp, output: output, model, 3)  # type: ignore[arg-type]
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
            pulse.forward_fails(ddp)  # type: ignore[arg-type]
        elif call == "B":
            pulse.backward_begins(None)
            pulse.backward_is_over()
        else:
            pulse.ddp_post_forward(lambda _ddp, output: output, ddp, None)  # type: ignore[arg-type]
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
