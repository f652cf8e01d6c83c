"""Decodes the events of a trace into a collector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from ddpprof.load.batches import Batches, Division
from ddpprof.load.collector import Collector
from ddpprof.load.entries import Entries, SpanType, decode_entries, span_type
from ddpprof.load.inflate import UnreadableError
from ddpprof.load.limits import MAX_EVENTS_OPTION, Limits
from ddpprof.load.repair_json import mend
from ddpprof.load.times import NeedsExactTimesError


@dataclass(frozen=True, slots=True)
class Known:
    """What a file is like, so far as was seen."""

    is_exact: bool = False
    """float64 cannot hold its times"""
    has_shapes: bool = False
    """the inputs of its ops have shapes"""


class EventReader:
    """What the first groups of the file say of it holds for all, what another group says for that group.

    So it does not matter who decodes which.
    """

    def __init__(self, limits: Limits, division: Division, known: Known | None = None) -> None:
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
    def known(self) -> Known:
        """What the first groups say; to be asked once they are decoded."""
        if self._known is None:
            self._known = Known(self._is_exact, self.collector.has_shapes)
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
        return decode(mend(bytes(text)))
