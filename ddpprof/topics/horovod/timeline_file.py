"""Reads a Horovod timeline (``HOROVOD_TIMELINE``): Chrome events in which every tensor is a process.

    B NEGOTIATE_ALLREDUCE … X 0 … X 1 … E     all ranks announce the tensor; X: rank 0 learns that the named rank has it
    B ALLREDUCE                               then it is reduced, in
        B MEMCPY_IN_FUSION_BUFFER … E         activities; tensors that share a collective have one each at the same time
        B GLOO_ALLREDUCE … E
        B MEMCPY_OUT_FUSION_BUFFER … E
    E {dtype, shape}

A job that is killed leaves the last event half written, old versions never close the array, and names are not escaped.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from math import prod

import msgspec

from ddpprof.errors import BadTrace
from ddpprof.files import Location
from ddpprof.load.inflate import UnreadableError, opened, read_whole
from ddpprof.load.lenient_json import repair_json
from ddpprof.load.limits import DEFAULT_LIMITS
from ddpprof.model import CollectiveKind
from ddpprof.topics.horovod.timeline import ActivityKind, HorovodTimeline, TensorOp, TimelineActivity

_UNREADABLE: tuple[type[Exception], ...] = (OSError, UnreadableError)
_HEAD_BYTES = 1 << 16
_OF_HOROVOD = re.compile(
    rb'"start_time_since_epoch_in_micros"|"ph":\s*"B",\s*"name":\s*"NEGOTIATE_|"ph":\s*"i",\s*"name":\s*"CYCLE_START"'
)
_NEGOTIATE = "NEGOTIATE_"
_RANK = re.compile(r"\d{1,7}")
_MOST_US = 1 << 53
"""upper limit of plausible times, µs: a clock in microseconds takes 285 years to reach it"""
_MOST_BYTES = 1 << 50
_TRIES = 50
"""number of braces, from the end, at which to try to cut a truncated file"""

_KINDS = {
    "ALLREDUCE": CollectiveKind.ALL_REDUCE,
    "ADASUM": CollectiveKind.ALL_REDUCE,
    "ALLGATHER": CollectiveKind.ALL_GATHER,
    "BROADCAST": CollectiveKind.BROADCAST,
    "ALLTOALL": CollectiveKind.ALL_TO_ALL,
    "REDUCESCATTER": CollectiveKind.REDUCE_SCATTER,
    "BARRIER": CollectiveKind.BARRIER,
}
_COLLECTIVE = re.compile(
    r"(?P<backend>NCCL|GLOO|MPI|CCL|DDL)_(?:\w+_)?"
    r"(?:ALLREDUCE|ALLGATHERV?|BCAST|ALLTOALLV?|REDUCE_?SCATTER|REDUCE)"
)
_OTHER_KINDS = {
    "QUEUE": ActivityKind.QUEUE,
    "WAIT_FOR_DATA": ActivityKind.QUEUE,
    "WAIT_FOR_OTHER_TENSOR_DATA": ActivityKind.QUEUE,
}
_COPY_IN, _COPY_OUT = ("MEMCPY_IN_",), ("MEMCPY_OUT_", "COPY_ALLGATHER_OUTPUT")
_BYTES_OF = {
    "uint8": 1, "int8": 1, "bool": 1, "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "float32": 4, "int64": 8, "float64": 8,
}  # fmt: skip


class _Arguments(msgspec.Struct, gc=False):
    name: str | None = None
    dtype: str | None = None
    shape: str | None = None


class _Event(msgspec.Struct, gc=False):
    ph: str
    ts: int | None = None
    pid: int = 0
    name: str = ""
    args: _Arguments | None = None


_decode = msgspec.json.Decoder(list[_Event]).decode


def is_horovod_timeline(path: Location) -> bool:
    """Return whether the file begins with an array that holds events which only Horovod writes."""
    try:
        with opened(path) as stream:
            head = stream.read(_HEAD_BYTES)
    except _UNREADABLE:
        return False
    return head.lstrip().startswith(b"[") and _OF_HOROVOD.search(head) is not None


def load_horovod(path: Location) -> HorovodTimeline:
    """Read a timeline. Raises `BadTrace`."""
    try:
        with opened(path) as stream:
            text = read_whole(stream, DEFAULT_LIMITS)
    except _UNREADABLE as error:
        raise BadTrace(f"{path} cannot be read: {error}.") from error
    try:
        events, is_cut = _events(bytes(text).strip())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadTrace(f"{path} looks like a Horovod timeline, but cannot be decoded: {error}.") from error
    reader = _Reader()
    for event in events:
        reader.add(event)
    timeline = reader.timeline(is_cut)
    if not timeline.ops:
        raise BadTrace(f"{path} is a Horovod timeline in which no collective ends. Let the job train for some steps.")
    return timeline


def _events(text: bytes) -> tuple[list[_Event], bool]:
    """Return the events, and whether the last one was cut off."""
    try:
        return _decode(text), False
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = repair_json(text)
    try:
        return _decode(text.rstrip(b" \t\r\n,").removesuffix(b"]") + b"]"), False
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        end = len(text)
        for _ in range(_TRIES):
            end = text.rfind(b"}", 0, end)
            if end < 0:
                break
            try:
                return _decode(text[: end + 1] + b"]"), True
            except msgspec.DecodeError:
                continue
        raise


@dataclass
class _Group:
    """A collective that tensors may still join."""

    number: int
    activity: str
    begins_us: int
    members: set[int]
    has_ended: bool = False


@dataclass
class _Op:
    """A tensor's collective that has not ended yet."""

    kind: CollectiveKind = CollectiveKind.OTHER
    negotiated_from_us: int | None = None
    negotiated_us: int | None = None
    start_us: int | None = None
    open: list[tuple[str, int]] = field(default_factory=list)
    """names and start times, outermost first"""
    activities: list[TimelineActivity] = field(default_factory=list)
    ready_us: dict[int, int] = field(default_factory=dict)
    copied_in_us: int | None = None
    """time at which its copy into the fusion buffer ended"""
    group: _Group | None = None


