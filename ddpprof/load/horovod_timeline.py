"""Read a Horovod timeline (``HOROVOD_TIMELINE``): Chrome trace events in which every tensor is a process.

    B NEGOTIATE_ALLREDUCE … X 0 … X 1 … E     all ranks announce the tensor; X r: rank 0 learns that rank r has it
    B ALLREDUCE                               then the tensor is reduced, in
        B MEMCPY_IN_FUSION_BUFFER … E         activities; tensors that share a collective have concurrent activities
        B GLOO_ALLREDUCE … E
        B MEMCPY_OUT_FUSION_BUFFER … E
    E

If a job is killed, the last event is incomplete. Old versions never close the array. Names in the timeline are not
escaped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ddpprof.errors import BadTrace
from ddpprof.files import Location
from ddpprof.load.file_bytes import DEFAULT_LIMITS, UnreadableError, opened, read_whole
from ddpprof.load.lenient_json import repair_json

HOROVOD_TIMELINE = "Horovod timeline"
"""name of this file type in messages and in the report"""
_UNREADABLE: tuple[type[Exception], ...] = (OSError, UnreadableError)
_HEAD_BYTES = 1 << 16
_OF_HOROVOD = re.compile(
    rb'"start_time_since_epoch_in_micros"|"ph":\s*"B",\s*"name":\s*"NEGOTIATE_|"ph":\s*"i",\s*"name":\s*"CYCLE_START"'
)
_NEGOTIATE = "NEGOTIATE_"
_RANK = re.compile(r"\d{1,7}")
_MOST_US = 1 << 53
"""largest plausible time in a timeline, in µs (285 years)"""
_TRIES = 50
"""a truncated file is cut off after one of its last closing braces; ddpprof tries at most this many of them"""
_COLLECTIVE = re.compile(
    r"(NCCL|GLOO|MPI|CCL|DDL)_(?:\w+_)?(?:ALLREDUCE|ALLGATHERV?|BCAST|ALLTOALLV?|REDUCE_?SCATTER|REDUCE)"
)
_REDUCTIONS = ("ALLREDUCE", "ADASUM")
_COPY = ("MEMCPY_IN_", "MEMCPY_OUT_", "COPY_ALLGATHER_OUTPUT")
_Span = tuple[int, int]


@dataclass(slots=True)
class TensorOp:
    """One collective of one tensor. Times are in ns since the start of the timeline."""

    tensor: str
    is_reduction: bool
    """whether the collective is an all-reduce"""
    negotiated: tuple[int, int] | None
    """start and end of the negotiation, after which all ranks have the tensor; ``None`` if the timeline has no
    negotiation
    """
    ready_ns: dict[int, int]
    """rank → time at which rank 0 learned that the rank has the tensor; empty if the tensor was in Horovod's response
    cache
    """
    start_ns: int
    end_ns: int
    copies: list[_Span] = field(default_factory=list)
    """copies into and out of the fusion buffer, and between host and device"""
    collectives: list[_Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HorovodTimeline:
    """The contents of a timeline: every collective of every tensor, recorded by rank 0."""

    backend: str | None
    """backend of the collectives: ``gloo``, ``nccl``, ``mpi`` or ``ccl``"""
    world_size: int | None
    ops: Sequence[TensorOp]
    """collectives in order of start time"""
    cycles_ns: tuple[int, ...]
    """times at which Horovod checked for ready tensors; recorded only with ``HOROVOD_TIMELINE_MARK_CYCLES``"""
    notes: tuple[str, ...] = ()


class _Arguments(msgspec.Struct, gc=False):
    name: str | None = None


class _Event(msgspec.Struct, gc=False):
    ph: str
    ts: int | None = None
    pid: int = 0
    name: str = ""
    args: _Arguments | None = None


_decode = msgspec.json.Decoder(list[_Event]).decode


def is_horovod_timeline(path: Location) -> bool:
    """Return True if the file begins with an array of events that only Horovod writes."""
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
        raise BadTrace(f"{path} is a Horovod timeline in which no collective finishes. Let the job run for more steps.")
    return timeline


def _events(text: bytes) -> tuple[list[_Event], bool]:
    """Return the events, and whether the last event was cut off."""
    try:
        return _decode(text), False
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = repair_json(text).rstrip(b" \t\r\n,").removesuffix(b"]")
    end = len(text)
    for _ in range(_TRIES):
        try:
            return _decode(text[:end] + b"]"), end < len(text)
        except msgspec.DecodeError:
            end = text.rfind(b"}", 0, max(0, end - 1)) + 1
    raise msgspec.DecodeError("there is no complete event near the end of the file")


@dataclass(slots=True)
class _Tensor:
    """State of one tensor while events are being read."""

    open: list[tuple[str, int]] = field(default_factory=list)
    """names and start times of spans that have not ended, outermost first"""
    negotiated: tuple[int, int] | None = None
    ready_ns: dict[int, int] = field(default_factory=dict)
    op: TensorOp | None = None


class _Reader:
    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._tensors: dict[int, _Tensor] = {}
        self._ops: list[TensorOp] = []
        self._cycles_ns: list[int] = []
        self._backends: Counter[str] = Counter()
        self._num_torn = 0

    def add(self, event: _Event) -> None:
        if event.ph == "M" and event.name == "process_name" and event.args is not None and event.args.name is not None:
            self._names[event.pid] = event.args.name
        if event.ph == "M" or event.ts is None or abs(event.ts) > _MOST_US:
            return
        at_ns, tensor = event.ts * 1000, self._tensors.get(event.pid)
        if event.ph == "i" and event.name == "CYCLE_START":
            self._cycles_ns.append(at_ns)
        elif event.ph == "B":
            self._begins(event.pid, event.name, at_ns)
        elif event.ph == "E" and tensor is not None and tensor.open:
            self._ends(tensor, at_ns)
        elif event.ph == "X" and tensor is not None and _is_negotiated(tensor) and _RANK.fullmatch(event.name):
            tensor.ready_ns.setdefault(int(event.name), at_ns)

    def timeline(self, is_cut: bool) -> HorovodTimeline:
        unfinished = sum(one.op is not None for one in self._tensors.values()) + self._num_torn
        notes = ["the timeline is cut off: its last event is incomplete"] if is_cut else []
        if unfinished:
            notes.append(f"left out: {unfinished} collectives that do not end within the timeline")
        return HorovodTimeline(
            backend=self._backends.most_common(1)[0][0] if self._backends else None,
            world_size=max((rank + 1 for op in self._ops for rank in op.ready_ns), default=None),
            ops=sorted(self._ops, key=lambda op: op.start_ns),
            cycles_ns=tuple(sorted(self._cycles_ns)),
            notes=tuple(notes),
        )

    def _begins(self, pid: int, name: str, at_ns: int) -> None:
        tensor = self._tensors.setdefault(pid, _Tensor())
        if name.startswith(_NEGOTIATE) and tensor.open:  # the job was reset, or events were lost
            self._num_torn += tensor.op is not None
            tensor = self._tensors[pid] = _Tensor()
        elif not name.startswith(_NEGOTIATE) and not tensor.open:
            whose = self._names.get(pid, f"tensor {pid}")
            tensor.op = TensorOp(whose, name in _REDUCTIONS, tensor.negotiated, tensor.ready_ns, at_ns, at_ns)
        elif match := _COLLECTIVE.fullmatch(name):
            self._backends[match[1].lower()] += 1
        tensor.open.append((name, at_ns))

    def _ends(self, tensor: _Tensor, at_ns: int) -> None:
        name, began_ns = tensor.open.pop()
        span = (began_ns, max(began_ns, at_ns))
        if tensor.op is None:
            tensor.negotiated = span
        elif not tensor.open:
            tensor.op.end_ns = span[1]
            self._ops.append(tensor.op)
            tensor.op, tensor.negotiated, tensor.ready_ns = None, None, {}
        elif name.startswith(_COPY):
            tensor.op.copies.append(span)
        elif _COLLECTIVE.fullmatch(name):
            tensor.op.collectives.append(span)


def _is_negotiated(tensor: _Tensor) -> bool:
    return bool(tensor.open) and tensor.open[-1][0].startswith(_NEGOTIATE)
