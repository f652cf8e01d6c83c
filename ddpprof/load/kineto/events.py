"""Select the trace events that the tables need, and decode the fields that the tables need.

``args`` are kept as text and decoded later, only for the events that need them (see `Arguments`). In traces with
shapes, the ``args`` of most events are needed. They are decoded together with the events to save time. Most events are
not needed (in a trace with stacks, most are flows and Python frames), so skipping an event must be cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from math import prod
from typing import Any, TypeVar, Union, cast

import msgspec

from ddpprof.load.classify import Family, Identity, Role, collective_kind, element_bytes, family
from ddpprof.load.lenient_json import Text, as_int, decode_or_none, decode_repaired, repair_json
from ddpprof.model import UNKNOWN, CollectiveKind, ProcessGroup

NULL = msgspec.Raw(b"null")


class Arguments(msgspec.Struct, gc=False):
    """The ``args`` of device work and collectives that the tables need.

    Values may have any type: an unexpected value is treated as unknown, and the trace can still be read.
    """

    correlation: Any = 0
    stream: Any = None
    device: Any = None
    in_device: Any = msgspec.field(default=None, name="inDevice")
    """device that performs the copy, if the event is a copy between devices"""
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
    """Arguments of a host call that queues device work."""

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
    """Return the arguments of each event, with default values if its text cannot be decoded."""
    nothing = kind()
    try:
        decoded = _DECODERS[kind].decode(b"[%b]" % b",".join(texts))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        decoded = [decode_one(kind, text) for text in texts]
    return [one or nothing for one in decoded] if None in decoded else decoded


def decode_one(kind: type[_A], text: msgspec.Raw) -> _A | None:
    """Repair and decode the arguments of one event. Return ``None`` if they cannot be decoded."""
    try:
        return msgspec.json.decode(repair_json(bytes(text)), type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class CollectiveDetails:
    """Details of one collective from its arguments. Missing details have default values."""

    kind: CollectiveKind | None = None
    num_bytes: int = UNKNOWN
    group: ProcessGroup | None = None
    sequence: int = UNKNOWN

    def completed(self, op: CollectiveDetails | None, kind_by_name: int) -> CollectiveDetails:
        """Return these details, completed with the details of the op that launched the collective.

        If the op has no kind either, the kind is `kind_by_name`.
        """
        by_name = None if kind_by_name in (UNKNOWN, CollectiveKind.OTHER) else CollectiveKind(kind_by_name)
        if op is None:
            return replace(self, kind=by_name if self.kind is None else self.kind)
        kind = next((kind for kind in (self.kind, op.kind, by_name) if kind is not None), None)
        # If the op does not name its collective, its size is that of its inputs, which may not be the message size.
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
    """Return the ranks of a process group. Kineto writes them as text, and truncates a long list."""
    if isinstance(value, str):
        value = decode_or_none(msgspec.Raw(value.encode("utf-8", "replace")))
    if not isinstance(value, list) or not all(type(rank) is int and 0 <= rank < 1 << 31 for rank in value):
        return None
    return tuple(value)


def _message_bytes(arguments: Arguments) -> int:
    """Return the message size in bytes, from NCCL's arguments or, for gloo, from the shapes of all tensors."""
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
"""larger message sizes count as unknown, so that sums over collectives stay within int64"""


def _is_shape(shape: object) -> bool:
    return isinstance(shape, list) and all(type(length) is int and length >= 0 for length in shape)


_ZERO = msgspec.Raw(b"0")


class Category(Enum):
    """``cat`` of an event.

    These categories are frequent, and the decoder recognizes them directly. All other categories are mapped by family.
    """

    OP = "cpu_op"
    OP_OF_2021 = "Operator"
    ANNOTATION = "user_annotation"
    LAUNCH = "cuda_runtime"
    LAUNCH_OF_2021 = "Runtime"
    DRIVER = "cuda_driver"
    HIP_LAUNCH = "hip_runtime"
    KERNEL = "kernel"
    KERNEL_OF_2021 = "Kernel"
    COPY = "gpu_memcpy"
    FRAME = "python_function"
    OTHER = ""

    __hash__ = object.__hash__  # Enum.__hash__ is slower, because it is written in Python

    @classmethod
    def _missing_(cls, value: object) -> Category:
        return _OF_FAMILY[family(str(value))]


