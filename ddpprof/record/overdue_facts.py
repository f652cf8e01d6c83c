"""Collect facts about an overdue step or a failed rank that only the rank's process can determine: see `OverdueFacts`.

Torch's flight recorder is on by default and records all collectives. It shows which bucket was launched last, and which
collectives of the last step did not occur in earlier steps. ddpprof reads it when a step is overdue or the rank has
failed. A dump of its 2,000 entries takes about 50 ms.
"""

from __future__ import annotations

import json
import math
import pickle
import sys
import threading
import traceback
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from ddpprof.model.overdue import Call, Frame, KindOfCall, OverdueFacts, Wait, crc_of, frames_of, place_of_user
from ddpprof.monitor.processes import wait_of

_OF_NCCL, _OF_GLOO = "_dump_nccl_trace_json", "_dump_fr_trace_json"
"""names of PyTorch's functions that return the contents of the flight recorder"""
_WITHOUT_WAITING = ("broadcast", "scatter", "send")
"""operations that may return on the sending rank without any other rank taking part"""
_ALL_REDUCE = ("all_reduce", "allreduce")
_LEAST_STEPS = 5
"""a collective may count as unusual once there are at least this many earlier steps"""


class Collective(NamedTuple):
    created_ns: int
    """time at which the collective was called, in ns since 1970"""
    name: str
    numel: int
    group: str = ""
    sequence: int = 0
    """sequence number in the process group"""
    is_p2p: bool = False
    is_over: bool = False
    """whether the collective has ended, or has timed out"""


def collectives(*, of_nccl: bool = True) -> tuple[Collective, ...]:
    """Return the collectives launched by this process, in launch order; empty if torch has no flight recorder.

    `of_nccl`: include NCCL's flight recorder, which is tried first.
    """
    for name in (_OF_NCCL, _OF_GLOO) if of_nccl else (_OF_GLOO,):
        dump = getattr(getattr(torch._C, "_distributed_c10d", None), name, None)
        if dump is not None:
            with suppress(RuntimeError, TypeError, ValueError, AttributeError, LookupError):
                entries = json.loads(dump(True, False)).get("entries", [])
                found = tuple(sorted(_collective(entry) for entry in entries if "time_created_ns" in entry))
                if found:
                    return found
    return ()


def _collective(entry: dict[str, Any]) -> Collective:
    return Collective(
        int(entry["time_created_ns"]),
        str(entry.get("profiling_name", "")).rpartition(":")[2],
        math.prod((entry.get("input_sizes") or [[0]])[0]),
        str((entry.get("process_group") or ("",))[0]),
        int(entry.get("collective_seq_id", 0)),
        bool(entry.get("is_p2p")),
        bool(entry.get("retired")),
    )


def all_reduces_since(since_ns: int) -> tuple[Collective, ...]:
    """Return the all-reduces that this process has launched since `since_ns`, in launch order."""
    return tuple(one for one in collectives() if one.name in _ALL_REDUCE and one.created_ns >= since_ns)


def unusual_collective(noted: Sequence[Collective], step_starts_ns: Sequence[int]) -> Collective | None:
    """Return the first collective that was called more often in the last step than in any earlier step.

    Only collectives in `_WITHOUT_WAITING` are considered. `step_starts_ns`: start times of the most recent steps, in
    order. Returns ``None`` if fewer than five earlier steps had collectives.
    """
    steps: list[Counter[tuple[str, int]]] = [Counter() for _ in step_starts_ns]
    most: Counter[tuple[str, int]] = Counter()
    unusual = None
    for one in noted:
        index = bisect_right(step_starts_ns, one.created_ns) - 1
        if index < 0:
            continue
        kind = (one.name, one.numel)
        steps[index][kind] += 1
        if index < len(steps) - 1:
            most[kind] = max(most[kind], steps[index][kind])
        elif unusual is None and one.name in _WITHOUT_WAITING and steps[index][kind] > most[kind]:
            unusual = one
    return unusual if sum(map(bool, steps[:-1])) >= _LEAST_STEPS else None


def place_of(collective: Collective) -> str | None:
    """Return the line of the user's code that called `collective`, as ``file:line in function``.

    Torch symbolizes all stacks, which takes about a second. With NCCL this may hang, so it is used only for gloo.
    """
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace", None)
    if dump is None:
        return None
    entries = pickle.loads(dump(True, True, False))["entries"]  # noqa: S301 (torch has just created it)
    stacks = (one["frames"] for one in entries if one["time_created_ns"] == collective.created_ns)
    stack = [Frame(one["filename"], one["line"], one["name"]) for one in next(stacks, [])]
    place = place_of_user(stack[::-1])
    return None if place is None else str(place)


class LastBucket(NamedTuple):
    """The bucket that was launched last in a backward pass."""

    module: int
    bucket: int
    """index of the bucket in its DDP module"""
    bucket_ns: int
    """time at which the bucket was launched, in ns since 1970"""


