"""Explain the errors of fsspec drivers in one line, without passwords, and refuse redirects into private networks.

Errors are recognized by class name, because drivers may not be installed. They are not always ``OSError``. A redirect
of a web server to an address in a more private network than the server's own is refused. Otherwise, a public server
could make ddpprof send requests to this machine or its network.
"""

from __future__ import annotations

import errno
import math
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any
from urllib.parse import urljoin, urlsplit

from ddpprof.errors import RemoteError, RemoteFileNotFound
from ddpprof.redaction import without_secrets

_WORLD, _NETWORK, _MACHINE = 2, 1, 0


class InwardRedirectError(Exception):
    """A server redirects to a more private network. The message contains the target host."""


async def client_that_stays_out(**options: Any) -> Any:
    """Return an aiohttp session for fsspec that refuses redirects to networks more private than the server's own."""
    import aiohttp

    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(_look_at_redirect)
    return aiohttp.ClientSession(trace_configs=[tracing], **options)


async def _look_at_redirect(_session: Any, _context: Any, answered: Any) -> None:
    """Raise `InwardRedirectError` for a redirect to a network that is more private than the server's own."""
    here = str(answered.url)
    there = urljoin(here, answered.response.headers.get("Location", ""))
    if await _place_of(there) < await _place_of(here):
        raise InwardRedirectError(
            f"the server redirects to {urlsplit(there).hostname}, which is on a more private network than the server "
            "itself"
        )


async def _place_of(url: str) -> int:
    """Return the most private network of the host's addresses, such as `_MACHINE`; `_WORLD` if it has no address."""
    import asyncio  # imported here because it takes megabytes of memory

    host = urlsplit(url).hostname or ""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return _WORLD
    return min((_place(str(address[0])) for *_, address in found), default=_WORLD)


def _place(address: str) -> int:
    known = ip_address(address.partition("%")[0])
    known = getattr(known, "ipv4_mapped", None) or known
    if known.is_loopback or known.is_link_local or known.is_unspecified:
        return _MACHINE
    return _WORLD if known.is_global else _NETWORK


_HINTS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for a public bucket, FSSPEC_S3_ANON=true",
    "gs": "try: gcloud auth application-default login; or set GOOGLE_APPLICATION_CREDENTIALS",
    "abfs": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_CONNECTION_STRING",
    "sftp": "load the key into an ssh agent, keep it as ~/.ssh/id_ed25519, or set FSSPEC_SFTP_KEY_FILENAME",
    "hf": "try: hf auth login; or set HF_TOKEN",
}
_SAME = {"s3a": "s3", "gcs": "gs", "az": "abfs", "abfss": "abfs", "adl": "abfs", "ssh": "sftp"}

_NO_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "DefaultCredentialsError",
    "ProfileNotFound",
    "RefreshError",
    "ClientAuthenticationError",
}
_REFUSED_CREDENTIALS = {"AuthenticationException", "BadAuthenticationType", "PasswordRequiredException"}
_UNREACHABLE = {
    "gaierror",
    "ConnectionRefusedError",
    "ConnectTimeoutError",
    "EndpointConnectionError",
    "ClientConnectorError",
    "ClientConnectorDNSError",
    "ConnectError",
    "NoValidConnectionsError",
    "ServiceRequestError",
}
_LOST = {
    "ClientPayloadError",
    "ServerDisconnectedError",
    "ClientOSError",
    "IncompleteRead",
    "IncompleteReadError",
    "ResponseStreamingError",
    "ConnectionClosedError",
    "ConnectionResetError",
    "BrokenPipeError",
    "RemoteProtocolError",
    "EOFError",
}
_TIMED_OUT = {
    "TimeoutError",
    "FSTimeoutError",
    "ReadTimeoutError",
    "ServerTimeoutError",
    "SocketTimeoutError",
    "TimeoutException",
}

_LONGEST = 200

_NOT_TRIED_AGAIN_S = 30
_unreachable: dict[str, tuple[float, str]] = {}
"""server → time and reason of its last failure; used to fail quickly for further files, because drivers retry for a
long time
"""


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Convert any exception to `RemoteError`.

    If the server was unreachable a short time ago, raise a `RemoteError` immediately.
    """
    server = "/".join(url.split("/", 3)[:3])
    when, text = _unreachable.get(server, (-math.inf, ""))
    if time.monotonic() - when < _NOT_TRIED_AGAIN_S:
        raise RemoteError(errno.EHOSTUNREACH, text, without_secrets(url))
    try:
        yield
    except Exception as error:
        number, text = _explain(error, url)
        if number == errno.EHOSTUNREACH:
            _unreachable[server] = (time.monotonic(), text)
        kind = RemoteFileNotFound if number == errno.ENOENT else RemoteError
        raise kind(number, text, without_secrets(url)) from error


def _explain(error: BaseException, url: str) -> tuple[int, str]:
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    inward = next((one for one in causes if isinstance(one, InwardRedirectError)), None)
    if inward is not None:
        return errno.EACCES, str(inward)
    names = {base.__name__ for one in causes for base in type(one).__mro__}
    said = _said(causes[-1]) or _said(error)
    status = next((code for one in causes if (code := _status(one)) is not None), None)
    is_refused = status in (401, 403)
    asks_for_them = isinstance(error, ValueError) and "credentials" in said  # adlfs
    if asks_for_them or (names & _NO_CREDENTIALS and not is_refused):
        return errno.EACCES, f"no credentials were found ({said}): {_hint(url)}"
    if isinstance(error, FileNotFoundError) and status == 401:  # huggingface_hub
        return errno.EACCES, f"there is no such repository, or it is private: {_hint(url)}"
    is_about_keys = "SSHException" in names and "authentication" in said.lower()
    if names & _REFUSED_CREDENTIALS or status == 401 or is_about_keys:
        return errno.EACCES, f"the server rejected the credentials ({said}): {_hint(url)}"
    if names & _UNREACHABLE:
        return errno.EHOSTUNREACH, f"the server cannot be reached ({said})"
    if names & _TIMED_OUT:
        return errno.ETIMEDOUT, "the server did not answer in time"
    if names & _LOST:
        return errno.ECONNRESET, f"the connection was lost ({said})"
    if status is not None and status not in (403, 404):
        return errno.EIO, f"the server answered {said}"
    if isinstance(error, PermissionError) or status == 403:
        return errno.EACCES, f"permission denied ({said}): {_hint(url)}"
    if isinstance(error, FileNotFoundError) or status == 404:
        return errno.ENOENT, "there is no such file, folder or bucket"
    return errno.EIO, said or type(error).__name__


def _status(error: BaseException) -> int | None:
    """Return the HTTP status in an error, or ``None``."""
    known = [getattr(error, name, None) for name in ("status", "status_code", "code")]  # aiohttp, azure, gcsfs
    known.append(getattr(getattr(error, "response", None), "status_code", None))  # huggingface_hub
    return next((status for status in known if isinstance(status, int)), None)


def _said(error: BaseException) -> str:
    status, message = _status(error), str(getattr(error, "message", None) or "")
    if status is not None and message:  # the texts of aiohttp and azure errors contain too much
        text = f"{status} {message.splitlines()[0]}"
    else:
        text = str(getattr(error, "strerror", None) or error)
    text = " ".join(text.split()).partition(" For more information")[0]
    return without_secrets(text)[:_LONGEST].rstrip(".")


def _hint(url: str) -> str:
    scheme = url.rpartition("::")[2].partition("://")[0]
    return _HINTS.get(_SAME.get(scheme, scheme), "use other credentials")
