"""Pulses made by hand: files of ranks with given steps, as a recording leaves them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ddpprof import rundir
from ddpprof.model import UNKNOWN
from ddpprof.model import pulse_layout as layout
from ddpprof.model.pulse import PulseIdentity, PulseSamples, PulseState, PulseSteps, PulseSummaries, summary_of
from ddpprof.model.tables import rows_of

SECOND = 10**9
MS = 10**6
BEGIN_NS = 1_700_000_000 * SECOND
"""begin of the first noted step of every rank"""


@dataclasses.dataclass(frozen=True)
class MadeStep:
    """A step of a rank made by hand."""

    ms: float = 100
    data_ms: float = 10
    forward_ms: float = 20
    backward_ms: float = 50
    optimizer_ms: float = 5
    wait_ms: float | None = 20
    flags: int = 0


def write_pulse(
    directory: Path,
    rank: int,
    steps: Sequence[MadeStep] = (),
    *,
    world_size: int = 2,
    host: str = "node-a",
    first_step: int = 3,
    memory_bytes: Sequence[int] = (400 * 10**6,),
    **state: int,
) -> Path:
    """Write the pulse of a rank that took these steps one after the other. `state`: fields that differ."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / rundir.pulse_file(rank)
    path.write_bytes(pulse_bytes(path, rank, steps, world_size, host, first_step, memory_bytes, state))
    return path


def pulse_bytes(
    path: Path,
    rank: int,
    steps: Sequence[MadeStep],
    world_size: int,
    host: str,
    first_step: int,
    memory_bytes: Sequence[int],
    state: dict[str, int],
) -> bytes:
    identity = PulseIdentity(
        run_id="made-by-hand",
        rank=rank,
        world_size=world_size,
        host=host,
        machine_id="of another machine",
        pid=4242 + rank,
        created_ns=BEGIN_NS,
        shared=f"/dev/shm/ddpprof-pulse-made-by-hand-{rank}",
        kept=str(path),
        local_rank=rank,
        device="cpu",
        first_step=first_step,
    )
    rows = step_rows(steps, first_step)
    end_ns = int(rows.start_ns[-1] + rows.length_ns[-1]) if steps else BEGIN_NS
    summaries = _summaries(rows)
    now = dataclasses.replace(
        layout.empty_state(),
        since_ns=end_ns,
        step=first_step + len(steps),
        step_since_ns=end_ns,
        num_steps=first_step + len(steps),
        num_summaries=len(summaries),
        num_samples=len(memory_bytes),
        tick_ns=end_ns,
        num_passes=len(steps),
    )
    content = bytearray(layout.NUM_BYTES)
    head = layout.encode_head(identity)
    content[: len(head)] = head
    content[layout.STATE_AT : layout.STATE_AT + layout.STATE.size] = layout.pack(dataclasses.replace(now, **state))
    for row in range(max(0, len(steps) - layout.NUM_STEPS_KEPT), len(steps)):
        _put(content, layout.STEPS.place(int(rows.number[row])), layout.encode_rows(rows_of(rows, slice(row, row + 1))))
    _put(content, layout.SUMMARIES_AT, layout.encode_rows(summaries))
    _put(content, layout.SAMPLES.at, layout.encode_rows(_samples(memory_bytes)))
    return bytes(content)


def _put(content: bytearray, at: int, rows: bytes) -> None:
    content[at : at + len(rows)] = rows


def step_rows(steps: Sequence[MadeStep], first_step: int = 0) -> PulseSteps:
    """Return the table of steps that follow on each other from `BEGIN_NS` on."""
    lengths = np.array([round(one.ms * MS) for one in steps], np.int64)

    def column(name: str) -> np.ndarray:
        values = (getattr(one, name) for one in steps)
        return np.array([UNKNOWN if value is None else round(value * MS) for value in values], np.int64)

    return PulseSteps(
        number=np.arange(first_step, first_step + len(steps), dtype=np.int64),
        start_ns=BEGIN_NS + np.cumsum(lengths) - lengths,
        length_ns=lengths,
        data_ns=column("data_ms"),
        forward_ns=column("forward_ms"),
        backward_ns=column("backward_ms"),
        optimizer_ns=column("optimizer_ms"),
        save_ns=np.zeros(len(steps), np.int64),
        evaluation_ns=np.zeros(len(steps), np.int64),
        wait_ns=column("wait_ms"),
        first_gradient_ns=np.full(len(steps), 5 * MS),
        flags=np.array([one.flags for one in steps], np.int64),
    )


def _summaries(rows: PulseSteps) -> PulseSummaries:
    size = layout.STEPS_PER_SUMMARY
    parts = [rows_of(rows, slice(at, at + size)) for at in range(0, len(rows) - size + 1, size)]
    table = np.array([summary_of(part, 400 * 10**6) for part in parts], np.int64)
    return PulseSummaries(*table.reshape(len(parts), len(dataclasses.fields(PulseSummaries))).T)


def _samples(memory_bytes: Sequence[int]) -> PulseSamples:
    count = len(memory_bytes)
    unknown = np.full(count, UNKNOWN)
    at = BEGIN_NS + 5 * SECOND * np.arange(count, dtype=np.int64)
    return PulseSamples(at, np.array(memory_bytes, np.int64), *[unknown] * (len(dataclasses.fields(PulseSamples)) - 2))


def state_of(path: Path) -> PulseState:
    content = path.read_bytes()
    return layout.decode_state(content[layout.STATE_AT : layout.STATE_AT + layout.STATE.size])
