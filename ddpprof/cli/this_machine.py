"""Restrict servers on the loopback interface to requests that are addressed to this machine (DNS rebinding).

A web page can make its own host name resolve to 127.0.0.1, so that its scripts could read the server's responses. The
browser still sends that host name in the ``Host`` header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit


def for_this_machine(application: Any) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    """Return a WSGI application that answers requests for other hosts with status 403."""

    def checked(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if names_this_machine(environ.get("HTTP_HOST", "")):
            answer: Iterable[bytes] = application(environ, start_response)
            return answer
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"This server answers requests for localhost only.\n"]

    return checked


def names_this_machine(host: str) -> bool:
    """Return True if a ``Host`` header is ``localhost``, an IP address or, as from some programs, empty."""
    if not host:
        return True
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or bool(ip_address(name))
    except ValueError:
        return False
