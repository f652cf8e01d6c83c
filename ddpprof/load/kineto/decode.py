"""Decoding of a trace file's events by this process and, for a large file, several helpers.

Each process inflates the whole file, which takes a twentieth of the time of decoding, and decodes the groups of
batches that it gets to first. Helpers send back what they kept when they are through.
"""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ddpprof.child_processes import safe_path
from ddpprof.files import Location
from ddpprof.load.helper_process import begin_reading_process, has_other_threads, signals_later
from ddpprof.load.kineto.collect import Collector
from ddpprof.load.kineto.columns import Collected
from ddpprof.load.kineto.events import (
    Entries,
    NeedsExactTimesError,
    SpanType,
    TimeOutOfRangeError,
    decode_entries,
    span_type,
)
from ddpprof.load.kineto.stream import (
    Batches,
    Division,
    OddLayoutError,
    UnreadableError,
    expected_bytes,
    opened,
    split_at_array,
)
from ddpprof.load.limits import MAX_EVENTS_OPTION, Limits
from ddpprof.load.repair_json import repair_json

if TYPE_CHECKING:
    from multiprocessing.context import ForkContext, SpawnContext

_NO_MORE = 1 << 62
"""value of the next group when no more groups are to be taken"""


@dataclass(frozen=True, slots=True)
class FileTraits:
    """Traits of a file, as far as it has been read."""

    is_exact: bool = False
    """whether float64 cannot hold its times"""
    has_shapes: bool = False
    """whether the inputs of its ops have shapes"""


class EventReader:
    """Reader of events that finds the file's traits in the first groups; traits of a later group hold only for it.

    So it does not matter which process decodes which group.
    """

    def __init__(self, limits: Limits, division: Division, known: FileTraits | None = None) -> None:
        self.collector = Collector()
        self._limits, self._division = limits, division
        self._known = known
        """traits seen in the first groups"""
        self._is_exact = False

    def add_batches(self, batches: Batches, is_mine: Callable[[int], bool]) -> None:
        """Add the batches of the groups for which `is_mine` is true."""
        adds = False
        for batch in batches:
            group, place = divmod(batches.num_done, self._division.batches_per_group)
            if place == 0:
                adds = is_mine(group)
                if adds:
                    self.begin(group)
            if adds:
                self._add_batch(b"".join(batch))

    def begin(self, group: int) -> None:
        self.collector.begin(group)
        if group >= self._division.first_groups:
            known = self.known
            self._is_exact, self.collector.has_shapes = known.is_exact, known.has_shapes

    @property
    def known(self) -> FileTraits:
        """The traits seen in the first groups, to be read once these are decoded."""
        if self._known is None:
            self._known = FileTraits(self._is_exact, self.collector.has_shapes)
        return self._known

    def add_array(self, text: bytes | bytearray) -> None:
        self.add(lambda span: _decode_array(text, span))

    def add(self, decoded: Callable[[SpanType], Entries]) -> None:
        """Add events; from the first time on that float64 cannot hold, all are decoded exactly."""
        try:
            self._add(decoded)
        except NeedsExactTimesError:
            self._is_exact = True
            self._add(decoded)
        refuse_many(self.collector.num_events, self._limits)

    def _add_batch(self, text: bytes) -> None:
        """Add an array without its last event, a dummy that closes the array after the last comma."""
        self.add(lambda span: _decode_array(text, span)[:-1])

    def _add(self, decoded: Callable[[SpanType], Entries]) -> None:
        span = span_type(exact=self._is_exact, with_arguments=self.collector.has_shapes)
        self.collector.add(decoded(span), span)


def _decode_array(text: bytes | bytearray, span: SpanType) -> Entries:
    entries: Entries = decode(lambda text: decode_entries(text, span), text)
    return entries


def refuse_many(num_events: int, limits: Limits) -> None:
    if num_events > limits.events:
        raise UnreadableError(
            f"is too large: more than {limits.events:,} events. If it is a trace, raise the limit with "
            f"{MAX_EVENTS_OPTION}"
        )


