"""Scalars that are written while training runs: the numbers of the pulse, and no harm."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pulse_writers import Clock
from pulses import steps_of

from ddpprof.model import pulse_layout as layout
from ddpprof.model.pulse import StepFlag
from ddpprof.record.live import LiveScalars, scalars_of
from ddpprof.record.pulse import PulseWriter

MS = 1_000_000
NAN = float("nan")
needs_a_pulse = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")


def test_parts_add_up_to_the_step() -> None:
    steps = steps_of([{}, {"data": 15.0, "wait": -1.0}])
    assert {tag: pytest.approx(values.tolist(), nan_ok=True) for tag, values in scalars_of(steps).items()} == {
        "ddp_live/step_ms": [60, 70],
        "ddp_live/wait_ms": [10, NAN],
        "ddp_live/own_ms": [50, NAN],
        "ddp_live/forward_ms": [20, 20],
        "ddp_live/backward_ms": [30, 30],
        "ddp_live/optimizer_ms": [4, 4],
        "ddp_live/data_ms": [5, 15],
        "ddp_live/other_ms": [1, 1],
    }


def test_a_step_without_a_forward_tells_its_length() -> None:
    known = {tag for tag, values in scalars_of(steps_of([{"forward": 0.0}])).items() if values[0] == values[0]}
    assert known == {"ddp_live/step_ms", "ddp_live/wait_ms", "ddp_live/own_ms"}


def take_steps(pulse: PulseWriter, clock: Clock, first: int, until: int) -> None:
    """Take steps whose lengths in ms are their numbers."""
    for number in range(first, until):
        clock.now_ns += number * MS
        pulse.step_ends(number + 1)


def lengths_in(directory: Path) -> list[tuple[int, float]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(directory / "ddpprof-rank-0"), {"scalars": 0}).Reload()
    written = "ddp_live/step_ms" in events.Tags()["scalars"]
    return [(event.step, event.value) for event in events.Scalars("ddp_live/step_ms")] if written else []


def begin(target: Any, pulse: PulseWriter) -> LiveScalars:
    pytest.importorskip("tensorboard")
    live = LiveScalars(target)
    live.open(0)
    live.read(pulse, of_launches=False)
    return live


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@needs_a_pulse
@pytest.mark.parametrize("as_writer", [False, True])
def test_every_step_is_written_once(
    as_writer: bool, tmp_path: Path, clock: Clock, pulse: PulseWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpprof.record.live._EVERY_S", 0.01)
    live = begin(SimpleNamespace(log_dir=str(tmp_path)) if as_writer else tmp_path, pulse)
    take_steps(pulse, clock, 0, 3)
    wait_until(lambda: len(lengths_in(tmp_path)) == 3)
    take_steps(pulse, clock, 3, 5)
    live.close()
    assert lengths_in(tmp_path) == [(step, step) for step in range(5)]


@needs_a_pulse
def test_steps_that_were_recorded_in_detail_are_left_out(tmp_path: Path, clock: Clock, pulse: PulseWriter) -> None:
    live = begin(tmp_path, pulse)
    take_steps(pulse, clock, 0, 1)
    pulse.flag(StepFlag.RECORDED)
    take_steps(pulse, clock, 1, 3)
    live.close()
    assert lengths_in(tmp_path) == [(0, 0), (2, 2)]


@needs_a_pulse
def test_only_the_last_steps_are_written_if_the_ring_overflows(
    tmp_path: Path, clock: Clock, pulse: PulseWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a disk is slow."""
    monkeypatch.setattr("ddpprof.record.live._EVERY_S", 60.0)
    live = begin(tmp_path, pulse)
    take_steps(pulse, clock, 0, layout.NUM_STEPS_KEPT + 7)
    live.close()
    assert [step for step, _ in lengths_in(tmp_path)] == list(range(7, layout.NUM_STEPS_KEPT + 7))


@needs_a_pulse
def test_where_nothing_can_be_written_one_line_says_so(
    tmp_path: Path, clock: Clock, pulse: PulseWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    live = begin(tmp_path / "file", pulse)
    take_steps(pulse, clock, 0, 1)
    live.close()
    said = capsys.readouterr().err
    assert said.startswith("ddpprof: no live scalars: ")
    assert said.endswith("Training goes on.\n")
    assert said.count("\n") == 1


@needs_a_pulse
def test_a_disk_that_fails_later_stops_only_the_writing(
    tmp_path: Path,
    clock: Clock,
    pulse: PulseWriter,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    live = begin(tmp_path, pulse)
    monkeypatch.setattr("tensorboard.summary.writer.record_writer.RecordWriter.write", full)
    take_steps(pulse, clock, 0, 2)
    live.close()
    assert capsys.readouterr().err == "ddpprof: no live scalars: no space left. Training goes on.\n"
    assert "ddpprof-live" not in [thread.name for thread in threading.enumerate()]
