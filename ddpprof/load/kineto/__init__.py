"""Read a Kineto trace file, in batches if its layout allows, otherwise as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ddpprof.errors import BadTrace
from ddpprof.files import Location
from ddpprof.load.file_bytes import DEFAULT_LIMITS, Limits, Stream, UnreadableError, opened, read_whole
from ddpprof.load.kineto.columns import Columns, columns_of
from ddpprof.load.kineto.decode import (
    BLANKS,
    BYTE_ORDER_MARK,
    Batches,
    Division,
    EventReader,
    HelperLostError,
    Helpers,
    OddLayoutError,
    helping,
    refuse_many,
    split_at_array,
)
from ddpprof.load.lenient_json import TimeOutOfRangeError, decode_or_none, decode_repaired
from ddpprof.model.backends import standard_name

DIVISION = Division()

_BETWEEN_EVENTS = BLANKS + b","
_IN_INFO = rb'"distributedInfo"\s*:\s*\{[^}]*?"%s"\s*:\s*"?(\d{1,18})'
_RANK_IN_INFO, _WORLD_SIZE_IN_INFO = re.compile(_IN_INFO % b"rank"), re.compile(_IN_INFO % b"world_size")
_ADVICE = "Record the trace again, or remove this file."


class _Document(msgspec.Struct, gc=False):
    """The keys of a trace that ddpprof uses.

    Each value is decoded only when needed, so that a trace with an invalid value can be read.
    """

    info: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="distributedInfo")
    base_ns: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="baseTimeNanoseconds")
    host: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="host_name")
    devices: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="deviceProperties")
    events: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="traceEvents")


_decode_document = msgspec.json.Decoder(_Document).decode


@dataclass(frozen=True, slots=True)
class Header:
    """The keys of a trace other than ``traceEvents``; ``None`` if the file does not have them."""

    backend: str | None = None
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    base_ns: int | None = None
    """offset to add to the events' times to get nanoseconds since 1970"""
    has_device: bool = False
    """whether an accelerator was visible to the process"""


def read_trace(path: Location, limits: Limits = DEFAULT_LIMITS, num_processes: int = 1) -> tuple[Header, Columns]:
    """Return the header of a trace file and the events that the tables need. Raises `BadTrace`.

    If the file is large enough, up to `num_processes` processes decode it, with the same result.
    """
    with _told_as_bad_trace(path):
        try:
            header, columns = _read(path, limits, num_processes)
        except HelperLostError:
            header, columns = _read(path, limits, num_processes=1)
    if not columns.num_events:
        raise BadTrace(f"{path} contains no events: nothing was profiled. {_ADVICE}")
    if not len(columns.start_ns) and not columns.num_launches:
        raise BadTrace(
            f"{path} contains {columns.num_events} events, but no ops, kernels or steps from torch.profiler. {_ADVICE}"
        )
    return header, columns


def _read(path: Location, limits: Limits, num_processes: int) -> tuple[Header, Columns]:
    try:
        with opened(path, limits) as stream, helping(path, limits, DIVISION, num_processes - 1) as helpers:
            return _read_in_batches(stream, limits, helpers)
    except OddLayoutError:
        with opened(path, limits) as stream:
            return _read_whole(stream, limits)


def read_header(path: Location, limits: Limits = DEFAULT_LIMITS) -> Header:
    """Read the header. If the layout allows, no events are decoded. Raises `BadTrace`.

    Only the rank and world size are read from the keys after the events.
    """
    with _told_as_bad_trace(path):
        try:
            with opened(path, limits) as stream:
                before, rest = split_at_array(stream, limits, DIVISION.batch_bytes)
                keys = _Document() if before is None else _document(before + b'"traceEvents":[]}')
                header = _header(keys)
                is_at_end = header.rank is None and before is not None
                return _with_place_of_end(header, stream, rest) if is_at_end else header
        except (OddLayoutError, msgspec.MsgspecError):
            return read_trace(path, limits)[0]


def _with_place_of_end(header: Header, stream: Stream, text: bytes) -> Header:
    """Return the header. If the rank and world size come after the events in the file, add them."""
    while chunk := stream.read(DIVISION.batch_bytes):
        text = text[-DIVISION.batch_bytes :] + chunk
    rank, world_size = (
        _natural(int(match.group(1))) if (match := pattern.search(text)) else None
        for pattern in (_RANK_IN_INFO, _WORLD_SIZE_IN_INFO)
    )
    return replace(header, rank=rank, world_size=world_size or header.world_size)


