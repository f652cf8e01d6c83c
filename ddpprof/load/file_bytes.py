"""A file's bytes, as stored or decompressed.

They may be gzip or zstd, whatever the file's name, and are decompressed only up to a limit. Files are only read
forwards, because they may be remote.

A helper process may read files for another one. It ends together with its parent.
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
    """Limits of one trace file. The defaults are several times what traces of the longest recordings reach."""

    inflated_bytes: int = 64 * 10**9
    """size of its JSON; 10 GB is a lot for a rank"""
    events: int = 500_000_000
    inflation: int = 300
    """ratio of JSON to file size, beyond the first GB: traces reach 50, a gzip bomb 1000"""
    whole_bytes: int = 2 * 10**9
    """size of its JSON if the layout does not allow batches: memory then holds several times as much"""
    keys_bytes: int = 256 * 10**6
    """size of the text before and after the events, which is read in one piece"""
    files: int = 20_000
    """number of files in one folder that may be traces; each is opened to determine its rank"""

    @classmethod
    def chosen(cls, trace_gb: float | None, events: int | None, files: int | None = None) -> Limits:
        """Return the limits with the user's values.

        A user who gives a trace's size knows the trace: any compression is allowed.
        """
        limits = cls()
        if trace_gb is not None:
            limits = replace(limits, inflated_bytes=round(trace_gb * 10**9), inflation=_ANY)
        given = {name: value for name, value in (("events", events), ("files", files)) if value is not None}
        return replace(limits, **given)


_ANY = 1 << 62


DEFAULT_LIMITS = Limits()

MAX_TRACE_OPTION, MAX_EVENTS_OPTION, MAX_FILES_OPTION = "--max-trace-gb", "--max-events", "--max-files"
"""command-line options named in errors"""


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 2 << 20
"""more than a batch needs at a time: a separate mapping for each batch would have to be zeroed each time"""
_TRIM_BYTES = 4 << 20


def give_back_large_arrays() -> None:
    """Return large arrays to the system when they are freed. Otherwise, glibc soon keeps their memory for reuse.

    The setting applies to the whole process, so a library must not choose it. Without glibc, this does nothing.
    """
    with suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def give_back_holes() -> None:
    """Return free memory between thousands of small arrays on the heap to the system. Without glibc, do nothing."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


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


_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_WAITS_FOR_PARENT = "ddpprof-waits-for-parent"


def start_context() -> ForkContext | SpawnContext:
    """Return how to start helpers.

    A fork starts at once and shares unchanged memory, but may hang in a threaded process.
    """
    may_hang = _has_other_threads() or "torch" in sys.modules
    if sys.platform == "linux" and not may_hang:
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("spawn")


def begin_reading_process() -> None:
    """Prepare this process, which reads for its parent: leave Ctrl-C to the parent, and end with the parent."""
    # Ctrl-C goes to all processes of a terminal: the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in _ENDING:
        if callable(signal.getsignal(number)):  # an ignored signal stays ignored, such as SIGHUP under nohup
            signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, name=_WAITS_FOR_PARENT, daemon=True).start()
    give_back_large_arrays()


def send_with_arrays(connection: Connection, result: object) -> None:
    """Send a result without copying its arrays; pickled with the rest, they would all be in memory twice."""
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
    return pickle.loads(rest, buffers=arrays)  # noqa: S301 (a process of ours wrote it)


def _has_other_threads() -> bool:
    """Return True if other threads run that may hold a lock; the one that waits for the parent holds none."""
    others = set(threading.enumerate()) - {threading.current_thread()}
    return any(thread.name != _WAITS_FOR_PARENT for thread in others)


def signals_later() -> AbstractContextManager[object]:
    """Defer signals whose handlers may raise until the context ends: an exception within a fork would be lost."""
    return deferred_signals([number for number in (signal.SIGINT, *_ENDING) if callable(signal.getsignal(number))])


def _end_with_parent() -> None:
    """End this process when its parent ends; a parent that is killed cannot end it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
