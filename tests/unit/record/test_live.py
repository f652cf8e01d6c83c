"""Scalars that are written while training runs: the numbers of the pulse, and no harm."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pulse_writers import Clock
from pulses import steps_of

from ddpprof.model import pulse_layout as layout
from ddpprof.record.live import LiveScalars, scalars_of
from ddpprof.record.pulse import PulseWriter

MS = 1_000_000
pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")


def test_parts_add_up_to_the_step() -> None:
    steps = steps_of([{}, {"data": 15.0, "wait": -1.0}])
    assert {tag: pytest.approx(values.tolist(), nan_ok=True) for tag, values in scalars_of(steps).items()} == {
        "ddp/step_ms": [60, 70],
        "ddp/wait_ms": [10, float("nan")],
        "ddp/own_ms": [50, float("nan")],
        "ddp_step/forward_ms": [20, 20],
        "ddp_step/backward_and_comm_ms": [30, 30],
        "ddp_step/optimizer_ms": [4, 4],
        "ddp_step/data_ms": [5, 15],
        "ddp_step/other_ms": [1, 1],
    }


def take_steps(pulse: PulseWriter, clock: Clock, num_steps: int) -> None:
    for number in range(num_steps):
        clock.now_ns += (number + 1) * MS
        pulse.step_ends(number + 1)
    pulse.rows.make()


def lengths_in(directory: Path) -> dict[int, float]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(directory / "ddpprof-rank-0"), {"scalars": 0}).Reload()
    return {event.step: event.value for event in events.Scalars("ddp/step_ms")}


@pytest.mark.parametrize("as_writer", [False, True])
def test_every_step_is_written_once(as_writer: bool, tmp_path: Path, clock: Clock, pulse: PulseWriter) -> None:
    pytest.importorskip("tensorboard")
    live = LiveScalars(SimpleNamespace(log_dir=str(tmp_path)) if as_writer else tmp_path)
    live.open(pulse, of_launches=False)
    take_steps(pulse, clock, 3)
    live.close()
    assert lengths_in(tmp_path) == {0: 1, 1: 2, 2: 3}


def test_of_more_steps_than_are_kept_the_last_are_written(
    tmp_path: Path, clock: Clock, pulse: PulseWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a disk is slow."""
    pytest.importorskip("tensorboard")
    monkeypatch.setattr("ddpprof.record.live._EVERY_S", 60.0)
    monkeypatch.setattr("ddpprof.record.live._BETWEEN_S", 0.0)
    live = LiveScalars(tmp_path)
    live.open(pulse, of_launches=False)
    take_steps(pulse, clock, layout.NUM_STEPS_KEPT + 7)
    live.close()
    assert sorted(lengths_in(tmp_path)) == list(range(7, layout.NUM_STEPS_KEPT + 7))


def test_where_nothing_can_be_written_one_line_says_so(
    tmp_path: Path, clock: Clock, pulse: PulseWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    live = LiveScalars(tmp_path / "file")
    live.open(pulse, of_launches=False)
    take_steps(pulse, clock, 1)
    live.close()
    said = capsys.readouterr().err
    assert said.startswith("ddpprof: no live scalars: ")
    assert said.endswith("Training goes on.\n")
    assert said.count("\n") == 1


def test_without_a_pulse_one_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live = LiveScalars(tmp_path)
    live.open(None, of_launches=False)
    live.close()
    assert capsys.readouterr().err == (
        "ddpprof: no live scalars: they are read from the pulse, which is switched off or has no memory. "
        "Training goes on.\n"
    )


def test_a_disk_that_fails_later_stops_only_the_writing(
    tmp_path: Path, clock: Clock, pulse: PulseWriter, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    pytest.importorskip("tensorboard")

    def full(*_: object) -> None:
        raise OSError("no space left")

    live = LiveScalars(tmp_path)
    live.open(pulse, of_launches=False)
    monkeypatch.setattr("tensorboard.summary.writer.record_writer.RecordWriter.write", full)
    take_steps(pulse, clock, 2)
    live.close()
    assert capsys.readouterr().err == "ddpprof: no live scalars: no space left. Training goes on.\n"
    assert "ddpprof-live" not in [thread.name for thread in threading.enumerate()]