def decode(decode: Callable[[bytes | bytearray], Any], text: bytes | bytearray) -> Any:
    """Decode JSON, also Kineto's that is not valid. Raises ``msgspec.MsgspecError``."""
    try:
        return decode(text)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decode(repair_json(bytes(text)))


class HelperLostError(Exception):
    """Error about a helper that ended early or read another file, so that one process alone must read the file."""


@dataclass(frozen=True, slots=True)
class _Failure:
    batch: int
    """number of the batch in the file"""
    error: Exception


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of one helper."""

    collected: Collected
    num_batches: int
    """number of batches in the file, as far as it was read"""
    failure: _Failure | None


@contextmanager
def helping(path: Location, limits: Limits, division: Division, num_helpers: int) -> Iterator[Helpers]:
    """Start helpers, but none if the file is far away or too small to be worth it. They end with the context."""
    helpers = Helpers(limits, division)
    try:
        if num_helpers and isinstance(path, Path) and (worth_it := _worth_starting(expected_bytes(path), division)):
            helpers.start(path, min(num_helpers, worth_it))
        yield helpers
    finally:
        helpers.end()


def _worth_starting(num_bytes: int, division: Division) -> int:
    """Return how many helpers a file of that size is worth; each takes memory of its own."""
    if num_bytes < division.worth_sharing_bytes:
        return 0
    return max(1, num_bytes // division.bytes_per_helper)


class Helpers:
    """The other processes that decode the file; there may be none."""

    def __init__(self, limits: Limits, division: Division) -> None:
        self._limits, self._division = limits, division
        self._running: list[tuple[BaseProcess, Connection]] = []
        self._next_group: MutableSequence[int] = []

    def start(self, path: Path, number: int) -> None:
        context = _context()
        with safe_path(), signals_later(), suppress(OSError):  # fewer will do
            self._next_group = context.RawArray("q", [self._division.first_groups])
            for _ in range(number):
                ours, theirs = context.Pipe()
                arguments = (path, self._limits, self._division, self._next_group, theirs)
                process = context.Process(target=_help, args=arguments, daemon=True)
                process.start()
                theirs.close()
                self._running.append((process, ours))

    def share(self, reader: EventReader, batches: Batches) -> list[Collected]:
        """Decode all batches, some of them by `reader`; return what the helpers kept of the others.

        Raises the error that one process alone would raise, and `HelperLostError`.
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
        events = dict(reader.collector.events_of_group)
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
        """Yield the outcomes of helpers that have begun; the others have taken no group, and none is left."""
        for _, connection in self._running:
            if not connection.poll():
                continue
            try:
                connection.recv()
            except (EOFError, OSError):
                continue
            try:
                yield _received(connection)
            except (EOFError, OSError) as error:
                raise HelperLostError from error


def _context() -> ForkContext | SpawnContext:
    """Return how to start helpers. A fork starts at once and shares unchanged memory, but with threads it may hang."""
    may_hang = has_other_threads() or "torch" in sys.modules
    if sys.platform == "linux" and not may_hang:
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("spawn")


def _help(*arguments: Any) -> None:
    """Decode in a context of its own, so that the caller's progress callback is not called."""
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
        _send(connection, _Outcome(reader.collector.collected(), batches.num_done, failure))


def _send(connection: Connection, outcome: _Outcome) -> None:
    """Send an outcome, its arrays without a copy: pickled with the rest all would be in memory twice."""
    buffers: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(outcome, protocol=5, buffer_callback=buffers.append)
    arrays = [buffer.raw() for buffer in buffers]
    connection.send((rest, [array.nbytes for array in arrays]))
    for array in arrays:
        connection.send_bytes(array)


def _received(connection: Connection) -> _Outcome:
    rest, sizes = connection.recv()
    arrays = [bytearray(size) for size in sizes]
    for array in arrays:
        connection.recv_bytes_into(array)
    outcome: _Outcome = pickle.loads(rest, buffers=arrays)  # noqa: S301 (a process of ours wrote it)
    return outcome


def _takes(next_group: MutableSequence[int], group: int) -> bool:
    """Take the group if nobody has taken it yet; return whether it was free.

    There is no lock, because a killed process would keep it: two may take the same group, and one copy is dropped.
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
