"""Reads what the recorder wrote for one rank: ``rank-N.facts.json`` and ``rank-N.steps.jsonl``."""

from __future__ import annotations

import struct
from contextlib import suppress
from itertools import filterfalse

import msgspec

from ddpprof.files import Location
from ddpprof.files.small import read_small
from ddpprof.model import DdpModule, Record, RecordedStep
from ddpprof.model.stack import collective_of, place_of_user, stack_of_crash
from ddpprof.rundir import FORMAT, LAST_STEP, crash_file, facts_file, last_step_file, losses_file, steps_file

_MOST_STEPS_BYTES = 4 * 10**9
"""maximum size of a rank's step file; a million steps take 2 GB"""
_BAD_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Format(msgspec.Struct):
    format: int


_decode_format = msgspec.json.Decoder(_Format).decode
_decode_record = msgspec.json.Decoder(Record).decode
_decode_step = msgspec.json.Decoder(RecordedStep).decode


class BadRecordError(Exception):
    """A file of the recorder cannot be read. The message says which file, and why."""

    record: Record | None = None
    """the part of the record that could be read before the error"""


def load_record(directory: Location, rank: int) -> Record | None:
    """Return the record of one rank, or ``None`` if it left no facts. Raises `BadRecordError`."""
    path = directory / facts_file(rank)
    try:
        facts = read_small(path)
        if (number := _decode_format(facts).format) > FORMAT:
            raise BadRecordError(
                f"{path.name} has format {number}, but this version of ddpprof reads formats up to {FORMAT}"
            )
        record = _decode_record(facts)
        if (module := next(filterfalse(_has_sound_buckets, record.modules), None)) is not None:
            raise BadRecordError(f"{path.name} cannot be read: a bucket of {module.name} contains no known parameter")
        msgspec.msgpack.encode(record)  # fails for integers that a summary could not hold
        if record.ended is None:
            num_steps, ended_ns = _load_last_step(directory / last_step_file(rank))
            where = _load_crash(directory / crash_file(rank))
            record = msgspec.structs.replace(record, num_steps=num_steps, last_step_unix_ns=ended_ns, **where)
        steps, problem = _load_steps(directory / steps_file(rank))
        record = msgspec.structs.replace(record, rank=rank, steps=steps)
        if problem is None:
            return record
    except FileNotFoundError:
        return None
    except (*_BAD_JSON, OverflowError) as error:
        raise BadRecordError(f"{path.name} cannot be read: {error}") from error
    except OSError as error:
        raise BadRecordError(f"{path.name} cannot be read: {error.strerror}") from error
    bad_steps = BadRecordError(problem)
    bad_steps.record = record
    raise bad_steps


def _has_sound_buckets(module: DdpModule) -> bool:
    parameters = range(len(module.parameters))
    return all(bucket and all(index in parameters for index in bucket) for bucket in module.buckets)


def _load_crash(path: Location) -> dict[str, str | bool | None]:
    """Return where a signal such as SIGABRT ended the rank, as fields of its record; empty without such a signal."""
    try:
        text = read_small(path).decode("utf-8", "replace")
    except OSError:
        return {}
    stack = stack_of_crash(text)
    place = place_of_user(stack)
    if place is None:
        return {}
    by_library = "Fatal Python error: Aborted" in text and "Current thread" not in text
    return {"ended_place": str(place), "ended_in": collective_of(stack), "was_aborted_by_library": by_library}


def _load_last_step(path: Location) -> tuple[int | None, int | None]:
    """Return the number of steps the rank had finished, and when the last one ended; ``None`` if not recorded."""
    try:
        content = read_small(path)
    except OSError:
        return None, None
    if len(content) != struct.calcsize(LAST_STEP):
        return None, None
    num_steps, ended_ns = struct.unpack(LAST_STEP, content)
    return (num_steps, ended_ns) if 0 < num_steps < 1 << 62 and 0 < ended_ns < 1 << 62 else (None, None)


def _load_steps(path: Location) -> tuple[tuple[RecordedStep, ...], str | None]:
    """Return the steps up to the first line that cannot be read, and the reason for that.

    An incomplete last line is not an error: a process that is killed while writing leaves one.
    """
    try:
        lines = read_small(path, _MOST_STEPS_BYTES).split(b"\n")
    except FileNotFoundError:
        return (), None
    except OSError as error:
        return (), f"{path.name} cannot be read: {error.strerror}"
    torn = lines.pop()
    steps = []
    for number, line in enumerate(lines, start=1):
        try:
            steps.append(_decode_step(line))
        except _BAD_JSON as error:
            return tuple(steps), f"{path.name} line {number} cannot be read: {error}"
    if torn:
        with suppress(*_BAD_JSON):
            steps.append(_decode_step(torn))
    return tuple(steps), None


Losses = tuple[tuple[float, ...], ...]
"""for each step, starting with the first, the loss of each backward pass that began with a scalar"""


def load_losses(directory: Location, rank: int) -> Losses | None:
    """Load one rank's losses; ``None`` if there are none that can be read."""
    try:
        steps = msgspec.json.decode(read_small(directory / losses_file(rank)), type=list[list[str]])
        return tuple(tuple(map(float.fromhex, step)) for step in steps)
    except (OSError, ValueError, OverflowError, RecursionError):  # msgspec's errors are ValueErrors
        return None
