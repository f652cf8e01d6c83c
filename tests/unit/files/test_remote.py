"""Paths that fsspec reaches: what pathlib's methods say of them, and what goes wrong."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest

from ddpprof.errors import DdpprofError, RemoteError, RemoteFileNotFound
from ddpprof.files import RemotePath, identity, local, location, read_small, spelled
from ddpprof.files.explain import explained
from ddpprof.redaction import without_secrets


@pytest.fixture(autouse=True)
def nothing_failed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpprof.files.explain._unreachable", {})


@pytest.fixture
def remote() -> Iterator[RemotePath]:
    """A folder with two files and a folder in it, in fsspec's memory."""
    files = fsspec.filesystem("memory")
    files.pipe({"/runs/a/run.json": b"{}", "/runs/a/rank-0.json": b"[1]", "/runs/a/attempt-1/run.json": b"{}"})
    yield RemotePath("memory://runs/a")
    files.rm("/runs", recursive=True)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("runs/a", Path("runs/a")),
        ("file:///runs/a", Path("/runs/a")),
        ("memory://runs/a", RemotePath("memory://runs/a")),
        ("MEMORY://Runs/A", RemotePath("memory://Runs/A")),
        ("FILE:///Runs/A", Path("/Runs/A")),
        ("SimpleCache::Memory://Runs/A", RemotePath("simplecache::memory://Runs/A")),
    ],
)
def test_only_text_with_a_scheme_is_elsewhere(text: str, path: Path | RemotePath) -> None:
    assert location(text) == path


@pytest.mark.parametrize("text", ["runs/a", "memory://user:pass@host/runs/a"])
def test_what_is_spelled_makes_the_same_path(text: str) -> None:
    assert location(spelled(location(text))) == location(text)


def test_what_must_be_here_is_refused_elsewhere() -> None:
    assert local("runs/a") == Path("runs/a")
    with pytest.raises(DdpprofError, match="memory://runs/a is not on this machine"):
        local("memory://runs/a")


@pytest.mark.parametrize(
    ("url", "name", "parent", "child"),
    [
        ("s3://bucket/runs/a.json", "a.json", "s3://bucket/runs", "s3://bucket/runs/a.json/x"),
        ("s3://bucket/runs/", "runs", "s3://bucket", "s3://bucket/runs/x"),
        ("s3://bucket", "bucket", "s3://", "s3://bucket/x"),
        ("sftp://me@host:22/runs/a", "a", "sftp://me@host:22/runs", "sftp://me@host:22/runs/a/x"),
        ("https://host/a%20b.json?key=1", "a b.json", "https://host?key=1", "https://host/a%20b.json/x?key=1"),
    ],
)
def test_parts_of_a_url(url: str, name: str, parent: str, child: str) -> None:
    path = RemotePath(url)
    assert (path.name, path.parent.url, (path / "x").url) == (name, parent, child)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sftp://me:secret@host/a", "sftp://me@host/a"),
        ("https://host/a?token=secret", "https://host/a"),
        (
            "cannot open https://me:secret@host/a?x=1, url='https://b/?y'",
            "cannot open https://me@host/a url='https://b/'",
        ),
        ("s3://bucket/a@b:c", "s3://bucket/a@b:c"),
    ],
)
def test_no_password_is_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_a_folder_and_what_is_in_it(remote: RemotePath) -> None:
    assert (remote.is_dir(), remote.is_file(), remote.exists()) == (True, False, True)
    assert sorted(path.name for path in remote.iterdir()) == ["attempt-1", "rank-0.json", "run.json"]
    assert (remote / "run.json").is_file()
    assert (remote / "attempt-1").is_dir()
    assert not (remote / "none").exists()
    assert remote.holds("run.json")
    assert not (remote / "run.json").holds("run.json")
    assert (remote / "rank-0.json").stat().st_size == 3
    assert (remote / "rank-0.json").read_bytes() == b"[1]"


def test_a_file_that_its_folder_calls_too_large_is_not_read(remote: RemotePath) -> None:
    listed = next(path for path in remote.iterdir() if path.name == "rank-0.json")
    assert read_small(listed, 3) == b"[1]"
    with pytest.raises(OSError, match="it is larger than 2e-06 MB"):
        read_small(listed, 2)


def test_what_a_listing_said_goes_with_its_files_to_other_processes(remote: RemotePath) -> None:
    there, absent = (next(iter(remote.iterdir())).parent / name for name in ("run.json", "none"))
    listed = remote / "run.json"
    assert pickle.loads(pickle.dumps(listed)).is_file()
    fsspec.filesystem("memory").rm("/runs/a/run.json")
    assert pickle.loads(pickle.dumps(listed)).is_file()
    assert not there.is_file()
    assert not absent.is_file()


def test_files_are_written(remote: RemotePath, tmp_path: Path) -> None:
    (remote / "new").write_bytes("é".encode())
    assert (remote / "new").read_bytes() == b"\xc3\xa9"
    (tmp_path / "here").write_bytes(b"content")
    (remote / "new").upload(tmp_path / "here")
    assert (remote / "new").read_bytes() == b"content"