_FAMILIES = {category: family(category.value) for category in Category}
_OF_FAMILY = {of: category for category, of in reversed(_FAMILIES.items())}


class Span(msgspec.Struct, gc=False, tag="X", tag_field="ph"):
    """An event with a duration. Times are in microseconds."""

    cat: Category = Category.OTHER
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str | float = 0
    args: msgspec.Raw = NULL


class ExactSpan(msgspec.Struct, gc=False, tag="X", tag_field="ph"):
    """A span with an absolute timestamp, for which float64 is not precise enough."""

    cat: Category = Category.OTHER
    name: str = ""
    ts: msgspec.Raw = _ZERO
    dur: float = 0.0
    tid: int | str | float = 0
    args: msgspec.Raw = NULL


class Moment(msgspec.Struct, gc=False):
    """An event without a duration. Such an event marks the time at which the profiler stopped."""

    name: str = ""
    ts: msgspec.Raw = _ZERO


class _Flow(msgspec.Struct, gc=False):
    """An arrow from one event to another."""


class _AnyEvent(msgspec.Struct, gc=False):
    """Any event. Used to decode batches that contain an event with a missing or unknown ``ph``."""

    ph: str = ""
    cat: Category | None = Category.OTHER
    name: str = ""
    ts: float | None = 0.0
    dur: float | None = 0.0
    tid: int | str | float | None = 0
    args: msgspec.Raw = NULL


class _AnyExactEvent(msgspec.Struct, gc=False):
    ph: str = ""
    cat: Category | None = Category.OTHER
    name: str = ""
    ts: msgspec.Raw = _ZERO
    dur: float | None = 0.0
    tid: int | str | float | None = 0
    args: msgspec.Raw = NULL


Entries = list[Any]
"""list of events: `Span` or `ExactSpan`, `Moment`, and other types, which are ignored"""


def _of_phases(base: type[msgspec.Struct], phases: str) -> list[type[msgspec.Struct]]:
    return [msgspec.defstruct(base.__name__, [], bases=(base,), gc=False, tag=ph, tag_field="ph") for ph in phases]


_MOMENT_TYPES = _of_phases(Moment, "iIRMBECbneNODPpScv")
_OTHERS = [*_of_phases(_Flow, "stf"), *_MOMENT_TYPES]

AnySpan = Span | ExactSpan
SpanType = type[Span] | type[ExactSpan]


def _with_arguments(span: SpanType) -> SpanType:
    field = ("args", Arguments | None, None)
    made: Any = msgspec.defstruct(span.__name__, [field], bases=(span,), gc=False, tag="X", tag_field="ph")
    return cast("SpanType", made)


_RAW: tuple[SpanType, SpanType] = (Span, ExactSpan)
_DECODED = (_with_arguments(Span), _with_arguments(ExactSpan))
_TAGGED: dict[SpanType, Callable[[Text], Entries]] = {
    span: msgspec.json.Decoder(list[Union[(span, *_OTHERS)]]).decode  # type: ignore[valid-type]
    for span in (*_RAW, *_DECODED)
}
_ANY: tuple[Callable[[Text], Sequence[_AnyEvent | _AnyExactEvent]], ...] = (
    msgspec.json.Decoder(list[_AnyEvent]).decode,
    msgspec.json.Decoder(list[_AnyExactEvent]).decode,
)


def span_type(*, exact: bool, with_arguments: bool) -> SpanType:
    """Return the type into which spans are decoded.

    `with_arguments`: whether ``args`` are decoded to `Arguments`, instead of being kept as text.
    """
    return (_DECODED if with_arguments else _RAW)[exact]


def is_exact(span: SpanType) -> bool:
    return issubclass(span, ExactSpan)


def decode_entries(text: Text, span: SpanType) -> Entries:
    """Return the events of an array, repairing it first if it is not valid JSON. Raises
    ``msgspec.MsgspecError``.
    """
    return decode_repaired(partial(_entries, span), text)


def _entries(span: SpanType, text: Text) -> Entries:
    try:
        return _TAGGED[span](text)
    except msgspec.ValidationError:
        return [_entry(event, span) for event in _ANY[is_exact(span)](text)]


