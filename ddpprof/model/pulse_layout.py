"""The layout of a pulse file. The file has a fixed size and consists of

    head        identity of the rank, and the version of the format
    state       current activity of the rank
    stack       stack of the training thread as text, if a step is overdue
    facts       further facts from the process if a step is overdue, as JSON: see `OverdueFacts`
    steps       one row for each of the most recent steps, in a ring buffer
    summaries   one row per 100 steps, later per 200, 400, …, starting at the first step
    samples     one row per second with the machine resources used by the process, in a ring buffer

All numbers are signed 64-bit little-endian integers; `UNKNOWN` stands for unknown values.
"""

from __future__ import annotations

import struct
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from ddpprof.model.pulse import Pulse, PulseIdentity, PulseSamples, PulseState, PulseSteps, PulseSummaries
from ddpprof.model.tables import UNKNOWN, rows_of

MAGIC = b"ddpprofp"
FORMAT = 7
NUM_STEPS_KEPT = 2048
NUM_SUMMARIES_KEPT = 4096
NUM_SAMPLES_KEPT = 1024
STEPS_PER_SUMMARY = 100
"""initial number of steps per summary; whenever the table of summaries is full, each pair of summaries is merged"""


_Columns = TypeVar("_Columns", PulseSteps, PulseSummaries, PulseSamples)


def _row(columns: type[Any]) -> struct.Struct:
    return struct.Struct(f"<{len(fields(columns))}q")


class Ring(NamedTuple):
    """A ring buffer in the file, in which new rows replace the oldest rows."""

    at: int
    """offset of the first row in the file, in bytes"""
    num_places: int
    row: struct.Struct

    @property
    def end(self) -> int:
        return self.at + self.num_places * self.row.size

    def place(self, number: int) -> int:
        """Return the file offset of the row with this number."""
        return self.at + number % self.num_places * self.row.size

    def spans(self, first: int, until: int) -> list[tuple[int, int]]:
        """Return the byte ranges of the rows `first` to `until - 1`, except rows that have been overwritten."""
        first = max(first, until - self.num_places)
        if first >= until:
            return []
        begin, end = self.place(first), self.place(until - 1) + self.row.size
        return [(begin, end)] if begin < end else [(begin, self.end), (self.at, end)]


HEAD = struct.Struct("<8sqq")
"""magic bytes, format version, and size in bytes of the identity; the identity follows as JSON"""
HEAD_BYTES = 4096
STATE = _row(PulseState)
STATE_AT = HEAD_BYTES
STATE_BYTES = 256
STACK_AT = STATE_AT + STATE_BYTES
STACK_BYTES = 4096 - STATE_BYTES
FACTS_AT = STACK_AT + STACK_BYTES
FACTS_BYTES = 8192
STEPS = Ring(FACTS_AT + FACTS_BYTES, NUM_STEPS_KEPT, _row(PulseSteps))
SUMMARY = _row(PulseSummaries)
SUMMARIES_AT = STEPS.end
SAMPLES = Ring(SUMMARIES_AT + NUM_SUMMARIES_KEPT * SUMMARY.size, NUM_SAMPLES_KEPT, _row(PulseSamples))
NUM_BYTES = SAMPLES.end


def state_word(name: str) -> int:
    """Return the offset of a field of `PulseState` in the file, in 8-byte words."""
    return STATE_AT // 8 + [field.name for field in fields(PulseState)].index(name)


def write_state(words: memoryview[int], name: str, value: int) -> None:
    """Set a field of `PulseState` in a pulse that is mapped as 8-byte words."""
    words[state_word(name)] = value


class NotAPulseError(ValueError):
    """The bytes are not a pulse, or have an unsupported format."""


def encode_head(identity: PulseIdentity) -> bytes:
    """Return the encoded head of the file. Raises `ValueError` if it is too large."""
    content = msgspec.json.encode(identity)
    if len(content) > HEAD_BYTES - HEAD.size:
        raise ValueError("the paths of the run are too long for a pulse file")
    return HEAD.pack(MAGIC, FORMAT, len(content)) + content


