"""Scalars that are written while training runs: the report's numbers, and no harm."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from tables import forward

from ddpprof.model import RecordedStep, StepMode
from ddpprof.model.light_step import measure_recorded_breakdown
from ddpprof.record.live import LiveScalars, scalars_of

MS = 1_000_000


def bare(number: int, start_ns: int, end_ns: int) -> RecordedStep:
    return RecordedStep(number=number, mode=StepMode.OFF, start_ns=start_ns, end_ns=end_ns)


def at(start: int, end: int) -> Any:
    return forward(start * MS, start * MS, end * MS, end * MS)


@pytest.mark.parametrize(
    ("forwards", "optimizers"),
    [
        pytest.param((at(10, 30),), ((70 * MS, 80 * MS),), id="one-forward"),
        pytest.param((at(10, 30), at(50, 60)), ((80 * MS, 90 * MS),), id="accumulation"),
        pytest.param((at(10, 30), at(50, 60)), ((35 * MS, 40 * MS), (80 * MS, 90 * MS)), id="two-optimizers"),
        pytest.param((at(10, 30),), (), id="no-optimizer"),
    ],
)
def test_parts_of_a_step_are_those_of_the_report(forwards: Any, optimizers: Any) -> None:
    step = structs.replace(bare(3, 0, 100 * MS), data_ns=5 * MS, forwards=forwards, optimizers=optimizers)
    parts = measure_recorded_breakdown(step)
    assert parts is not None
    assert scalars_of(step) == {
        "ddp/step_ms": 100,
        "ddp_step/forward_ms": parts.forward_ns / MS,
        "ddp_step/backward_and_comm_ms": parts.backward_and_comm_ns / MS,
        "ddp_step/optimizer_ms": parts.optimizer_ns / MS,
        "ddp_step/data_ms": 5,
        "ddp_step/other_ms": parts.other_ns / MS,
    }


def test_a_step_without_a_forward_tells_its_length() -> None:
    assert scalars_of(bare(0, 10 * MS, 30 * MS)) == {"ddp/step_ms": 20}


@pytest.mark.parametrize("as_writer", [False, True])
def test_every_rank_has_a_run_of_its_own(tmp_path: Path, as_writer: bool) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for rank in (0, 1):
        live = LiveScalars(SimpleNamespace(log_dir=str(tmp_path)) if as_writer else tmp_path)
        live.open(rank, of_launches=False)
        for step in range(3):
            live.add(bare(step, 0, (step + rank + 1) * MS))
        live.close()
    for rank in (0, 1):
        events = accumulator.EventAccumulator(str(tmp_path / f"ddpprof-rank-{rank}")).Reload()
        found = [(event.step, event.value) for event in events.Scalars("ddp/step_ms")]
        assert found == [(step, step + rank + 1) for step in range(3)]


def test_where_nothing_can_be_written_one_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    live = LiveScalars(tmp_path / "file")
    live.open(0, of_launches=False)
    live.add(bare(0, 0, 1))
    live.close()
    said = capsys.readouterr().err
    assert said.startswith("ddpprof: no live scalars: ")
    assert said.endswith("Training goes on.\n")
    assert said.count("\n") == 1


def test_a_disk_that_fails_later_stops_only_the_writing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    live = LiveScalars(tmp_path)
    live.open(0, of_launches=False)
    live.add(bare(0, 0, "no time"))  # type: ignore[arg-type]
    live.close()
    assert capsys.readouterr().err.startswith("ddpprof: no live scalars: ")
    assert "ddpprof-live" not in [thread.name for thread in threading.enumerate()]
