"""A file's bytes, as stored or decompressed.

They may be gzip or zstd, whatever the file's name, and are decompressed only up to a limit. Files are only read
forwards, because they may be remote.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Protocol, cast

from ddpprof.errors import BadTrace
from ddpprof.files import Location
from ddpprof.load.limits import DEFAULT_LIMITS, MAX_TRACE_OPTION, Limits

_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_USUAL_INFLATION = 12
"""usual ratio of a trace's JSON size to its compressed size"""
_ALWAYS_ALLOWED = 10**9
"""number of bytes that even a small file may decompress to"""

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
    """Within the context, call `told` repeatedly with the number of bytes read from a file so far."""
    token = _told.set(told)
    try:
        yield
    finally:
        _told.reset(token)


_told: ContextVar[Callable[[int], None] | None] = ContextVar("_told", default=None)


@contextmanager
def opened(path: Location, limits: Limits = DEFAULT_LIMITS) -> Iterator[Stream]:
    """Open a file, decompressed. Reading raises `UnreadableError` if data is damaged or too large.

    Raises ``OSError``.
    """
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
    """Return the approximate size of the file's JSON in bytes."""
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
    """A stream that reads only as long as the data is valid and within the limits."""

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
            what = "is truncated" if isinstance(error, EOFError) else f"is damaged ({error})"
            raise UnreadableError(f"{what}: its {self._method} data cannot be read completely") from error
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
                f"does not look like a trace: it decompresses to more than {self._limits.inflation} times its size. "
                f"If it is one, raise the limit with {MAX_TRACE_OPTION}"
            )
        return chunk


def read_whole(stream: Stream, limits: Limits) -> bytearray:
    """Read a whole file whose layout does not allow reading it in pieces."""
    text = bytearray()
    while chunk := stream.read(1 << 20):
        text += chunk
        if len(text) > limits.whole_bytes:
            raise UnreadableError(f"is too large to decode as a whole ({len(text)} bytes)")
    return text
