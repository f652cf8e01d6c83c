"""Decode the events of a trace file in batches, with helper processes if the file is large.

A batch ends before the last ``{`` that precedes a ``"ph"`` key. If an event does not begin with this key, or if its
arguments contain this key, the batch may end inside the event. Decoding the batch then fails, and the whole document is
decoded at once instead. The text after the last batch is decoded together with the keys after the array.

Each process decompresses the whole file, which takes 1/20 of the decoding time, and decodes groups of batches that no
other process has taken. At the end, the helpers send the events that they kept to their parent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec

from ddpprof.child_processes import safe_path
from ddpprof.files import Location
from ddpprof.load.file_bytes import (
    MAX_EVENTS_OPTION,
    Limits,
    Stream,
    UnreadableError,
    begin_reading_process,
    expected_bytes,
    opened,
    receive_with_arrays,
    send_with_arrays,
    signals_later,
    start_context,
)
from ddpprof.load.kineto.collect import Collector
from ddpprof.load.kineto.columns import Collected
from ddpprof.load.kineto.events import decode_entries, span_type
from ddpprof.load.lenient_json import NeedsExactTimesError, Text, TimeOutOfRangeError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BLANKS = b" \t\r\n"
_NO_MORE = 1 << 62
"""value of `next_group` at which no process takes another group"""
_CLOSING_EVENT = b'{"ph":"s"}]'
_ARRAY_START = re.compile(rb'"traceEvents"\s*:\s*\[')

Batch = Sequence[bytes | bytearray | memoryview]
"""A JSON array of events, in pieces. A comma follows the last real event, so a dummy event is added at the end."""


@dataclass(frozen=True, slots=True)
class Division:
    """Sizes that determine how a file is divided into batches and groups, and among processes."""

    batch_bytes: int = 1_000_000
    """size of a batch; larger batches would not fit into the CPU cache and would be slower"""
    batches_per_group: int = 4
    """number of batches in a group; each group is decoded by one process"""
    first_groups: int = 8
    """number of groups that the main process decodes before all others, to determine the file's traits"""
    worth_sharing_bytes: int = 100_000_000
    """helpers are started only for files of at least this size; a smaller file would be decoded before a helper is
    ready
    """
    bytes_per_helper: int = 400_000_000
    """one helper is started for each of this many bytes of JSON; a helper takes about 20 MB of memory"""


class OddLayoutError(Exception):
    """The file cannot be read in batches, but may be readable as a whole."""


def split_at_array(stream: Stream, limits: Limits, batch_bytes: int) -> tuple[bytes | None, bytes]:
    """Return the text before the array of events, and the part of the array that has been read.

    The text is ``None`` if the file consists of the array only.
    """
    text = bytearray()
    while chunk := stream.read(batch_bytes):
        searched = max(len(text) - 64, 0)
        text += chunk
        start = text.removeprefix(BYTE_ORDER_MARK).lstrip(BLANKS)[:1] if searched == 0 else b"{"
        if start == b"[":
            return None, bytes(text[text.index(b"[") + 1 :])
        if start not in (b"{", b""):
            raise UnreadableError("is not JSON")
        if match := _ARRAY_START.search(text, searched):
            return bytes(text[: match.start()].removeprefix(BYTE_ORDER_MARK)), bytes(text[match.end() :])
        _refuse_long(text, limits)
    if not text.strip(BLANKS):
        raise UnreadableError("is empty")
    raise OddLayoutError


class Batches:
    """Iterator over the batches of an array of events. The text after the last batch is in `rest`."""

    def __init__(self, stream: Stream, begin: bytes, limits: Limits, batch_bytes: int) -> None:
        self.num_done = 0
        self.rest = bytearray()
        """text after the last batch so far; after all batches, the rest of the file"""
        self._stream, self._begin, self._limits, self._batch_bytes = stream, begin, limits, batch_bytes

    def __iter__(self) -> Iterator[Batch]:
        chunk = self._begin
        while True:
            cut = chunk.rfind(b"{", 0, max(chunk.rfind(b'"ph"'), 0))
            if cut < 0:
                self.rest += chunk
                _refuse_long(self.rest, self._limits)
            else:
                yield b"[", self.rest, memoryview(chunk)[:cut], _CLOSING_EVENT
                self.num_done += 1
                self.rest = bytearray(chunk[cut:])
            chunk = self._stream.read(self._batch_bytes)
            if not chunk:
                return