def _entry(event: _AnyEvent | _AnyExactEvent, span: SpanType) -> msgspec.Struct:
    if event.ph == "X":
        category = event.cat or Category.OTHER
        args = decode_one(Arguments, event.args) if span in _DECODED else event.args
        ts, dur, tid = event.ts or 0.0, event.dur or 0.0, event.tid
        return span(cat=category, name=event.name, ts=ts, dur=dur, tid=tid, args=args)  # type: ignore[arg-type]
    ts = event.ts if isinstance(event.ts, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(event.ts))
    return _MOMENT_TYPES[0](name=event.name, ts=ts)


KEPT_FAMILIES = (Family.OP, Family.ANNOTATION, Family.KERNEL, Family.COPY)
_HOST_FAMILIES = (Family.OP, Family.ANNOTATION)
_KEPT = [(category, which) for category, which in _FAMILIES.items() if which in KEPT_FAMILIES]

_ROUNDING_US = 0.01
"""upper bound of the rounding error of times stored as float64, in µs"""

_SHAPES = b'"Input Dims"'
_LOOKED_AT, _MANY = 8, 1000
"""if there are more than `_MANY` events, only every `_LOOKED_AT`-th event is checked for shapes"""


class NeededEvents:
    """Events that the tables may need, in the file's order, and indices of their identities."""

    def __init__(self) -> None:
        self.host: list[AnySpan] = []
        self.host_ids: list[int] = []
        self.device: list[AnySpan] = []
        self.device_ids: list[int] = []
        self.launches: list[AnySpan] = []
        self.ops: list[AnySpan] = []
        self.op_ids: list[int] = []
        """index of the identity of each op in `ops`; `ops` has all host ops if shapes are recorded, and is empty
        otherwise
        """
        self.window_end: msgspec.Raw | None = None

    def of_family(self, which: Family) -> tuple[list[AnySpan], list[int]]:
        return (self.host, self.host_ids) if which in _HOST_FAMILIES else (self.device, self.device_ids)


def needed_events(
    entries: Entries,
    span: SpanType,
    ids: Mapping[Family, Mapping[str, int]],
    identities: Sequence[Identity],
    has_shapes: bool,
) -> NeededEvents:
    """Select the events that the tables may need.

    `ids`: for each family and name, the index into `identities`, or a negative number if the events are not needed.
    """
    needed = NeededEvents()
    host, host_ids, ops, all_op_ids, launches = (
        needed.host, needed.host_ids, needed.ops, needed.op_ids, needed.launches
    )  # fmt: skip
    kept = {category: (ids[which], *needed.of_family(which)) for category, which in _KEPT}
    op, op_of_2021 = Category.OP, Category.OP_OF_2021
    unneeded = (Category.FRAME, Category.OTHER)
    op_ids = ids[Family.OP]
    only_op, is_fast = Role.OP, issubclass(span, Span)
    moments = frozenset(_MOMENT_TYPES)
    holder_start, holder_end, holder_tid = 0.0, 0.0, None  # last outer op: most of the following ops are nested in it
    for entry in entries:
        kind = type(entry)
        if kind is not span:
            if kind in moments and entry.name == "Record Window End":
                needed.window_end = entry.ts
            continue
        category = entry.cat
        if category is op or category is op_of_2021:
            identity = op_ids[entry.name]
            if has_shapes:
                ops.append(entry)
                all_op_ids.append(identity)
            if identity < 0:
                continue
            if is_fast and identities[identity].role is only_op:
                start = entry.ts
                end = start + entry.dur + _ROUNDING_US
                if start > holder_start and end < holder_end and entry.tid == holder_tid:
                    continue
                holder_start, holder_end, holder_tid = start, end, entry.tid
            host.append(entry)
            host_ids.append(identity)
        elif category in kept:
            of_family, spans, numbers = kept[category]
            identity = of_family[entry.name]
            if identity >= 0:
                spans.append(entry)
                numbers.append(identity)
        elif category not in unneeded:
            launches.append(entry)
    return needed


def sees_shapes(entries: Entries, span: SpanType) -> bool:
    """Return True if ops have input shapes. If there are many events, only a sample is checked."""
    op, of_2021 = Category.OP, Category.OP_OF_2021
    return any(
        _SHAPES in bytes(entry.args)
        for entry in entries[:: _LOOKED_AT if len(entries) > _MANY else 1]
        if type(entry) is span and (entry.cat is op or entry.cat is of_2021)
    )
