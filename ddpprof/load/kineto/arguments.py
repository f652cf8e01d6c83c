"""What the ``args`` of an event say: of a kernel's launch shape, of a collective's size and process group."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

import msgspec

from ddpprof.load.kineto.classify import collective_kind, element_bytes
from ddpprof.load.repair_json import repair_json
from ddpprof.model import UNKNOWN, CollectiveKind, ProcessGroup

NULL = msgspec.Raw(b"null")


class Arguments(msgspec.Struct, gc=False):
    """What the tables need of the ``args`` of device work and of communication.

    Typed as anything: where an argument is odd, what it would tell is unknown, and the trace is still good.
    """

    correlation: Any = 0
    stream: Any = None
    device: Any = None
    in_device: Any = msgspec.field(default=None, name="inDevice")
    """that of a copy between two devices"""
    collective: Any = msgspec.field(default=None, name="Collective name")
    num_elements: Any = msgspec.field(default=None, name="In msg nelems")
    num_elements_out: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    group: Any = msgspec.field(default=None, name="Process Group Name")
    group_size: Any = msgspec.field(default=None, name="Group size")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    sequence: Any = msgspec.field(default=None, name="Seq")
    op: Any = msgspec.field(default=0, name="External id")
    op_of_2021: Any = msgspec.field(default=0, name="external id")
    grid: msgspec.Raw = NULL
    block: msgspec.Raw = NULL
    input_dims: msgspec.Raw = msgspec.field(default=NULL, name="Input Dims")
    input_type: msgspec.Raw = msgspec.field(default=NULL, name="Input type")


class LaunchArguments(msgspec.Struct, gc=False):
    """Of the host's call that queues device work."""

    correlation: Any = 0


class OpArguments(msgspec.Struct, gc=False):
    """Of an op of the host, where shapes are recorded."""

    op: Any = msgspec.field(default=0, name="External id")
    op_of_2021: Any = msgspec.field(default=0, name="external id")
    input_dims: msgspec.Raw = msgspec.field(default=NULL, name="Input Dims")


_A = TypeVar("_A", Arguments, LaunchArguments, OpArguments)
_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(list[kind | None])  # type: ignore[valid-type]
    for kind in (Arguments, LaunchArguments, OpArguments)
}


def decode_arguments(kind: type[_A], texts: Sequence[msgspec.Raw]) -> list[_A]:
    """The arguments of each event; what is no object says nothing."""
    nothing = kind()
    try:
        decoded = _DECODERS[kind].decode(b"[%b]" % b",".join(texts))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        decoded = [decode_one(kind, text) for text in texts]
    return [one or nothing for one in decoded] if None in decoded else decoded


def decode_one(kind: type[_A], text: msgspec.Raw) -> _A | None:
    """Also where characters are odd."""
    try:
        return msgspec.json.decode(repair_json(bytes(text)), type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class CollectiveDetails:
    """What the arguments of one collective say. The class's defaults mean that they do not say."""

    kind: CollectiveKind | None = None
    num_bytes: int = UNKNOWN
    group: ProcessGroup | None = None
    sequence: int = UNKNOWN

    def completed(self, op: CollectiveDetails | None, kind_by_name: int) -> CollectiveDetails:
        """What is missing is as the op says that asked for the collective; the kind else as the name says."""
        by_name = None if kind_by_name in (UNKNOWN, CollectiveKind.OTHER) else CollectiveKind(kind_by_name)
        if op is None:
            return replace(self, kind=by_name if self.kind is None else self.kind)
        kind = next((kind for kind in (self.kind, op.kind, by_name) if kind is not None), None)
        # An op that does not name its collective tells the shapes of its inputs alone.
        tells_bytes = op.kind is not None or kind in _INPUT_IS_MESSAGE
        return CollectiveDetails(
            kind=kind,
            num_bytes=op.num_bytes if self.num_bytes == UNKNOWN and tells_bytes else self.num_bytes,
            group=op.group if self.group is None else self.group,
            sequence=op.sequence if self.sequence == UNKNOWN else self.sequence,
        )


_INPUT_IS_MESSAGE = frozenset(
    {
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.BROADCAST,
        CollectiveKind.REDUCE,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.ALL_TO_ALL,
        CollectiveKind.SEND_RECV,
    }
)


def collective_details(arguments: Arguments) -> CollectiveDetails:
    collective = arguments.collective
    sequence = as_int(arguments.sequence)
    return CollectiveDetails(
        kind=collective_kind(collective) if isinstance(collective, str) else None,
        num_bytes=_message_bytes(arguments),
        group=_group(arguments),
        sequence=sequence if sequence is not None and sequence >= 0 else UNKNOWN,
    )


def _group(arguments: Arguments) -> ProcessGroup | None:
    name, size, ranks = arguments.group, as_int(arguments.group_size), _ranks(arguments.group_ranks)
    group = ProcessGroup(
        name=name if isinstance(name, str) and name else None,
        size=size if size is not None and size > 0 else None,
        ranks=ranks if ranks and size in (None, len(ranks)) else None,
    )
    return None if group == ProcessGroup() else group


def _ranks(value: object) -> tuple[int, ...] | None:
    """Kineto writes them as text, and of long lists only the first."""
    if isinstance(value, str):
        value = decode_or_none(msgspec.Raw(value.encode("utf-8", "replace")))
    if not isinstance(value, list) or not all(type(rank) is int and 0 <= rank < 1 << 31 for rank in value):
        return None
    return tuple(value)


def _message_bytes(arguments: Arguments) -> int:
    """What NCCL's arguments say, or else the sizes of the tensors that gloo was given."""
    elements, out = as_int(arguments.num_elements), as_int(arguments.num_elements_out)
    if elements is not None and isinstance(arguments.dtype, str):
        size = element_bytes(arguments.dtype)
        return _believable(max(elements, out or 0) * size) if size != UNKNOWN and elements >= 0 else UNKNOWN
    dims, types = decode_or_none(arguments.input_dims), decode_or_none(arguments.input_type)
    if not isinstance(dims, list) or not isinstance(types, list):
        return UNKNOWN
    tensors = [
        prod(shape) * element_bytes(dtype)
        for shape, dtype in zip(dims, types, strict=False)
        if isinstance(dtype, str) and element_bytes(dtype) != UNKNOWN and _is_shape(shape)
    ]
    return _believable(sum(tensors)) if tensors else UNKNOWN


def _believable(num_bytes: int) -> int:
    return num_bytes if num_bytes < _MOST_BYTES else UNKNOWN


_MOST_BYTES = 1 << 53
"""More than any machine has; sums over collectives stay within int64."""


def decode_or_none(text: msgspec.Raw) -> Any:
    """The value that the text stands for, or ``None`` where it stands for none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _is_shape(shape: object) -> bool:
    return isinstance(shape, list) and all(type(length) is int and length >= 0 for length in shape)


def as_int(value: object) -> int | None:
    """An integer, also one written as text or, by tools that rewrite traces with pandas, as ``7.0``.

    ``None`` for anything else and for what int64 cannot hold.
    """
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    if isinstance(value, float) and abs(value) < 1 << 53 and value.is_integer():
        return int(value)
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    return None