def _refuse_long(text: bytearray, limits: Limits) -> None:
    if len(text) > limits.keys_bytes:
        raise UnreadableError(
            f"contains {limits.keys_bytes // 10**6} MB without a single event: it is not a profiler trace"
        )


@dataclass(frozen=True, slots=True)
class FileTraits:
    """Traits of a file that determine how its events are decoded."""

    is_exact: bool = False
    """whether times must be decoded exactly, because they are too large for float64"""
    has_shapes: bool = False
    """whether the ops have input shapes"""


class EventReader:
    """Decodes events, and determines the file's traits from the first groups.

    Traits found in a later group apply only to that group, so that the result does not depend on which process decodes
    it.
    """

    def __init__(self, limits: Limits, division: Division, known: FileTraits | None = None) -> None:
        self.collector = Collector()
        self._limits, self._division = limits, division
        self._known = known
        """traits found in the first groups; ``None`` while these groups are decoded"""
        self._is_exact = False

    def add_batches(self, batches: Batches, is_mine: Callable[[int], bool]) -> None:
        """Add the batches of the groups for which `is_mine` returns true."""
        adds = False
        for batch in batches:
            group, place = divmod(batches.num_done, self._division.batches_per_group)
            if place == 0:
                adds = is_mine(group)
                if adds:
                    self.begin(group)
            if adds:
                self.add(b"".join(batch), has_dummy=True)

    def begin(self, group: int) -> None:
        self.collector.begin(group)
        if group >= self._division.first_groups:
            known = self.known
            self._is_exact, self.collector.has_shapes = known.is_exact, known.has_shapes

    @property
    def known(self) -> FileTraits:
        """The traits found in the first groups. These groups must have been decoded."""
        if self._known is None:
            self._known = FileTraits(self._is_exact, self.collector.has_shapes)
        return self._known

    def add(self, array: Text, *, has_dummy: bool = False) -> None:
        """Add the events of an array. `has_dummy`: whether the last event is a dummy, which is then dropped.

        If float64 is not precise enough for any of the times, the array is decoded again with exact times.
        """
        try:
            self._add(array, has_dummy)
        except NeedsExactTimesError:
            self._is_exact = True
            self._add(array, has_dummy)
        refuse_many(self.collector.num_events, self._limits)

    def _add(self, array: Text, has_dummy: bool) -> None:
        span = span_type(exact=self._is_exact, with_arguments=self.collector.has_shapes)
        entries = decode_entries(array, span)
        if has_dummy:
            entries.pop()
        self.collector.add(entries, span)


def refuse_many(num_events: int, limits: Limits) -> None:
    if num_events > limits.events:
        raise UnreadableError(
            f"is too large: more than {limits.events:,} events. If it is a trace, raise the limit with "
            f"{MAX_EVENTS_OPTION}"
        )


class HelperLostError(Exception):
    """A helper ended early, or the file changed. The file must be read again by a single process."""


