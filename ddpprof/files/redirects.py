"""Where may a web server redirect requests? To addresses that are no further inside the network than the server itself.

Otherwise, a page on the internet could redirect to this machine or its network, and make ddpprof send requests there on
the user's behalf.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any
from urllib.parse import urljoin, urlsplit

_WORLD, _NETWORK, _MACHINE = 2, 1, 0


class InwardRedirectError(Exception):
    """A redirect leads further into the network; the message says where."""


async def client_that_stays_out(**options: Any) -> Any:
    """Return an aiohttp session for fsspec."""
    import aiohttp

    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(_look_at_redirect)
    return aiohttp.ClientSession(trace_configs=[tracing], **options)


async def _look_at_redirect(_session: Any, _context: Any, answered: Any) -> None:
    """Raise `InwardRedirectError` for an inward redirect."""
    here = str(answered.url)
    there = urljoin(here, answered.response.headers.get("Location", ""))
    if await _place_of(there) < await _place_of(here):
        raise InwardRedirectError(
            f"the server redirects to {urlsplit(there).hostname}, which is on a more private network than the server "
            "itself"
        )


async def _place_of(url: str) -> int:
    """Return the innermost place among the host's addresses; "world" if it has none."""
    import asyncio  # imported here because it takes megabytes

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