def last_bucket(launched: Sequence[Collective], bucket_numels: Sequence[Sequence[int]]) -> LastBucket | None:
    """Return the bucket that was launched last in a backward pass.

    `launched`: all-reduces launched in the backward pass. `bucket_numels`: number of elements of each bucket, by
    module. Each module's reducer launches its buckets in order. All-reduces of other sizes are ignored.
    """
    following = [0] * len(bucket_numels)
    found = None
    for one in launched:
        for module, numels in enumerate(bucket_numels):
            index = following[module]
            if index < len(numels) and numels[index] == one.numel:
                following[module] = index + 1
                found = LastBucket(module, index, one.created_ns)
                break
    return found


_MOST_CALLS = 150
_MOST_KINDS = 60
_MOST_CHARACTERS = 200
_OF_LOOPS = (StopIteration, GeneratorExit, KeyboardInterrupt, SystemExit)
"""exceptions that a thread handles even if there is no error"""


def overdue_facts(training_thread: int, since_ns: int, learning_rate: float | None, stack: str) -> OverdueFacts:
    """Return facts about the training thread. `stack`: current stack of this thread.

    `since_ns`: time (ns since 1970) from which collectives are counted.
    """
    all_launched = collectives()
    launched = [one for one in all_launched if not one.is_p2p]
    error, place = _error_of(training_thread)
    return OverdueFacts(
        stack_crc=crc_of(stack),
        calls=tuple(Call(one.group, one.sequence, one.name, one.numel) for one in launched[-_MOST_CALLS:]),
        kinds=_kinds([one for one in launched[:-1] if one.created_ns >= since_ns]),
        error=error,
        error_place=place,
        wait=_wait_of(training_thread),
        learning_rate=learning_rate,
        peer=_peer_of(training_thread),
        thread=None if training_thread == threading.main_thread().ident else _number_of(training_thread),
        saves_in_thread=any(
            _saves(frame) for thread, frame in sys._current_frames().items() if thread != training_thread
        ),
        last_p2p=_last_p2p(all_launched),
        ended_thread=_ended_threads[-1] if _ended_threads else None,
    )


def _last_p2p(launched: Sequence[Collective]) -> str | None:
    """Return the point-to-point operation for which a thread in ``Work.wait()`` waits; ``None`` if it is a collective.

    Gloo does not record point-to-point operations. If its last collective is over, the thread waits for such an
    operation.
    """
    last = launched[-1] if launched else None
    if last is None:
        return None
    return last.name if last.is_p2p else "isend or irecv" if last.is_over else None


_ended_threads: deque[str] = deque(maxlen=1)


def note_ended_thread(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``threading.excepthook``, to record the exceptions that end threads."""

    def hook(args: Any, /) -> Any:
        with suppress(Exception):
            if not issubclass(args.exc_type, SystemExit):
                error, place = _said(args.exc_value or args.exc_type())
                name = "?" if args.thread is None else args.thread.name
                _ended_threads.append(f"its thread {name} has ended with {error}{f' at {place}' if place else ''}")
        return original(args)

    return hook


def _kinds(launched: Sequence[Collective]) -> tuple[KindOfCall, ...]:
    numbers: dict[tuple[str, str, int], list[int]] = {}
    for one in launched:
        numbers.setdefault((one.group, one.name, one.numel), []).append(one.sequence)
    most_frequent = sorted(numbers.items(), key=lambda kind: -len(kind[1]))[:_MOST_KINDS]
    return tuple(KindOfCall(*kind, len(known), tuple(known[-2:])) for kind, known in most_frequent)


def _error_of(thread: int) -> tuple[str | None, str | None]:
    """Return the exception that a thread is handling, and the line of the user's code that raised it."""
    found = sys._current_exceptions().get(thread)
    error = found[1] if isinstance(found, tuple) else found  # Python 3.11 returns a tuple
    if not isinstance(error, BaseException) or isinstance(error, _OF_LOOPS):
        return None, None
    said, place = _said(error)
    return (None, None) if place is None else (said, place)


def _said(error: BaseException) -> tuple[str, str | None]:
    """Return the type and message of an exception, and the line of the user's code that raised it."""
    place = place_of_user(frames_of(traceback.walk_tb(error.__traceback__)))
    said = " ".join(str(error).split())[:_MOST_CHARACTERS]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__, None if place is None else str(place)


def _wait_of(thread: int) -> Wait | None:
    with suppress(OSError):
        number = _number_of(thread)
        return None if number is None else wait_of(Path(f"/proc/self/task/{number}"))
    return None


def _number_of(thread: int) -> int | None:
    return next((one.native_id for one in threading.enumerate() if one.ident == thread), None)


def _saves(frame: FrameType) -> bool:
    """Return True if the stack that ends at `frame` contains ``torch.save``."""
    frames = frames_of(traceback.walk_stack(frame))
    return any(one.function == "save" and one.file.endswith("/torch/serialization.py") for one in frames)


def _peer_of(thread: int) -> int | None:
    """Return the peer's rank if the thread is in ``send`` or ``recv``; otherwise ``None``."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        name = {"send": "dst", "recv": "src"}.get(frame.f_code.co_name)
        if name is not None and frame.f_code.co_filename.endswith("/distributed_c10d.py"):
            peer = frame.f_locals.get(name)
            return peer if isinstance(peer, int) else None
        frame = frame.f_back
    return None
