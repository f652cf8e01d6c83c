"""A trace file's bytes: plain, or inflated from gzip or zstd, whatever its name says, and only up to a limit.

Only read forwards: a file may be far away.
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
"""How many times as large as a compressed trace its JSON is."""
_ALWAYS_ALLOWED = 10**9
"""bytes that even a small file may inflate to"""

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
    """Says what is wrong, without the file's name."""


class Stream(Protocol):
    def read(self, num_bytes: int, /) -> bytes: ...


@contextmanager
def telling(told: Callable[[int], None]) -> Iterator[None]:
    """Within it `told` learns again and again how many bytes of a file have been read."""
    token = _told.set(told)
    try:
        yield
    finally:
        _told.reset(token)


_told: ContextVar[Callable[[int], None] | None] = ContextVar("_told", default=None)


@contextmanager
def opened(path: Location, limits: Limits = DEFAULT_LIMITS) -> Iterator[Stream]:
    """Reading raises `UnreadableError` where the data is damaged or more than it may be. Raises ``OSError``."""
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
    """Of its JSON, roughly."""
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
    """Reads on only as long as the data is sound and within the limits."""

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
            raise UnreadableError(f"{what}: its {self._method} data does not end well") from error
        self._num_bytes += len(chunk)
        if (told := _told.get()) is not None:
            told(self._file.tell())
        if self._num_bytes > self._limits.inflated_bytes:
            raise UnreadableError(
                f"is too large: more than {self._limits.inflated_bytes / 10**9:g} GB of JSON. "
                f"If it is a trace nevertheless: {MAX_TRACE_OPTION}"
            )
        if self._num_bytes > _ALWAYS_ALLOWED and self._num_bytes > self._limits.inflation * self._file.tell():
            raise UnreadableError(
                f"is no trace: it inflates to more than {self._limits.inflation} times its size. "
                f"If it is one nevertheless: {MAX_TRACE_OPTION}"
            )
        return chunk
