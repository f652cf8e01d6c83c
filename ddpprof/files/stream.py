"""A remote file, read forward once in few requests; the next request is already in progress while a block is used.

The first request is small, because many files are opened only for their beginning. At most two blocks are in memory.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ddpprof.files.explain import explained

_FIRST_BYTES = 1 << 18
_BLOCK_BYTES = 1 << 23
"""block size; the latency of a request to an object store equals the time for some megabytes of the response"""
_BUFFER_BYTES = 1 << 20


def open_stream(fs: Any, path: str, url: str) -> io.BufferedReader:
    """Open a remote file. `url` is used in error messages."""
    return io.BufferedReader(_Stream(fs, path, url), _BUFFER_BYTES)


class _Stream(io.RawIOBase):
    def __init__(self, fs: Any, path: str, url: str) -> None:
        self._fs, self._path, self._url = fs, path, url
        self._file = fs.open(path, "rb", block_size=_BLOCK_BYTES, cache_type="none")
        self._may_fetch_ahead = bool(fs.async_impl)  # threads must not share other file systems
        self._position = 0
        """number of bytes received so far"""
        self._given = 0
        self._block = memoryview(b"")
        self._next: Future[bytes] | None = None
        self._fetcher: ThreadPoolExecutor | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._block:
            with explained(self._url):
                self._block = memoryview(self._next_block())
        taken = self._block[: len(buffer)]
        buffer[: len(taken)] = taken
        self._block = self._block[len(taken) :]
        self._given += len(taken)
        return len(taken)

    def tell(self) -> int:
        return self._given

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._fetcher is not None:
                self._fetcher.shutdown(cancel_futures=True)
            with explained(self._url):
                self._file.close()
        finally:
            super().close()

    def _next_block(self) -> bytes:
        if not self._position:
            return self._fetch(_FIRST_BYTES)
        block = self._fetch(_BLOCK_BYTES) if self._next is None else self._next.result()
        self._next = None
        if block and self._may_fetch_ahead:  # a reader that requests a second block will read all
            self._fetcher = self._fetcher or ThreadPoolExecutor(1)
            self._next = self._fetcher.submit(self._fetch, _BLOCK_BYTES)
        return block

    def _fetch(self, num_bytes: int) -> bytes:
        try:
            block = _reader(self._file)(num_bytes)
        except ValueError:
            if not self._position or not self._url.startswith("http"):
                raise
            self._stream_on()
            block = _reader(self._file)(num_bytes)
        self._position += len(block)
        return block

    def _stream_on(self) -> None:
        """Continue with the single response of a web server without ranges, from the current position."""
        self._file.close()
        self._file = self._fs.open(self._path, "rb", block_size=0)
        left = self._position
        while left:
            left -= len(self._file.read(min(left, _BUFFER_BYTES))) or left


def _reader(file: Any) -> Callable[[int], bytes]:
    """Return a read function. paramiko's ``read`` waits for a response every 32 KiB; ``readv`` requests all at once."""
    if not hasattr(file, "readv"):
        return lambda num_bytes: bytes(file.read(num_bytes))

    def read(num_bytes: int) -> bytes:
        position = file.tell()
        length = min(num_bytes, file.stat().st_size - position)
        return b"".join(file.readv([(position, length)])) if length > 0 else b""

    return read
