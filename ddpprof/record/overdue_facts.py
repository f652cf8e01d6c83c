"""Tells what only this process knows of a step that takes far too long: see `OverdueFacts`."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from ddpprof.model.overdue import Call, KindOfCall, OverdueFacts, Wait, crc_of
from ddpprof.model.stack import frames_of, place_of_user
from ddpprof.monitor.processes import wait_of
from ddpprof.record.flight_recorder import NumberedCollective, numbered_collectives

_MOST_CALLS = 150
_MOST_KINDS = 60
_MOST_CHARACTERS = 200
_OF_LOOPS = (StopIteration, GeneratorExit, KeyboardInterrupt, SystemExit)
"""exceptions that a thread handles when nothing is wrong"""


def overdue_facts(training_thread: int, since_ns: int, learning_rate: float | None, stack: str) -> OverdueFacts:
    """Return what is known of a training thread, which stands at `stack`.

    `since_ns`: beginning of the steps whose collectives are counted.
    """
    collectives = numbered_collectives()
    error, place = _error_of(training_thread)
    return OverdueFacts(
        stack_crc=crc_of(stack),
        calls=tuple(Call(one.group, one.sequence, one.name, one.numel) for one in collectives[-_MOST_CALLS:]),
        kinds=_kinds([one for one in collectives[:-1] if one.created_ns >= since_ns]),
        error=error,
        error_place=place,
        wait=_wait_of(training_thread),
        learning_rate=learning_rate,
        peer=_peer_of(training_thread),
        thread=None if training_thread == threading.main_thread().ident else _number_of(training_thread),
        saves_in_thread=any(
            _saves(frame) for thread, frame in sys._current_frames().items() if thread != training_thread
        ),
    )


def _kinds(collectives: Sequence[NumberedCollective]) -> tuple[KindOfCall, ...]:
    numbers: dict[tuple[str, str, int], list[int]] = {}
    for one in collectives:
        numbers.setdefault((one.group, one.name, one.numel), []).append(one.sequence)
    most_frequent = sorted(numbers.items(), key=lambda kind: -len(kind[1]))[:_MOST_KINDS]
    return tuple(KindOfCall(*kind, len(known), tuple(known[-2:])) for kind, known in most_frequent)


def _error_of(thread: int) -> tuple[str | None, str | None]:
    """Return the exception that a thread is handling, and the line of the user's code that raised it."""
    found = sys._current_exceptions().get(thread)
    error = found[1] if isinstance(found, tuple) else found  # Python 3.11 gives a tuple
    if not isinstance(error, BaseException) or isinstance(error, _OF_LOOPS):
        return None, None
    place = place_of_user(frames_of(traceback.walk_tb(error.__traceback__)))
    if place is None:
        return None, None
    said = " ".join(str(error).split())[:_MOST_CHARACTERS]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__, str(place)


def _wait_of(thread: int) -> Wait | None:
    with suppress(OSError):
        number = _number_of(thread)
        return None if number is None else wait_of(Path(f"/proc/self/task/{number}"))
    return None


def _number_of(thread: int) -> int | None:
    return next((one.native_id for one in threading.enumerate() if one.ident == thread), None)


def _saves(frame: FrameType) -> bool:
    """Return whether a thread is within ``torch.save``."""
    frames = frames_of(traceback.walk_stack(frame))
    return any(one.function == "save" and one.file.endswith("/torch/serialization.py") for one in frames)


def _peer_of(thread: int) -> int | None:
    """Return the rank that the thread names in the arguments of ``send`` or ``recv``, if it is in one of these."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        name = {"send": "dst", "recv": "src"}.get(frame.f_code.co_name)
        if name is not None and frame.f_code.co_filename.endswith("/distributed_c10d.py"):
            peer = frame.f_locals.get(name)
            return peer if isinstance(peer, int) else None
        frame = frame.f_back
    return None
