"""Reads a Kineto trace file: streamed in batches where its layout allows it, whole where not. Both give the same.

A batch ends before the last ``{`` that precedes a ``"ph"`` key. Where that is not the start of an event (an event that
does not begin with its ``"ph"``, arguments that hold one), the batch has an open bracket, the decoder refuses it, and
the whole document is decoded instead. What follows the last batch is decoded together with the keys after the array.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from ddpprof.errors import BadTrace
from ddpprof.load.arguments import decode_or_none
from ddpprof.load.collector import Collector
from ddpprof.load.columns import Columns
from ddpprof.load.entries import (
    AnyEvent,
    AnyExactEvent,
    Entries,
    SpanType,
    as_entries,
    decode_entries,
    is_exact,
    span_type,
)
from ddpprof.load.inflate import Stream, UnreadableError, opened
from ddpprof.load.limits import DEFAULT_LIMITS, MAX_EVENTS_OPTION, Limits
from ddpprof.load.mend import mend
from ddpprof.load.times import NeedsExactTimesError, TimeOutOfRangeError
from ddpprof.location import Location

BATCH_BYTES = 1_000_000
"""Larger batches are slower: they leave the processor's cache."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANKS = b" \t\r\n"
_BETWEEN_EVENTS = _BLANKS + b","
_CLOSING_EVENT = b'{"ph":"s"}]'
_ARRAY_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_RANK_IN_INFO = re.compile(rb'"distributedInfo"\s*:\s*\{[^}]*?"rank"\s*:\s*"?(\d{1,18})')
_ADVICE = "Record it again, or leave this file out."


class _Document(msgspec.Struct, gc=False):
    """The keys beside the events; each is decoded when it is asked for, so that an odd one harms nobody."""

    info: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="distributedInfo")
    base_ns: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="baseTimeNanoseconds")
    host: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="host_name")
    devices: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"), name="deviceProperties")


class _FastDocument(_Document, gc=False):
    events: list[AnyEvent] | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="traceEvents")


class _ExactDocument(_Document, gc=False):
    events: list[AnyExactEvent] | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="traceEvents")


_Decoder = Callable[[bytes | bytearray], Any]
_DECODE_DOCUMENT: tuple[_Decoder, _Decoder] = (
    msgspec.json.Decoder(_FastDocument).decode,
    msgspec.json.Decoder(_ExactDocument).decode,
)


_DECODE_KEYS = msgspec.json.Decoder(_Document).decode


@dataclass(frozen=True, slots=True)
class Header:
    """The keys beside ``traceEvents``; ``None`` where the file does not say."""

    backend: str | None = None
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    base_ns: int | None = None
    """what to add to the events' times to get nanoseconds since 1970"""
    has_device: bool = False
    """an accelerator was visible"""


def read_trace(path: Location, limits: Limits = DEFAULT_LIMITS) -> tuple[Header, Columns]:
    """The header of a trace file and the events that the tables need. Raises `BadTrace`."""
    with _told_as_bad_trace(path):
        try:
            with opened(path, limits) as stream:
                header, columns = _read_in_batches(stream, limits)
        except _OddLayoutError:
            with opened(path, limits) as stream:
                header, columns = _read_whole(stream, limits)
    if not columns.num_events:
        raise BadTrace(f"{path} holds no events: nothing was profiled. {_ADVICE}")
    if not len(columns.start_ns) and not columns.launches.num_all:
        raise BadTrace(
            f"{path} holds {columns.num_events} events, but no op, kernel or step of torch.profiler. {_ADVICE}"
        )
    return header, columns


def read_rank(path: Location, limits: Limits = DEFAULT_LIMITS) -> int | None:
    """The rank that a trace file states; no events are decoded where its layout allows it. Raises `BadTrace`."""
    with _told_as_bad_trace(path):
        try:
            with opened(path, limits) as stream:
                before, rest = _split_at_array(stream, limits)
                keys = _Document() if before is None else _decode(_DECODE_KEYS, before + b'"traceEvents":[]}')
                rank = _header(keys).rank
                return _rank_after_events(stream, rest) if rank is None and before is not None else rank
        except (_OddLayoutError, msgspec.MsgspecError):
            return read_trace(path, limits)[0].rank


def _rank_after_events(stream: Stream, text: bytes) -> int | None:
    """By the keys that follow the events, if there are any."""
    while chunk := stream.read(BATCH_BYTES):
        text = text[-BATCH_BYTES:] + chunk
    match = _RANK_IN_INFO.search(text)
    return _natural(int(match.group(1))) if match else None


