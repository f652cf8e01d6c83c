"""Remote files and folders supported by fsspec (``s3://``, ``gs://``, ``sftp://``, ``https://``, …).

`RemotePath` has the methods of ``pathlib.Path``. Every error is a `RemoteError`, regardless of the driver. Each query
about a file is a request, so a path caches the facts about the file, including facts from the listing of its folder. A
remote file is read sequentially, in large blocks. The next block is requested while the current block is used. The
first block is small, because often only the start of a file is needed. At most two blocks are in memory.
"""

from __future__ import annotations

import errno
import io
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from ddpprof.errors import DdpprofError, RemoteError, RemoteFileNotFound
from ddpprof.files.explain import client_that_stays_out, explained
from ddpprof.redaction import without_secrets

_WEB = ("http://", "https://")
_VERSIONS = (
    "ETag",
    "etag",
    "md5Hash",
    "content_md5",
    "Content-MD5",
    "blob_id",
    "mtime",
    "LastModified",
    "Last-Modified",
    "last_modified",
    "updated",
)
"""names of file attributes that change if the file changes, most reliable attribute first"""
_OF_A_PAGE = "text/html"
_TALKATIVE = ("paramiko", "gcsfs", "azure")
"""names of loggers that print a traceback for every error"""
_WRITTEN_AT_ONCE_BYTES = 1 << 20


def driver_of(url: str) -> None:
    """Raise `DdpprofError` if no driver for the URL is installed."""
    import fsspec

    for part in url.split("::"):  # simplecache::s3://…
        scheme = part.partition("://")[0]
        try:
            fsspec.get_filesystem_class(scheme)
        except ImportError as error:
            package = getattr(error.__cause__, "name", None) or f"fsspec[{scheme}]"
            raise DdpprofError(f"{scheme}:// needs {package}. Install it with: pip install {package}") from error
        except ValueError as error:
            raise DdpprofError(
                f"fsspec does not support {scheme}://. It supports s3://, gs://, abfs://, sftp://, https://, "
                "hf:// and others"
            ) from error


class _Stat(NamedTuple):
    st_size: int


