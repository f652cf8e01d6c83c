"""Ports for servers that tests start."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path


def unused_port() -> int:
    """Return a port at which nobody listens, and which the system gives to nobody who leaves the choice to it.

    So it is still free when a server, which may first have to import torch, binds it.
    """
    given_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(1024, given_from)
    for port in random.sample(ports, k=min(100, len(ports))):
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no port below {given_from}, from which on the system chooses, is free")
