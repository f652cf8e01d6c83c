"""The text of a trace, cut into batches that end where an event ends.

A batch ends before the last ``{`` that precedes a ``"ph"`` key. Where that is not the start of an event (an event that
does not begin with its ``"ph"``, arguments that hold one), the batch has an open bracket, the decoder refuses it, and
the whole document is decoded instead. What follows the last batch is decoded together with the keys after the array.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddpprof.load.inflate import Stream, UnreadableError
from ddpprof.load.limits import Limits

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BLANKS = b" \t\r\n"
_CLOSING_EVENT = b'{"ph":"s"}]'
_ARRAY_START = re.compile(rb'"traceEvents"\s*:\s*\[')

Batch = Sequence[bytes | bytearray | memoryview]
"""An array in pieces, whose last event only closes the one that a comma left open."""


@dataclass(frozen=True, slots=True)
class Division:
    """How the text is divided."""

    batch_bytes: int = 1_000_000
    """Larger batches are slower: they leave the processor's cache."""
    batches_per_group: int = 4
    """A process decodes all batches of a group."""
    first_groups: int = 8
    """that one process decodes, and that say what the file is like"""
    worth_sharing_bytes: int = 100_000_000
    """Less is decoded before another process has started."""
    bytes_per_helper: int = 400_000_000
    """A process takes some 20 MB of memory: 5 % of that."""


class OddLayoutError(Exception):
    """The file cannot be read in batches; whole it may be."""


def split_at_array(stream: Stream, limits: Limits, batch_bytes: int) -> tuple[bytes | None, bytes]:
    """What stands before the array of events (``None`` where the file is nothing but it), and what was read of it."""
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
    """All events but the last few, batch by batch."""

    def __init__(self, stream: Stream, begin: bytes, limits: Limits, batch_bytes: int) -> None:
        self.num_done = 0
        self.rest = bytearray()
        """what follows the last batch; to the file's end, once all are done"""
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
        raise UnreadableError(f"holds {limits.keys_bytes // 10**6} MB without a single event: it is no profiler trace")
