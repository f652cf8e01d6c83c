"""Which network interfaces would gloo and NCCL use, and do they work?

Gloo uses GLOO_SOCKET_IFNAME, or else the interface with this host's own address. NCCL uses the interfaces that
NCCL_SOCKET_IFNAME allows, or else the first that is up and is neither loopback nor Docker's, InfiniBand first.
"""

from __future__ import annotations

import array
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ddpprof.doctor.check import CheckResult, Context, judge

_SIOCGIFADDR = 0x8915
_INTERFACES = Path("/sys/class/net")


def check_gloo_interface(_context: Context) -> Iterator[CheckResult]:
    asked = os.environ.get("GLOO_SOCKET_IFNAME")
    if asked is not None:
        yield _judge_asked("gloo-interface", "GLOO_SOCKET_IFNAME", asked.split(","))
        return
    found = _of_host_name()
    yield judge(
        "gloo-interface",
        found is not None,
        "this host's name resolves to one of its interfaces",
        {None: "no interface", "lo": "lo, for ranks on this host only"}.get(found) or _shown(found or ""),
        "Ranks on different hosts would not find each other. Set GLOO_SOCKET_IFNAME to the interface to use, one of: "
        f"{', '.join(_up())}.",
    )


def check_nccl_interface(_context: Context) -> Iterator[CheckResult]:
    asked = os.environ.get("NCCL_SOCKET_IFNAME")
    usable = [name for name in _up() if not name.startswith(("lo", "docker"))]
    if asked is not None:
        yield _judge_asked("nccl-interface", "NCCL_SOCKET_IFNAME", _of_pattern(asked))
        return
    usable.sort(key=lambda name: not name.startswith("ib"))
    found = usable or [name for name in _up() if name.startswith(("docker", "lo"))]
    yield judge(
        "nccl-interface",
        bool(found),
        "an interface that is up",
        ", ".join(map(_shown, found[:1])) or "none",
        "NCCL would find no interface. Set NCCL_SOCKET_IFNAME to the interface to use.",
    )


def _of_pattern(asked: str) -> list[str]:
    """Return the matching interfaces.

    NCCL takes prefixes, or whole names after ``=``; a leading ``^`` excludes them.
    """
    avoids, rest = asked.startswith("^"), asked.removeprefix("^")
    are_whole, words = rest.startswith("="), rest.removeprefix("=").split(",")
    if are_whole and not avoids:
        return words

    def is_named(name: str) -> bool:
        return name in words if are_whole else name.startswith(tuple(words))

    return [name for name in _up() if is_named(name) != avoids] or [asked]


def _judge_asked(name: str, variable: str, interfaces: Sequence[str]) -> CheckResult:
    down = [one for one in interfaces if one not in _up()]
    return judge(
        name,
        not down,
        f"{variable}'s interface is up",
        f"{', '.join(down)}: down or missing" if down else ", ".join(map(_shown, interfaces[:2])),
        f"Set {variable} to an interface that is up: {', '.join(_up())}.",
    )


def _up() -> list[str]:
    found = []
    for name in sorted(path.name for path in _INTERFACES.iterdir()) if _INTERFACES.is_dir() else []:
        with suppress(OSError, ValueError):
            if int((_INTERFACES / name / "flags").read_text(encoding="ascii"), 16) & 1:
                found.append(name)
    return found


def _shown(name: str) -> str:
    speed = ""
    with suppress(OSError, ValueError):
        mbit = int((_INTERFACES / name / "speed").read_text(encoding="ascii"))
        speed = f" ({mbit} Mbit/s)" if mbit > 0 else ""
    return f"{name}{speed}"


def _of_host_name() -> str | None:
    """Return the interface that has the address of this host's name."""
    addresses = set()
    with suppress(OSError):
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)}
    if any(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        return "lo"
    return next((name for name in _up() if addresses & _addresses(name)), None)


def _addresses(interface: str) -> set[str]:
    found = set()
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = array.array("B", struct.pack("256s", interface.encode()[:15]))
        fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
        found.add(socket.inet_ntoa(request.tobytes()[20:24]))
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, *_, name = line.split()
            if name == interface:
                found.add(str(ipaddress.ip_address(bytes.fromhex(digits))))
    return found