class _Reader:
    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._open: dict[int, _Op] = {}
        self._ops: list[TensorOp] = []
        self._cycles_us: list[int] = []
        self._group: _Group | None = None
        self._num_groups = self._num_torn = 0
        self._backends: Counter[str] = Counter()
        self._highest_rank = -1

    def add(self, event: _Event) -> None:
        if event.ph == "M":
            if event.name == "process_name" and event.args is not None and event.args.name is not None:
                self._names[event.pid] = event.args.name
            return
        if event.ts is None or abs(event.ts) > _MOST_US:
            return
        if event.ph == "i" and event.name == "CYCLE_START":
            self._cycles_us.append(event.ts)
        elif event.ph == "B":
            self._begins(event.pid, event.name, event.ts)
        elif event.ph == "E":
            self._ends(event.pid, event.ts, event.args)
        elif event.ph == "X" and event.pid in self._open and _RANK.fullmatch(event.name):
            self._rank_is_ready(self._open[event.pid], int(event.name), event.ts)

    def timeline(self, is_cut: bool) -> HorovodTimeline:
        unfinished = sum(op.start_us is not None for op in self._open.values()) + self._num_torn
        notes = ["the timeline is cut off: its last event is incomplete"] if is_cut else []
        if unfinished:
            notes.append(f"left out: {unfinished} collectives that do not end within the timeline")
        return HorovodTimeline(
            backend=self._backends.most_common(1)[0][0] if self._backends else None,
            world_size=self._highest_rank + 1 if self._highest_rank >= 0 else None,
            ops=tuple(sorted(self._ops, key=lambda op: op.start_ns)),
            cycles_ns=tuple(sorted(time * 1000 for time in self._cycles_us)),
            notes=tuple(notes),
        )

    def _begins(self, pid: int, name: str, ts: int) -> None:
        op = self._open.setdefault(pid, _Op())
        if name.startswith(_NEGOTIATE):
            if op.open or op.start_us is not None:  # the previous one never ended: the job was reset, or lost events
                self._num_torn += op.start_us is not None
                op = self._open[pid] = _Op()
            op.negotiated_from_us = ts
        elif not op.open:
            op.kind, op.start_us = _KINDS.get(name, CollectiveKind.OTHER), ts
        elif len(op.open) == 1 and (match := _COLLECTIVE.fullmatch(name)):
            self._backends[match["backend"].lower()] += 1
            if op.group is None:
                op.group = self._group = self._group_of(op, pid, name, ts)
        op.open.append((name, ts))

    def _group_of(self, op: _Op, pid: int, name: str, ts: int) -> _Group:
        """Return the current group if the tensor was copied into its buffer before its collective, else a new one.

        Horovod copies all fused tensors into the buffer before it begins their collective.
        """
        group = self._group
        if (
            group is not None
            and not group.has_ended
            and group.activity == name
            and op.copied_in_us is not None
            and op.copied_in_us <= group.begins_us
            and pid not in group.members
        ):
            group.members.add(pid)
            return group
        self._num_groups += 1
        return _Group(self._num_groups - 1, name, ts, {pid}, has_ended=op.copied_in_us is None)

    def _ends(self, pid: int, ts: int, args: _Arguments | None) -> None:
        op = self._open.get(pid)
        if op is None or not op.open:
            return
        name, began = op.open.pop()
        if name.startswith(_NEGOTIATE):
            op.negotiated_us = ts
        elif op.open:
            self._activity_ends(op, name, began, ts)
        else:
            del self._open[pid]
            self._ops.append(self._finished(op, pid, ts, args))

    def _activity_ends(self, op: _Op, name: str, began: int, ts: int) -> None:
        kind = _kind(name)
        op.activities.append(TimelineActivity(kind, began * 1000, max(began, ts) * 1000))
        if name == "MEMCPY_IN_FUSION_BUFFER":
            op.copied_in_us = ts
        elif kind is ActivityKind.COLLECTIVE and op.group is not None:
            op.group.has_ended = True

    def _finished(self, op: _Op, pid: int, ts: int, args: _Arguments | None) -> TensorOp:
        assert op.start_us is not None
        if op.group is None:
            op.group = self._group_of(_Op(), pid, "", ts)
        return TensorOp(
            tensor=self._names.get(pid, f"tensor {pid}"),
            kind=op.kind,
            group=op.group.number,
            negotiated_from_ns=None if op.negotiated_from_us is None else op.negotiated_from_us * 1000,
            negotiated_ns=None if op.negotiated_us is None else op.negotiated_us * 1000,
            start_ns=op.start_us * 1000,
            end_ns=max(op.start_us, ts) * 1000,
            activities=tuple(op.activities),
            num_bytes=_num_bytes(args),
            ready_ns={rank: time * 1000 for rank, time in op.ready_us.items()},
        )

    def _rank_is_ready(self, op: _Op, rank: int, ts: int) -> None:
        if op.open and op.open[-1][0].startswith(_NEGOTIATE):
            op.ready_us.setdefault(rank, ts)
            self._highest_rank = max(self._highest_rank, rank)


def _kind(name: str) -> ActivityKind:
    if name.startswith(_COPY_IN):
        return ActivityKind.COPY_IN
    if name.startswith(_COPY_OUT):
        return ActivityKind.COPY_OUT
    return ActivityKind.COLLECTIVE if _COLLECTIVE.fullmatch(name) else _OTHER_KINDS.get(name, ActivityKind.OTHER)


def _num_bytes(args: _Arguments | None) -> int | None:
    """Return the size of a tensor by arguments such as ``{"dtype": "float32", "shape": "[64, 3, 3]"}``."""
    if args is None or args.dtype not in _BYTES_OF or args.shape is None:
        return None
    if not re.fullmatch(r"\[(?:\d{1,12}(?:, \d{1,12}){0,15})?\]", args.shape):
        return None
    num_bytes = _BYTES_OF[args.dtype] * prod(int(size) for size in re.findall(r"\d+", args.shape))
    return num_bytes if num_bytes < _MOST_BYTES else None
