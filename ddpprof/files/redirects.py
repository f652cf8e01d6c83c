"""Where a web server may send us on to: not further in than it is itself.

A page on the internet that redirects to an address of this machine, or of the network that it is in, would have ddpprof
ask there in the user's name.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any
from urllib.parse import urljoin, urlsplit

_WORLD, _NETWORK, _MACHINE = 2, 1, 0


class InwardRedirectError(Exception):
    """Says where to."""


async def client_that_stays_out(**options: Any) -> Any:
    """Return a session of aiohttp, as fsspec asks for one."""
    import aiohttp

    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(_look_at_redirect)
    return aiohttp.ClientSession(trace_configs=[tracing], **options)


async def _look_at_redirect(_session: Any, _context: Any, answered: Any) -> None:
    """Raises `InwardRedirectError`."""
    here = str(answered.url)
    there = urljoin(here, answered.response.headers.get("Location", ""))
    if await _place_of(there) < await _place_of(here):
        raise InwardRedirectError(
            f"the server redirects to {urlsplit(there).hostname}, which lies further in than itself"
        )


async def _place_of(url: str) -> int:
    """The innermost of the addresses that the host's name has; the world where it has none."""
    import asyncio  # here: it takes megabytes, of every command

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