@contextmanager
def _told_as_bad_trace(path: Location) -> Iterator[None]:
    """Convert any error raised while reading the file to `BadTrace`."""
    try:
        yield
    except OSError as error:
        raise BadTrace(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnreadableError as error:
        raise BadTrace(f"{path} {error}. {_ADVICE}") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadTrace(f"{path} {_explain(error)}. {_ADVICE}") from error
    except TimeOutOfRangeError as error:
        raise BadTrace(f"{path} contains an invalid time. {_ADVICE}") from error


def _explain(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "is not a trace: it is nested too deeply"
    if isinstance(error, msgspec.ValidationError):
        return f"has content of an unexpected type: {error}"
    if "truncated" in str(error):
        return "is truncated: the JSON is incomplete"
    return f"is not valid JSON ({error})"


def _document(text: bytes | bytearray) -> _Document:
    return decode_repaired(_decode_document, text)


def _add_document(reader: EventReader, text: bytes | bytearray) -> _Document:
    """Add the events of a document to the reader, and return the document, which must have ``traceEvents``."""
    document = _document(text)
    if not document.events:
        raise UnreadableError("is not a profiler trace: it is JSON without traceEvents")
    try:
        reader.add(document.events)
    except msgspec.ValidationError as error:  # name the place in the document, not in the array
        raise msgspec.ValidationError(str(error).replace("`$", "`$.traceEvents", 1)) from error
    return document


def _read_in_batches(stream: Stream, limits: Limits, helpers: Helpers) -> tuple[Header, Columns]:
    """Read the file in batches.

    Raises `OddLayoutError` if the file must be read as a whole, and ``msgspec.DecodeError`` if that would fail, too.
    """
    before, begin = split_at_array(stream, limits, DIVISION.batch_bytes)
    reader, batches = EventReader(limits, DIVISION), Batches(stream, begin, limits, DIVISION.batch_bytes)
    try:
        keys = [_document(before + b'"traceEvents":[]}')] if before is not None else []
    except (msgspec.MsgspecError, RecursionError) as error:
        raise OddLayoutError from error
    by_helpers = helpers.share(reader, batches)
    reader.begin(batches.num_done)  # a new group number, because there are fewer groups than batches
    try:
        if before is None:
            reader.add(_closed(b"[" + batches.rest))
        else:
            keys.append(_add_document(reader, b'{"traceEvents":[' + batches.rest))
    except msgspec.ValidationError as error:  # when decoded as a whole, the message has the event's index in the file
        raise OddLayoutError from error
    columns = columns_of([reader.collector.collected(), *by_helpers])
    refuse_many(columns.num_events, limits)
    return _header(*keys), columns


def _closed(array: bytes | bytearray) -> bytes | bytearray:
    """Return the array with its closing bracket, which may be missing in Chrome's array format."""
    array = array.rstrip(_BETWEEN_EVENTS)
    return array if array.endswith(b"]") else array + b"]"


def _read_whole(stream: Stream, limits: Limits) -> tuple[Header, Columns]:
    document = read_whole(stream, limits).removeprefix(BYTE_ORDER_MARK).strip(BLANKS)
    reader = EventReader(limits, DIVISION)
    keys = []
    if document.startswith(b"["):
        reader.add(_closed(document))
    else:
        keys.append(_add_document(reader, document))
    return _header(*keys), columns_of([reader.collector.collected()])


def _header(*documents: _Document) -> Header:
    """Return the header. Each of its keys is taken from the first document that has it."""

    def value(key: str) -> Any:
        values = (decode_or_none(getattr(document, key)) for document in documents)
        return next((found for found in values if found is not None), None)

    info = value("info")
    info = info if isinstance(info, dict) else {}
    backend, host, devices = info.get("backend"), value("host"), value("devices")
    return Header(
        backend=standard_name(backend) if isinstance(backend, str) else None,
        rank=_natural(info.get("rank")),
        world_size=_natural(info.get("world_size")),
        host=host if isinstance(host, str) else None,
        base_ns=_natural(value("base_ns")),
        has_device=bool(devices),
    )


def _natural(value: object) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value):
        return int(value)
    return value if type(value) is int and 0 <= value < 1 << 62 else None