def decode_identity(head: bytes) -> PulseIdentity:
    """Decode the identity from the first `HEAD_BYTES` bytes of a pulse. Raises `NotAPulseError`."""
    if len(head) < HEAD_BYTES:
        raise NotAPulseError("it is truncated")
    magic, number, num_bytes = HEAD.unpack_from(head)
    if magic != MAGIC:
        raise NotAPulseError("it is not a pulse file")
    if number != FORMAT:
        raise NotAPulseError(f"it has format {number}, but this version of ddpprof reads format {FORMAT}")
    try:
        return msgspec.json.decode(head[HEAD.size : HEAD.size + max(num_bytes, 0)], type=PulseIdentity)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotAPulseError(f"its header cannot be read: {error}") from error


def decode_state(content: bytes) -> PulseState:
    """Decode the state from at least `STATE.size` bytes. Raises `NotAPulseError`."""
    if len(content) < STATE.size:
        raise NotAPulseError("it is truncated")
    return PulseState(*STATE.unpack_from(content))


def decode_rows(columns: type[_Columns], content: bytes) -> _Columns:
    """Decode consecutive, complete rows into columns."""
    table = np.frombuffer(content, dtype="<i8").reshape(-1, len(fields(columns)))
    return columns(*(np.ascontiguousarray(column) for column in table.T))


def decode(content: bytes) -> Pulse:
    """Decode the content of a pulse file, except rows that are being written. Raises `NotAPulseError`."""
    if len(content) < NUM_BYTES:
        raise NotAPulseError("it is truncated")
    identity = decode_identity(content[:HEAD_BYTES])
    state = decode_state(content[STATE_AT : STATE_AT + STATE_BYTES])
    return Pulse(
        identity=identity,
        state=state,
        stack=decode_stack(state, content[STACK_AT : STACK_AT + STACK_BYTES]),
        steps=in_order(decode_rows(PulseSteps, content[STEPS.at : STEPS.end]), identity, state),
        summaries=_summaries(content[SUMMARIES_AT : SAMPLES.at], state),
        samples=_samples(content[SAMPLES.at : SAMPLES.end], state),
    )


def decode_stack(state: PulseState, content: bytes) -> str | None:
    """Return the stack if the rank's step is overdue, otherwise ``None``."""
    if state.stack_ns == UNKNOWN:
        return None
    return content.partition(b"\0")[0].decode(errors="replace") or None


def in_order(ring: PulseSteps, identity: PulseIdentity, state: PulseState) -> PulseSteps:
    """Return the rows of the ring buffer in step order, without rows that contain a different step than expected."""
    first = max(identity.first_step, state.num_steps - NUM_STEPS_KEPT, 0)
    numbers = np.arange(first, max(state.num_steps, first), dtype=np.int64)
    steps = rows_of(ring, numbers % NUM_STEPS_KEPT)
    return rows_of(steps, steps.number == numbers)


def _summaries(content: bytes, state: PulseState) -> PulseSummaries:
    summaries = decode_rows(PulseSummaries, content)
    return rows_of(summaries, slice(0, min(max(state.num_summaries, 0), NUM_SUMMARIES_KEPT)))


def _samples(content: bytes, state: PulseState) -> PulseSamples:
    ring = decode_rows(PulseSamples, content)
    numbers = np.arange(max(0, state.num_samples - NUM_SAMPLES_KEPT), max(0, state.num_samples), dtype=np.int64)
    return rows_of(ring, numbers % NUM_SAMPLES_KEPT)


def pack(row: Any) -> bytes:
    """Encode a state or row, given as a dataclass of integers."""
    return struct.pack(f"<{len(fields(row))}q", *(getattr(row, field.name) for field in fields(row)))


def encode_rows(columns: PulseSteps | PulseSummaries | PulseSamples) -> bytes:
    """Encode the rows of a table."""
    table = np.column_stack([getattr(columns, field.name) for field in fields(columns)])
    return table.astype("<i8").tobytes()


def empty_state() -> PulseState:
    """Return the state of a new pulse."""
    values: dict[str, int] = dict.fromkeys((field.name for field in fields(PulseState)), 0)
    absent = dict.fromkeys(("module", "bucket", "stack_ns", "ended_ns", "nonfinite_step", "finite_step"), UNKNOWN)
    return PulseState(**{**values, **absent, "steps_per_summary": STEPS_PER_SUMMARY})