class RemotePath:
    """A remote path. Pickling keeps its URL and the known facts about the file, but not the listing."""

    def __init__(self, url: str, info: dict[str, Any] | None = None) -> None:
        self.url = url
        """URL, including any password; ``str`` returns it without the password"""
        self._info = info
        self._listing: dict[str, dict[str, Any]] | None = None
        self._system: Any = None
        """cached file system object, if threads may share it; creating such an object may take 0.1 s"""

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePath, (self.url, self._info)

    def __str__(self) -> str:
        return without_secrets(self.url)

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __lt__(self, other: RemotePath) -> bool:
        return self.url < other.url

    def __truediv__(self, name: str) -> RemotePath:
        before, path, after = self._parts()
        url = f"{before}{path.rstrip('/')}/{name}{after}"
        return self._near(url, None if self._listing is None else self._listing.get(name, _NOT_THERE))

    @property
    def name(self) -> str:
        last = PurePosixPath(self._parts()[1]).name
        if not self._is_of_web:
            return last
        from urllib.parse import unquote

        return unquote(last)

    @property
    def parts(self) -> tuple[str, ...]:
        before, path, _ = self._parts()
        return (before, *path.strip("/").split("/"))

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> RemotePath:
        before, path, after = self._parts()
        return self._near(f"{before}{path.rstrip('/').rpartition('/')[0]}{after}")

    def with_name(self, name: str) -> RemotePath:
        return self.parent / name

    def resolve(self) -> RemotePath:
        return self

    def exists(self) -> bool:
        return self._kind() is not None

    def is_file(self) -> bool:
        return self._kind() == "file"

    def is_dir(self) -> bool:
        return self._kind() == "directory"

    def holds(self, name: str) -> bool:
        """Return True if this is a folder that contains `name`. The listing is cached."""
        return self.is_dir() and any(path.name == name for path in self.iterdir())

    def stat(self) -> _Stat:
        size = self._known().get("size")
        if not isinstance(size, int):
            raise RemoteError(errno.ENOTSUP, "the server does not report its size", str(self))
        return _Stat(size)

    def told_size(self) -> int | None:
        """Return the size if it is already known, without sending a request."""
        size = (self._info or _NOT_THERE).get("size")
        return size if isinstance(size, int) else None

    def version(self) -> str | None:
        """Return a string that changes when the file changes, or ``None`` if the store provides none."""
        known = self._known()
        if not any(known.get(key) for key in _VERSIONS) and self._is_of_web:  # a listing contains only names
            known = self._info = self._ask()
        key = next((key for key in _VERSIONS if known.get(key)), None)
        return None if key is None else f"{known.get('size')}-{known[key]}"

    def iterdir(self) -> Iterator[RemotePath]:
        if self._listing is None:
            with explained(self.url):
                fs, path = self._reached()
                listed = fs.ls(path, detail=True)
            self._listing = {name: info for info in listed if (name := self._name_in_here(path, str(info["name"])))}
        return iter([self / name for name in self._listing])

    def open(self, mode: str = "rb") -> io.BufferedReader:
        assert mode == "rb", (
            "files can be opened only for reading in binary mode: decode text after reading; write a file as a whole"
        )
        with explained(self.url):
            fs, path = self._reached()
            return open_stream(fs, path, self.url)

    def read_bytes(self) -> bytes:
        with explained(self.url):
            fs, path = self._reached()
            return bytes(fs.cat_file(path))

    def write_bytes(self, content: bytes) -> None:
        """Write the whole file. If the store supports it, readers see either the old or the new content."""
        self._write(lambda fs, path: fs.pipe_file(path, content), io.BytesIO(content))

    def upload(self, source: Path) -> None:
        """Upload the content of a local file."""
        with source.open("rb") as content:
            self._write(lambda fs, path: fs.put_file(str(source), path), content)

    def _write(self, put: Callable[[Any, str], None], content: IO[bytes]) -> None:
        """Write a file. `put` is used for stores that accept only whole files."""
        import shutil

        with explained(self.url):
            fs, path = self._reached()
            if fs.async_impl:
                put(fs, path)
                return
            with fs.open(path, "wb") as file:
                if hasattr(file, "set_pipelined"):
                    file.set_pipelined(True)  # otherwise, paramiko waits for a response every 32 KiB
                shutil.copyfileobj(content, file, _WRITTEN_AT_ONCE_BYTES)

    @property
    def _is_of_web(self) -> bool:
        return self.url.rpartition("::")[2].startswith(_WEB)

    def _parts(self) -> tuple[str, str, str]:
        """Return the part of the URL before the path, the path, and the query."""
        if self._is_of_web:
            from urllib.parse import urlsplit, urlunsplit

            parts = urlsplit(self.url)
            return f"{parts.scheme}://{parts.netloc}", parts.path, urlunsplit(("", "", "", parts.query, ""))
        scheme, separator, path = self.url.rpartition("://")
        return f"{scheme}{separator}", path, ""

    def _near(self, url: str, info: dict[str, Any] | None = None) -> RemotePath:
        path = RemotePath(url, info)
        path._system = self._system
        return path

    def _reached(self) -> tuple[Any, str]:
        """Return the file system, and the path in it."""
        if self._system is not None:
            return self._system, self._system._strip_protocol(self.url)  # noqa: SLF001 (as in fsspec)
        from fsspec.core import url_to_fs

        for driver in _TALKATIVE:
            logging.getLogger(driver).setLevel(logging.CRITICAL)
        options = {"get_client": client_that_stays_out} if self.url.startswith(_WEB) and "::" not in self.url else {}
        fs, path = url_to_fs(self.url, **options)
        if fs.async_impl and "::" not in self.url:
            self._system = fs
        return fs, path

    def _kind(self) -> str | None:
        """Return "file" or "directory", or ``None`` if the path does not exist."""
        try:
            known = self._known()
        except FileNotFoundError:
            return None
        if self._is_of_web and (known.get("mimetype") == _OF_A_PAGE or self._parts()[1].endswith("/")):
            return "directory"
        return "directory" if known.get("type") == "directory" else "file"

    def _known(self) -> dict[str, Any]:
        """Return the known facts about the file.

        Raises ``FileNotFoundError``, or another ``OSError`` if they cannot be determined.
        """
        if self._info is None:
            try:
                self._info = self._ask()
            except FileNotFoundError:
                self._info = _NOT_THERE
        if not self._info:
            raise RemoteFileNotFound(errno.ENOENT, "there is no such file, folder or bucket", str(self))
        return self._info

    def _ask(self) -> dict[str, Any]:
        with explained(self.url):
            fs, path = self._reached()
            return dict(fs.info(path))

    def _name_in_here(self, folder: str, name: str) -> str | None:
        """Return the name of an entry, or ``None`` if it is not in this folder.

        Web pages also link to other places, and stores may list the key of the folder itself as a file.
        """
        if self._is_of_web:
            folder = "".join(self._parts()[:2])
        name, folder = name.strip("/"), folder.strip("/")
        last = name.removeprefix(f"{folder}/")
        return last if last != name and not any(mark in last for mark in self._other_places) else None

    @property
    def _other_places(self) -> str:
        return "/?#" if self._is_of_web else "/"


_NOT_THERE: dict[str, Any] = {}
"""value that stands for the attributes of a file that is not in the listing of its folder"""


_FIRST_BYTES = 1 << 18
_BLOCK_BYTES = 1 << 23
"""number of bytes per request; it is large, because the latency of a request equals the time to transfer some
megabytes
"""
_BUFFER_BYTES = 1 << 20


def open_stream(fs: Any, path: str, url: str) -> io.BufferedReader:
    """Open a remote file for reading. `url` is used in error messages."""
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
        if block and self._may_fetch_ahead:  # a reader that needs a second block usually reads the whole file
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
        """Continue from the current position without range requests, because the web server does not support them."""
        self._file.close()
        self._file = self._fs.open(self._path, "rb", block_size=0)
        left = self._position
        while left:
            left -= len(self._file.read(min(left, _BUFFER_BYTES))) or left


def _reader(file: Any) -> Callable[[int], bytes]:
    """Return a read function. With paramiko, it uses ``readv``, because ``read`` waits for a response every 32 KiB."""
    if not hasattr(file, "readv"):
        return lambda num_bytes: bytes(file.read(num_bytes))

    def read(num_bytes: int) -> bytes:
        position = file.tell()
        length = min(num_bytes, file.stat().st_size - position)
        return b"".join(file.readv([(position, length)])) if length > 0 else b""

    return read