@dataclass(frozen=True, slots=True)
class _Failure:
    batch: int
    """number of the batch that could not be decoded, counted from the start of the file"""
    error: Exception


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of one helper."""

    collected: Collected
    num_batches: int
    """number of batches in the file, as counted by the helper"""
    failure: _Failure | None


@contextmanager
def helping(path: Location, limits: Limits, division: Division, num_helpers: int) -> Iterator[Helpers]:
    """Start helpers if the file is local and large enough. They end with the context."""
    helpers = Helpers(limits, division)
    try:
        if num_helpers and isinstance(path, Path) and (worth_it := _worth_starting(expected_bytes(path), division)):
            helpers.start(path, min(num_helpers, worth_it))
        yield helpers
    finally:
        helpers.end()


def _worth_starting(num_bytes: int, division: Division) -> int:
    """Return the maximum number of helpers for a file of this size. Each helper needs memory."""
    if num_bytes < division.worth_sharing_bytes:
        return 0
    return max(1, num_bytes // division.bytes_per_helper)


class Helpers:
    """The helper processes (zero or more) that decode parts of the file."""

    def __init__(self, limits: Limits, division: Division) -> None:
        self._limits, self._division = limits, division
        self._running: list[tuple[BaseProcess, Connection]] = []
        self._next_group: MutableSequence[int] = []

    def start(self, path: Path, number: int) -> None:
        context = start_context()
        with safe_path(), signals_later(), suppress(OSError):  # go on with fewer helpers if some cannot be started
            self._next_group = context.RawArray("q", [self._division.first_groups])
            for _ in range(number):
                ours, theirs = context.Pipe()
                arguments = (path, self._limits, self._division, self._next_group, theirs)
                process = context.Process(target=_help, args=arguments, daemon=True)
                process.start()
                theirs.close()
                self._running.append((process, ours))

    def share(self, reader: EventReader, batches: Batches) -> list[Collected]:
        """Decode some batches with `reader` and the rest in helpers, and return the events that the helpers kept.

        Raises the same errors as decoding in a single process, and `HelperLostError`.
        """

        def is_mine(group: int) -> bool:
            if group == self._division.first_groups:
                for _, connection in self._running:
                    with suppress(OSError):  # the helper may have been killed
                        connection.send(reader.known)
            return group < self._division.first_groups or not self._running or _takes(self._next_group, group)

        failure = _failure_of(reader, batches, is_mine)
        if self._running and failure is not None:
            self._next_group[0] = _NO_MORE
        outcomes = list(self._outcomes())
        failures = [one for one in (failure, *(outcome.failure for outcome in outcomes)) if one is not None]
        first = min(failures, key=lambda one: one.batch, default=None)
        events = dict(reader.collector.kept.num_events)
        for outcome in outcomes:
            events |= outcome.collected.num_events
        if first is None:
            if any(outcome.num_batches != batches.num_done for outcome in outcomes):
                raise HelperLostError
            refuse_many(sum(events.values()), self._limits)
        else:
            last_group = first.batch // self._division.batches_per_group
            refuse_many(sum(number for group, number in events.items() if group <= last_group), self._limits)
            raise first.error
        return [outcome.collected for outcome in outcomes]

    def end(self) -> None:
        for process, connection in self._running:
            process.kill()
            process.join()
            connection.close()

    def _outcomes(self) -> Iterator[_Outcome]:
        """Yield the outcomes of the helpers that have begun.

        The remaining helpers have no work, because no group is left.
        """
        for _, connection in self._running:
            if not connection.poll():
                continue
            try:
                connection.recv()
            except (EOFError, OSError):
                continue
            try:
                yield receive_with_arrays(connection)
            except (EOFError, OSError) as error:
                raise HelperLostError from error


def _help(*arguments: Any) -> None:
    """Run `_decode` in a new `contextvars` context, so that it does not call the parent's progress callback."""
    Context().run(_decode, *arguments)


def _decode(
    path: Path, limits: Limits, division: Division, next_group: MutableSequence[int], connection: Connection
) -> None:
    begin_reading_process()
    with connection, suppress(OSError, EOFError), opened(path, limits) as stream:
        known: FileTraits = connection.recv()
        connection.send("begins")
        _, begin = split_at_array(stream, limits, division.batch_bytes)
        reader, batches = EventReader(limits, division, known), Batches(stream, begin, limits, division.batch_bytes)
        failure = _failure_of(reader, batches, lambda group: _takes(next_group, group))
        send_with_arrays(connection, _Outcome(reader.collector.collected(), batches.num_done, failure))


def _takes(next_group: MutableSequence[int], group: int) -> bool:
    """Take the group if it is free. Return True if it was free.

    There is no lock, because a process may be killed while it holds the lock. If two processes take the same group, one
    copy is dropped later.
    """
    is_free = next_group[0] <= group
    if is_free:
        next_group[0] = group + 1
    return is_free


def _failure_of(reader: EventReader, batches: Batches, is_mine: Callable[[int], bool]) -> _Failure | None:
    try:
        reader.add_batches(batches, is_mine)
    except (msgspec.MsgspecError, RecursionError):
        return _Failure(batches.num_done, OddLayoutError())
    except (UnreadableError, TimeOutOfRangeError) as error:
        return _Failure(batches.num_done, error)
    return None