@contextmanager
def _told_as_bad_trace(path: Location) -> Iterator[None]:
    """Whatever goes wrong with the file becomes a `BadTrace`."""
    try:
        yield
    except OSError as error:
        raise BadTrace(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnreadableError as error:
        raise BadTrace(f"{path} {error}. {_ADVICE}") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadTrace(f"{path} {_explain(error)}. {_ADVICE}") from error
    except TimeOutOfRangeError as error:
        raise BadTrace(f"{path} holds a time that no clock shows. {_ADVICE}") from error


class _OddLayoutError(Exception):
    """The file cannot be read in batches; whole it may be."""


def _explain(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "is no trace: it is nested too deeply"
    if isinstance(error, msgspec.ValidationError):
        return f"holds what no trace holds: {error}"
    if "truncated" in str(error):
        return "is cut off: the JSON ends in the middle"
    return f"is not valid JSON ({error})"


class _EventReader:
    """Decodes events into a collector; once float64 cannot hold a time, decodes all that follow exactly."""

    def __init__(self, limits: Limits) -> None:
        self.collector = Collector()
        self._limits = limits
        self._exact = False

    def add_array(self, text: bytes | bytearray) -> None:
        self._collect(lambda span: _decode_array(text, span))

    def add_batch(self, text: bytes) -> None:
        """An array whose last event only closes the one that a comma left open."""
        self._collect(lambda span: _decode_array(text, span)[:-1])

    def add_document(self, text: bytes | bytearray) -> _Document:
        """Also the keys beside the events, which must be there."""
        documents: list[_FastDocument | _ExactDocument] = []

        def decode(span: SpanType) -> Entries:
            documents.append(_decode(_DECODE_DOCUMENT[is_exact(span)], text))
            events = documents[-1].events
            if isinstance(events, msgspec.UnsetType):
                raise UnreadableError("is no profiler trace: it is JSON without traceEvents")
            return as_entries(events, span)

        self._collect(decode)
        return documents[-1]

    def _collect(self, decode: Callable[[SpanType], Entries]) -> None:
        try:
            self._add(decode)
        except NeedsExactTimesError:
            self._exact = True
            self._add(decode)
        if self.collector.num_events > self._limits.events:
            raise UnreadableError(
                f"is too large: more than {self._limits.events:,} events. "
                f"If it is a trace nevertheless: {MAX_EVENTS_OPTION}"
            )

    def _add(self, decode: Callable[[SpanType], Entries]) -> None:
        span = span_type(exact=self._exact, with_arguments=self.collector.has_shapes)
        self.collector.add(decode(span), span)


def _decode_array(text: bytes | bytearray, span: SpanType) -> Entries:
    entries: Entries = _decode(lambda text: decode_entries(text, span), text)
    return entries


def _decode(decode: _Decoder, text: bytes | bytearray) -> Any:
    try:
        return decode(text)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decode(mend(bytes(text)))


def _read_in_batches(stream: Stream, limits: Limits) -> tuple[Header, Columns]:
    """Raises `_OddLayoutError`, and ``msgspec.DecodeError`` where decoding the whole would fail too."""
    before, rest = _split_at_array(stream, limits)
    reader = _EventReader(limits)
    keys_before = _Document()
    try:
        if before is not None:
            keys_before = _decode(_DECODE_KEYS, before + b'"traceEvents":[]}')
        tail = _add_batches(stream, rest, reader, limits)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _OddLayoutError from error
    try:
        if before is None:
            reader.add_array(_closed(b"[" + tail))
            return Header(), reader.collector.columns()
        keys_after = reader.add_document(b'{"traceEvents":[' + tail)
    except msgspec.ValidationError as error:  # decoded whole, its message counts events from the file's start
        raise _OddLayoutError from error
    return _header(keys_before, keys_after), reader.collector.columns()


def _split_at_array(stream: Stream, limits: Limits) -> tuple[bytes | None, bytes]:
    """What stands before the array of events (``None`` where the file is nothing but it), and what was read of it."""
    text = bytearray()
    while chunk := stream.read(BATCH_BYTES):
        searched = max(len(text) - 64, 0)
        text += chunk
        start = text.removeprefix(_BYTE_ORDER_MARK).lstrip(_BLANKS)[:1] if searched == 0 else b"{"
        if start == b"[":
            return None, bytes(text[text.index(b"[") + 1 :])
        if start not in (b"{", b""):
            raise UnreadableError("is not JSON")
        if match := _ARRAY_START.search(text, searched):
            return bytes(text[: match.start()].removeprefix(_BYTE_ORDER_MARK)), bytes(text[match.end() :])
        _refuse_long(text, limits)
    if not text.strip(_BLANKS):
        raise UnreadableError("is empty")
    raise _OddLayoutError


def _add_batches(stream: Stream, chunk: bytes, reader: _EventReader, limits: Limits) -> bytes:
    """Decode all events but the last few. Returns what is left, to the file's end."""
    begun = bytearray()
    while True:
        cut = chunk.rfind(b"{", 0, max(chunk.rfind(b'"ph"'), 0))
        if cut < 0:
            begun += chunk
            _refuse_long(begun, limits)
        else:
            reader.add_batch(b"".join((b"[", begun, memoryview(chunk)[:cut], _CLOSING_EVENT)))
            begun = bytearray(chunk[cut:])
        chunk = stream.read(BATCH_BYTES)
        if not chunk:
            return bytes(begun)


def _refuse_long(text: bytearray, limits: Limits) -> None:
    if len(text) > limits.keys_bytes:
        raise UnreadableError(f"holds {limits.keys_bytes // 10**6} MB without a single event: it is no profiler trace")


def _closed(array: bytes | bytearray) -> bytes | bytearray:
    """Chrome's array format may lack its closing bracket."""
    array = array.rstrip(_BETWEEN_EVENTS)
    return array if array.endswith(b"]") else array + b"]"


def _read_whole(stream: Stream, limits: Limits) -> tuple[Header, Columns]:
    text = bytearray()
    while chunk := stream.read(io.DEFAULT_BUFFER_SIZE * 128):
        text += chunk
        if len(text) > limits.whole_bytes:
            raise UnreadableError(f"is not laid out as a trace, and too large to decode whole ({len(text)} bytes)")
    document = text.removeprefix(_BYTE_ORDER_MARK).strip(_BLANKS)
    reader = _EventReader(limits)
    if document.startswith(b"["):
        reader.add_array(_closed(document))
        return Header(), reader.collector.columns()
    return _header(reader.add_document(document)), reader.collector.columns()


def _header(*documents: _Document) -> Header:
    """Each key from the first document that has it."""

    def value(key: str) -> Any:
        values = (decode_or_none(getattr(document, key)) for document in documents)
        return next((found for found in values if found is not None), None)

    info = value("info")
    info = info if isinstance(info, dict) else {}
    backend, host, devices = info.get("backend"), value("host"), value("devices")
    return Header(
        backend=backend if isinstance(backend, str) else None,
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
