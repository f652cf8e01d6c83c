"""Read the bytes of plain, gzip and zstd files, and start helper processes that read files.

The compression is detected from the content, not from the file name. Data is decompressed only up to a limit. Files are
read sequentially, because they may be remote. A helper process ends when its parent ends.
"""

from __future__ import annotations

import ctypes
import gzip
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from ddpprof.errors import BadTrace
from ddpprof.files import Location
from ddpprof.signals import deferred_signals

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkContext, SpawnContext


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for one trace file. The defaults are several times larger than the longest recordings need."""

    inflated_bytes: int = 64 * 10**9
    """maximum size of the JSON text; 10 GB is already large for one rank"""
    events: int = 500_000_000
    inflation: int = 300
    """maximum ratio of JSON size to file size, checked after the first GB. The ratio is up to 50 in traces, and 1000 in
    a gzip bomb
    """
    whole_bytes: int = 2 * 10**9
    """maximum size of a JSON text that cannot be read in batches; reading it as a whole takes several times as much
    memory
    """
    keys_bytes: int = 256 * 10**6
    """maximum size of the text before the array of events, and of the text after it; each is read in one piece"""
    files: int = 20_000
    """maximum number of files in one folder that may be traces; each file is opened to determine its rank"""

    @classmethod
    def chosen(cls, trace_gb: float | None, events: int | None, files: int | None = None) -> Limits:
        """Return the limits that the user has given, and the defaults of all other limits.

        If the user gives a size, any compression ratio is allowed.
        """
        limits = cls()
        if trace_gb is not None:
            limits = replace(limits, inflated_bytes=round(trace_gb * 10**9), inflation=_ANY)
        given = {name: value for name, value in (("events", events), ("files", files)) if value is not None}
        return replace(limits, **given)


_ANY = 1 << 62


DEFAULT_LIMITS = Limits()

MAX_TRACE_OPTION, MAX_EVENTS_OPTION, MAX_FILES_OPTION = "--max-trace-gb", "--max-events", "--max-files"
"""command-line options that raise the limits; error messages name the options"""


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 2 << 20
"""arrays of at least this size are returned to the system when freed. The size is larger than any single allocation of
a batch; otherwise, the system would map and zero new memory for each batch
"""
_TRIM_BYTES = 4 << 20


def give_back_large_arrays() -> None:
    """Make glibc return large arrays to the system when they are freed, instead of keeping their memory for reuse.

    The setting applies to the whole process, so only commands may call this function. Without glibc, it does nothing.
    """
    with suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def give_back_holes() -> None:
    """Return the free memory between small arrays on the heap to the system. Without glibc, this does nothing."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_USUAL_INFLATION = 12
"""usual ratio of the size of a trace's JSON to the size of the compressed file"""
_ALWAYS_ALLOWED = 10**9
"""number of bytes to which any file may decompress, however small the file is"""

_open_gzip: Callable[..., Any]
_damages: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
try:
    from isal import igzip
    from isal.igzip_lib import IsalError
except ImportError:  # no wheel for this machine
    _open_gzip = gzip.open
else:
    _open_gzip = igzip.open
    _damages = (*_damages, cast("type[Exception]", IsalError))  # its type stub declares an instance


class UnreadableError(Exception):
    """A file cannot be read. The message contains the reason, but not the name of the file."""


class Stream(Protocol):
    def read(self, num_bytes: int, /) -> bytes: ...


@contextmanager
def telling(told: Callable[[int], None]) -> Iterator[None]:
    """Within the context, call `told` regularly with the number of bytes that have been read from a file."""
    token = _told.set(told)
    try:
        yield
    finally:
        _told.reset(token)


_told: ContextVar[Callable[[int], None] | None] = ContextVar("_told", default=None)


@contextmanager
def opened(path: Location, limits: Limits = DEFAULT_LIMITS) -> Iterator[Stream]:
    """Open a file and decompress it if needed. Reading raises `UnreadableError` if the data is damaged or too large.

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
    """Return the approximate size of the file's JSON, in bytes."""
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
    """A stream. Its `read` raises `UnreadableError` if data is damaged or exceeds the limits."""

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
            raise UnreadableError(f"{what}: its {self._method} data is damaged or incomplete") from error
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
                f"If it is a trace, raise the limit with {MAX_TRACE_OPTION}"
            )
        return chunk


def read_whole(stream: Stream, limits: Limits) -> bytearray:
    """Read a file as a whole. Some files have a layout that cannot be read in pieces."""
    text = bytearray()
    while chunk := stream.read(1 << 20):
        text += chunk
        if len(text) > limits.whole_bytes:
            raise UnreadableError(f"is too large to decode as a whole ({len(text)} bytes)")
    return text


_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_WAITS_FOR_PARENT = "ddpprof-waits-for-parent"


def start_context() -> ForkContext | SpawnContext:
    """Return the multiprocessing context for helper processes.

    Forking is fast and shares unchanged memory. It is not used if the process has other threads, because it may
    deadlock.
    """
    may_hang = _has_other_threads() or "torch" in sys.modules
    if sys.platform == "linux" and not may_hang:
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("spawn")


def begin_reading_process() -> None:
    """Prepare this helper process: ignore Ctrl-C, which its parent handles, and end when the parent ends."""
    # Ctrl-C goes to all processes of a terminal. The parent handles it and ends its helpers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in _ENDING:
        if callable(signal.getsignal(number)):  # keep ignored signals ignored, such as SIGHUP under nohup
            signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, name=_WAITS_FOR_PARENT, daemon=True).start()
    give_back_large_arrays()


def send_with_arrays(connection: Connection, result: object) -> None:
    """Send a result without copying its arrays.

    Arrays that are pickled together with the result would be in memory twice.
    """
    buffers: list[pickle.PickleBuffer] = []
    rest = pickle.dumps(result, protocol=5, buffer_callback=buffers.append)
    arrays = [buffer.raw() for buffer in buffers]
    connection.send((rest, [array.nbytes for array in arrays]))
    for array in arrays:
        connection.send_bytes(array)


def receive_with_arrays(connection: Connection) -> Any:
    rest, sizes = connection.recv()
    arrays = [bytearray(size) for size in sizes]
    for array in arrays:
        connection.recv_bytes_into(array)
    return pickle.loads(rest, buffers=arrays)  # noqa: S301 (written by a helper process)


def _has_other_threads() -> bool:
    """Return True if there is another thread that may hold a lock.

    The thread that waits for the parent never holds a lock.
    """
    others = set(threading.enumerate()) - {threading.current_thread()}
    return any(thread.name != _WAITS_FOR_PARENT for thread in others)


def signals_later() -> AbstractContextManager[object]:
    """Defer signals with Python handlers until the context ends, because exceptions raised during a fork are lost."""
    return deferred_signals([number for number in (signal.SIGINT, *_ENDING) if callable(signal.getsignal(number))])


def _end_with_parent() -> None:
    """End this process when its parent ends, because a killed parent cannot end its helpers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
