"""The ``args`` of an event: a kernel's launch shape, a collective's size and process group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

import msgspec

from ddpprof.load.classify import collective_kind, element_bytes
from ddpprof.load.lenient_json import as_int, decode_or_none, repair_json
from ddpprof.model import UNKNOWN, CollectiveKind, ProcessGroup

NULL = msgspec.Raw(b"null")


class Arguments(msgspec.Struct, gc=False):
    """The ``args`` of device work and communication that the tables need.

    Any type is accepted: an unexpected argument counts as unknown, and the trace can still be read.
    """

    correlation: Any = 0
    stream: Any = None
    device: Any = None
    in_device: Any = msgspec.field(default=None, name="inDevice")
    """device of a copy between two devices"""
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
    """Arguments of the host's call that queues device work."""

    correlation: Any = 0


class OpArguments(msgspec.Struct, gc=False):
    """Arguments of a host op, if shapes are recorded."""

    op: Any = msgspec.field(default=0, name="External id")
    op_of_2021: Any = msgspec.field(default=0, name="external id")
    input_dims: msgspec.Raw = msgspec.field(default=NULL, name="Input Dims")


_A = TypeVar("_A", Arguments, LaunchArguments, OpArguments)
_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(list[kind | None])  # type: ignore[valid-type]
    for kind in (Arguments, LaunchArguments, OpArguments)
}


def decode_arguments(kind: type[_A], texts: Sequence[msgspec.Raw]) -> list[_A]:
    """Return the arguments of each event; they are empty if the text is not an object."""
    nothing = kind()
    try:
        decoded = _DECODERS[kind].decode(b"[%b]" % b",".join(texts))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        decoded = [decode_one(kind, text) for text in texts]
    return [one or nothing for one in decoded] if None in decoded else decoded


def decode_one(kind: type[_A], text: msgspec.Raw) -> _A | None:
    """Decode one event's arguments, after repair; ``None`` if that fails."""
    try:
        return msgspec.json.decode(repair_json(bytes(text)), type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class CollectiveDetails:
    """Details of one collective from its arguments; a default means that the arguments do not have it."""

    kind: CollectiveKind | None = None
    num_bytes: int = UNKNOWN
    group: ProcessGroup | None = None
    sequence: int = UNKNOWN

    def completed(self, op: CollectiveDetails | None, kind_by_name: int) -> CollectiveDetails:
        """Fill in missing details from the op that launched the collective and, if needed, the kind from the name."""
        by_name = None if kind_by_name in (UNKNOWN, CollectiveKind.OTHER) else CollectiveKind(kind_by_name)
        if op is None:
            return replace(self, kind=by_name if self.kind is None else self.kind)
        kind = next((kind for kind in (self.kind, op.kind, by_name) if kind is not None), None)
        # An op that does not name its collective only has the shapes of its inputs.
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
    """Return a group's ranks. Kineto writes them as text, and only the first ones of a long list."""
    if isinstance(value, str):
        value = decode_or_none(msgspec.Raw(value.encode("utf-8", "replace")))
    if not isinstance(value, list) or not all(type(rank) is int and 0 <= rank < 1 << 31 for rank in value):
        return None
    return tuple(value)


def _message_bytes(arguments: Arguments) -> int:
    """Return the message size by NCCL's arguments or, for gloo, the total size of the tensors, in bytes."""
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
"""more than any machine has, so that sums over collectives stay within int64"""


def _is_shape(shape: object) -> bool:
    return isinstance(shape, list) and all(type(length) is int and length >= 0 for length in shape)
