"""Decodes the events of a trace file: this process, and for a large file several others.

Each process inflates all of the file, which takes a twentieth of the time that decoding takes, and decodes the groups
of batches that it gets to first. What the others kept comes back when they are through.
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
"""instead of the next group"""


@dataclass(frozen=True, slots=True)
class FileTraits:
    """What a file is like, so far as was seen."""

    is_exact: bool = False
    """float64 cannot hold its times"""
    has_shapes: bool = False
    """the inputs of its ops have shapes"""


class EventReader:
    """What the first groups of the file say of it holds for all, what another group says for that group.

    So it does not matter who decodes which.
    """

    def __init__(self, limits: Limits, division: Division, known: FileTraits | None = None) -> None:
        self.collector = Collector()
        self._limits, self._division = limits, division
        self._known = known
        """what the first groups said"""
        self._is_exact = False

    def add_batches(self, batches: Batches, is_mine: Callable[[int], bool]) -> None:
        """Those of the groups that are."""
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
        """What the first groups say; to be asked once they are decoded."""
        if self._known is None:
            self._known = FileTraits(self._is_exact, self.collector.has_shapes)
        return self._known

    def add_array(self, text: bytes | bytearray) -> None:
        self.add(lambda span: _decode_array(text, span))

    def add(self, decoded: Callable[[SpanType], Entries]) -> None:
        """Once float64 cannot hold a time, all that follow are decoded exactly."""
        try:
            self._add(decoded)
        except NeedsExactTimesError:
            self._is_exact = True
            self._add(decoded)
        refuse_many(self.collector.num_events, self._limits)

    def _add_batch(self, text: bytes) -> None:
        """An array whose last event only closes the one that a comma left open."""
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
            f"is too large: more than {limits.events:,} events. If it is a trace nevertheless: {MAX_EVENTS_OPTION}"
        )


def decode(decode: Callable[[bytes | bytearray], Any], text: bytes | bytearray) -> Any:
    """Also what no JSON decoder takes but Kineto writes. Raises ``msgspec.MsgspecError``."""
    try:
        return decode(text)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decode(repair_json(bytes(text)))


class HelperLostError(Exception):
    """A helper ended before it was through, or read another file: one process alone must read it."""


@dataclass(frozen=True, slots=True)
class _Failure:
    batch: int
    """number in the file"""
    error: Exception


@dataclass(frozen=True, slots=True)
class _Outcome:
    """of one helper"""

    collected: Collected
    num_batches: int
    """in the file, as far as it was read"""
    failure: _Failure | None


@contextmanager
def helping(path: Location, limits: Limits, division: Division, num_helpers: int) -> Iterator[Helpers]:
    """With none where the file is too small to be worth it, or far away. They end with the context."""
    helpers = Helpers(limits, division)
    try:
        if num_helpers and isinstance(path, Path) and (worth_it := _worth_starting(expected_bytes(path), division)):
            helpers.start(path, min(num_helpers, worth_it))
        yield helpers
    finally:
        helpers.end()


def _worth_starting(num_bytes: int, division: Division) -> int:
    """Helpers for a file of that size. Each takes memory of its own."""
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
        """Decode all batches, some of them by `reader`. Returns what the helpers kept of the others.

        Raises the error that one process alone would raise, and `HelperLostError`.
        """

        def is_mine(group: int) -> bool:
            if group == self._division.first_groups:
                for _, connection in self._running:
                    with suppress(OSError):  # one that was killed helps nobody
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
        """Of those that have begun: the others have taken no group, and none is left."""
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
    """A forked process shares all memory that it does not change, and is there at once. One with threads may hang."""
    may_hang = has_other_threads() or "torch" in sys.modules
    if sys.platform == "linux" and not may_hang:
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("spawn")


def _help(*arguments: Any) -> None:
    """In a context of its own: nobody here is to be told what is read."""
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
    """Its arrays straight from where they lie: pickled with the rest all would be in memory twice."""
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
    """Whether nobody has taken the group yet. If not, it is taken now.

    Without a lock, which a process that is killed would keep: two may take the same group, and one's is dropped.
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