@pytest.mark.parametrize("num_bytes", [0, 1, 1 << 18, (1 << 18) + 1, (1 << 18) + (1 << 23), 20_000_001])
def test_a_file_comes_whole_in_pieces_of_any_size(num_bytes: int, remote: RemotePath) -> None:
    content = bytes(range(251)) * (num_bytes // 251 + 1)
    (remote / "large").write_bytes(content[:num_bytes])
    with (remote / "large").open() as file:
        assert file.peek(4)[:4] == content[: min(num_bytes, 4)]
        read = bytearray()
        while chunk := file.read(1_000_003):
            read += chunk
            assert file.tell() == len(read)
    assert read == content[:num_bytes]


def test_identity_changes_with_the_file(remote: RemotePath, tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert identity(file) is None
    file.write_bytes(b"1")
    before = identity(file)
    assert identity(file) == before
    file.write_bytes(b"22")
    assert identity(file) != before
    assert identity(RemotePath("memory://runs/a/none")) is None
    assert identity(RemotePath("memory://runs/a/run.json")) != identity(RemotePath("memory://runs/a/run.json"))


@pytest.mark.parametrize("key", ["ETag", "blob_id", "mtime"])
def test_a_file_is_the_same_as_long_as_its_store_says_so(key: str) -> None:
    one, same, other = (RemotePath("hf://datasets/a/b/c.json", {"size": 3, key: value}) for value in (7, 7, 8))
    assert identity(one) == identity(same) != identity(other)


class NoCredentialsError(Exception):
    """As botocore's is named."""


class ClientPayloadError(Exception):
    """As aiohttp's is named."""


class ConnectError(Exception):
    """As httpx's is named, which huggingface_hub asks with."""


class HfHubHTTPError(Exception):
    """As huggingface_hub's is made."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(status_code, message)
        self.response = SimpleNamespace(status_code=status_code)

    def __str__(self) -> str:
        return str(self.args[1])


def unknown_to_the_hub() -> FileNotFoundError:
    """As huggingface_hub's file system raises it, when nobody is logged in."""
    error = FileNotFoundError("datasets/a/b (repository not found)")
    error.__cause__ = HfHubHTTPError(401, "Unauthorized")
    return error


class HttpResponseError(Exception):
    """As azure's is made."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(status_code, message)
        self.status_code, self.message = status_code, message


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("Must provide either a connection_string or account_name with credentials!!"), "no credentials"),
        (HttpResponseError(403, "No\nRequestId:1\nContent: <?xml"), "permission denied (403 No): "),
        (HttpResponseError(404, "No.\nContent: <?xml"), "there is no such file, folder or bucket"),
        (
            HfHubHTTPError(401, "Not you. For more information check: x"),
            "the server rejected the credentials (Not you):",
        ),
        (unknown_to_the_hub(), "there is no such repository, or it is private: "),
        (ConnectError("[Errno 111] Connection refused"), "the server cannot be reached ([Errno 111] Connection"),
        (NoCredentialsError("Unable to locate credentials"), "no credentials were found (Unable to locate"),
        (PermissionError("Access Denied"), "permission denied (Access Denied)"),
        (ConnectionRefusedError(111, "Connection refused"), "the server cannot be reached (Connection refused)"),
        (ClientPayloadError("not enough data"), "the connection was lost (not enough data)"),
        (TimeoutError(), "the server did not answer in time"),
        (RuntimeError("two\nlines"), "two lines"),
        (RuntimeError(), "RuntimeError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_of_drivers_are_one_line(error: Exception, said: str) -> None:
    with pytest.raises(RemoteError) as told, explained("s3://bucket/run"):
        raise error
    assert str(told.value).startswith(f"s3://bucket/run: {said}")
    assert "\n" not in str(told.value)
    again = pickle.loads(pickle.dumps(told.value))
    assert (type(again), str(again)) == (type(told.value), str(told.value))


def test_a_server_that_was_just_not_there_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver would try for seconds, for each file."""
    tried = []

    def driver(url: str, error: Exception) -> None:
        tried.append(url)
        raise error

    def ask(url: str, error: Exception) -> str:
        with pytest.raises(RemoteError) as told, explained(url):
            driver(url, error)
        return str(told.value)

    gone, lost = ConnectionRefusedError(111, "Connection refused"), ClientPayloadError("not enough data")
    ask("s3://one/run/0", FileNotFoundError())
    ask("s3://one/run/1", lost)
    assert "cannot be reached" in ask("s3://one/run/2", gone)
    assert ask("s3://one/run/3", gone) == "s3://one/run/3: the server cannot be reached (Connection refused)"
    ask("s3://other/run/0", gone)
    assert tried == ["s3://one/run/0", "s3://one/run/1", "s3://one/run/2", "s3://other/run/0"]
    monkeypatch.setattr("ddpprof.files.explain._NOT_TRIED_AGAIN_S", 0)
    ask("s3://one/run/3", FileNotFoundError())
    assert tried[-1] == "s3://one/run/3"


def test_what_hides_behind_not_found_is_told() -> None:
    """fsspec's web driver says of whatever fails that there is no such file."""
    with pytest.raises(RemoteFileNotFound), explained("https://host/a"):
        raise FileNotFoundError("https://host/a")
    with pytest.raises(RemoteError, match="cannot be reached") as told, explained("https://host/a"):
        raise FileNotFoundError("https://host/a") from ConnectionRefusedError(111, "Connection refused")
    assert not isinstance(told.value, FileNotFoundError)
