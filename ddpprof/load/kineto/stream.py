"""A trace file's bytes, plain or inflated, cut into batches that end where an event ends.

The bytes may be gzip or zstd, whatever the file's name says, and are inflated only up to a limit. They are only read
forwards, because a file may be far away.

A batch ends before the last ``{`` that precedes a ``"ph"`` key. If that is not the start of an event (an event does
not begin with its ``"ph"``, or arguments contain one), the batch has an open bracket, the decoder refuses it, and the
whole document is decoded instead. The text after the last batch is decoded together with the keys after the array.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Protocol, cast

from ddpprof.errors import BadTrace
from ddpprof.files import Location
from ddpprof.load.limits import DEFAULT_LIMITS, MAX_TRACE_OPTION, Limits

_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_USUAL_INFLATION = 12
"""usual ratio of a trace's JSON to its compressed size"""
_ALWAYS_ALLOWED = 10**9
"""number of bytes that even a small file may inflate to"""

_open_gzip: Callable[..., Any]
_damages: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
try:
    from isal import igzip
    from isal.igzip_lib import IsalError
except ImportError:  # no wheel for this machine
    _open_gzip = gzip.open
else:
    _open_gzip = igzip.open
    _damages = (*_damages, cast("type[Exception]", IsalError))  # its stub calls it an instance


class UnreadableError(Exception):
    """Error whose message says what is wrong, without the file's name."""


class Stream(Protocol):
    def read(self, num_bytes: int, /) -> bytes: ...


@contextmanager
def telling(told: Callable[[int], None]) -> Iterator[None]:
    """Call `told` again and again, within the context, with the number of bytes that have been read of a file."""
    token = _told.set(told)
    try:
        yield
    finally:
        _told.reset(token)


_told: ContextVar[Callable[[int], None] | None] = ContextVar("_told", default=None)


@contextmanager
def opened(path: Location, limits: Limits = DEFAULT_LIMITS) -> Iterator[Stream]:
    """Open a file, inflated. Reading raises `UnreadableError` if data is damaged or too large. Raises ``OSError``."""
    with path.open("rb") as file:
        magic = file.peek(4)[:4]
        if magic.startswith(_GZIP_MAGIC):
            with _open_gzip(file, "rb") as inflated:
                yield _Checked(inflated, "gzip", _damages, limits, file)
        elif magic == _ZSTD_MAGIC:
            zstd = _zstd(path)
            with zstd.open(file, "rb") as inflated:
                yield _Checked(inflated, "zstd", (EOFError, zstd.ZstdError), limits, file)
        else:
            yield _Checked(file, "", (), limits, file)


def expected_bytes(path: Path) -> int:
    """Return roughly the size of the file's JSON."""
    with path.open("rb") as file:
        magic = file.read(4)
    is_compressed = magic.startswith(_GZIP_MAGIC) or magic == _ZSTD_MAGIC
    return path.stat().st_size * (_USUAL_INFLATION if is_compressed else 1)


def _zstd(path: Location) -> ModuleType:
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        try:
            from backports import zstd
        except ImportError as error:
            raise BadTrace(
                f"{path} is compressed with zstd, which this Python cannot read. Install: pip install backports.zstd"
            ) from error
    return cast("ModuleType", zstd)


class _Checked:
    """A stream that reads only as long as the data is sound and within the limits."""

    def __init__(
        self, stream: Stream, method: str, damages: tuple[type[Exception], ...], limits: Limits, file: IO[bytes]
    ) -> None:
        self._stream = stream
        self._method, self._damages = method, damages
        self._limits = limits
        self._file = file
        self._num_bytes = 0

    def read(self, num_bytes: int, /) -> bytes:
        try:
            chunk = self._stream.read(num_bytes)
        except self._damages as error:
            what = "is cut off" if isinstance(error, EOFError) else f"is damaged ({error})"
            raise UnreadableError(f"{what}: its {self._method} data cannot be read to the end") from error
        self._num_bytes += len(chunk)
        if (told := _told.get()) is not None:
            told(self._file.tell())
        if self._num_bytes > self._limits.inflated_bytes:
            raise UnreadableError(
                f"is too large: more than {self._limits.inflated_bytes / 10**9:g} GB of JSON. "
                f"If it is a trace, raise the limit with {MAX_TRACE_OPTION}"
            )
        if self._num_bytes > _ALWAYS_ALLOWED and self._num_bytes > self._limits.inflation * self._file.tell():
            raise UnreadableError(
                f"does not look like a trace: it inflates to more than {self._limits.inflation} times its size. "
                f"If it is one, raise the limit with {MAX_TRACE_OPTION}"
            )
        return chunk


BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BLANKS = b" \t\r\n"
_CLOSING_EVENT = b'{"ph":"s"}]'
_ARRAY_START = re.compile(rb'"traceEvents"\s*:\s*\[')

Batch = Sequence[bytes | bytearray | memoryview]
"""An array in pieces; its last event is a dummy, which closes the array after the last comma."""


@dataclass(frozen=True, slots=True)
class Division:
    """Sizes by which the text is divided among batches, groups and processes."""

    batch_bytes: int = 1_000_000
    """size of a batch; larger batches leave the processor's cache and are slower"""
    batches_per_group: int = 4
    """number of batches in a group; one process decodes all of them"""
    first_groups: int = 8
    """number of groups that one process decodes to find the file's traits"""
    worth_sharing_bytes: int = 100_000_000
    """size from which helpers are started; less is decoded before another process has started"""
    bytes_per_helper: int = 400_000_000
    """size for which one helper is started; a process takes some 20 MB of memory, 5 % of that"""


class OddLayoutError(Exception):
    """Error about a file that cannot be read in batches, but perhaps as a whole."""


def split_at_array(stream: Stream, limits: Limits, batch_bytes: int) -> tuple[bytes | None, bytes]:
    """Return the text before the array of events (``None`` if the file is only an array), and what was read of it."""
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
        """text after the last batch; it goes to the file's end once all batches are done"""
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
            f"holds {limits.keys_bytes // 10**6} MB without a single event: it is not a profiler trace"
        )
