"""Read from the kernel which network and PCIe links this machine has, and which links this process uses.

Facts that cannot be read are left out, because a container may hide parts of ``/sys`` and ``/proc``.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import re
import socket
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from ddpprof.model.links import LOOPBACK, Connection, InfinibandPort, Interface, LinkFacts, PcieLink, Traffic

_SETTINGS = (
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_NET"),
    *("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_ALGO", "NCCL_PROTO"),
)
_MOST_FILES = 4096
"""maximum number of the process's open files that are examined"""
_MOST_DEVICES = 16
_ESTABLISHED = "01"
_MBIT, _GBIT = 10**6, 10**9
_NOT_TOLD = (OSError, ValueError, IndexError)


def link_facts(backend: str | None, root: Path = Path("/")) -> LinkFacts:
    """Return facts about the links of this machine and about the links that this process uses.

    `backend`: backend of the process group; GPUs are described only for NCCL. `root`: folder that contains ``proc`` and
    ``sys``.
    """
    sys_class = root / "sys" / "class"
    opened = list(_open_files(root / "proc" / "self" / "fd").values())
    addresses = _own_addresses(root)
    used = _interfaces_in_use(root, opened, addresses)
    pcie, no_access = _accelerators(root) if backend == "nccl" else ((), ())
    return LinkFacts(
        interface=used[0] if used else None,
        others_used=tuple(used[1:]),
        interfaces=tuple(_interfaces(sys_class / "net", set(addresses.values()))),
        infiniband=tuple(_infiniband_ports(sys_class / "infiniband")),
        opened_infiniband=any(target.startswith("/dev/infiniband/uverbs") for target in opened),
        pcie=pcie,
        no_peer_access=no_access,
        settings={name: os.environ[name] for name in _SETTINGS if name in os.environ},
    )


def carried_bytes(interface: str, root: Path = Path("/")) -> tuple[int, int] | None:
    """Return how many bytes the interface has sent and received so far; ``None`` if the kernel does not report this."""
    with suppress(*_NOT_TOLD):
        counters = root / "sys" / "class" / "net" / interface / "statistics"
        return int(_text(counters / "tx_bytes")), int(_text(counters / "rx_bytes"))
    return None


class TrafficCounter:
    """Counts the bytes that an interface carries, and those that this process sends to other machines, since a step."""

    def __init__(self, interface: str, first_step: int) -> None:
        self._interface, self._first_step = interface, first_step
        self._began, self._sent = carried_bytes(interface), SentData()

    def until(self, step: int) -> Traffic | None:
        """Return the traffic until the beginning of `step`; ``None`` if the kernel does not report it."""
        carried = carried_bytes(self._interface)
        if self._began is None or carried is None:
            return None
        sent, received = (now - then for now, then in zip(carried, self._began, strict=True))
        return Traffic(self._interface, step - self._first_step, sent, received, tuple(self._sent.so_far()))


class SentData:
    """What this process sends to other machines over the TCP connections that are open now."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._folder = root / "proc" / "self" / "fd"
        opened, own = _open_files(self._folder), _own_addresses(root)
        ends = {inode: (local, peer) for inode, local, peer in _connections(root, opened.values()) if peer not in own}
        self._connections = [
            (file, target, *ends[_inode(target)]) for file, target in opened.items() if _inode(target) in ends
        ]
        self._began = {file: _sent(int(file)) for file, *_ in self._connections}
        self._latest = dict(self._began)

    def so_far(self) -> Iterator[Connection]:
        """Yield what was sent since this object was created. Closed connections keep their last values."""
        for file, target, local, peer in self._connections:
            with suppress(OSError):
                if str((self._folder / file).readlink()) == target:
                    self._latest[file] = _sent(int(file)) or self._latest[file]
            began, latest = self._began[file], self._latest[file]
            if began is not None and latest is not None and latest[0] - began[0] >= _MUCH_BYTES:
                yield Connection(local, peer, *(now - then for now, then in zip(latest, began, strict=True)))


_MUCH_BYTES = 1 << 20
_TCP_INFO_BYTES = 192
_ACKED_AT, _BUSY_AT = 120, 168
"""offsets in Linux's ``struct tcp_info``: ``tcpi_bytes_acked``; ``tcpi_busy_time`` and ``tcpi_rwnd_limited``"""


def _sent(file: int) -> tuple[int, int, int] | None:
    """Return the bytes and times of a `Connection` since it was opened.

    Returns ``None`` if the file is not a TCP connection, or if the kernel is older than Linux 4.10. ``socket.socket``
    is not used, because it may make the connection non-blocking.
    """
    info, length = ctypes.create_string_buffer(_TCP_INFO_BYTES), ctypes.c_uint(_TCP_INFO_BYTES)
    libc = ctypes.CDLL(None)
    failed = libc.getsockopt(file, socket.IPPROTO_TCP, socket.TCP_INFO, info, ctypes.byref(length))
    if failed or length.value < _TCP_INFO_BYTES:
        return None
    busy_us, limited_us = struct.unpack_from("=QQ", info, _BUSY_AT)
    return struct.unpack_from("=Q", info, _ACKED_AT)[0], 1000 * busy_us, 1000 * limited_us


def _open_files(folder: Path) -> dict[str, str]:
    """Return the target of each of the process's open files."""
    found = {}
    with suppress(OSError):
        for name in os.listdir(folder)[:_MOST_FILES]:
            with suppress(OSError):  # the file has just been closed
                found[name] = str((folder / name).readlink())
    return found


def _own_addresses(root: Path) -> dict[str, str]:
    """Map each IP address of this machine to the name of its interface."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                found[_ipv4_of(name)] = name
    with suppress(*_NOT_TOLD):
        for line in (root / "proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, *_, name = line.split()
            found[str(ipaddress.IPv6Address(int(digits, 16)))] = name
    return found


def _ipv4_of(interface: str) -> str:
    """Return the interface's IPv4 address. Raises ``OSError`` if it has none, or if the system is not Linux."""
    import fcntl

    siocgifaddr = 0x8915
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked, siocgifaddr, struct.pack("256s", interface.encode()[:15]))
    return socket.inet_ntoa(answer[20:24])


def _interfaces_in_use(root: Path, opened: list[str], addresses: dict[str, str]) -> list[str]:
    """Return the interfaces of this process's connections to other machines, sorted by number of connections.

    If all connections are local, return the loopback interface. A connection between two addresses of this machine is
    local, even if the addresses belong to a network interface.
    """
    used = Counter(
        LOOPBACK if remote in addresses or ipaddress.ip_address(remote).is_loopback else addresses.get(local, "")
        for _, local, remote in _connections(root, opened)
    )
    outside = [name for name, _ in used.most_common() if name not in ("", LOOPBACK)]
    return outside or ([LOOPBACK] if used[LOOPBACK] else [])


def _connections(root: Path, opened: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the inode, the local and the remote address of each established TCP connection among the open files."""
    inodes = {_inode(target) for target in opened}
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (root / "proc/self/net" / table).read_text(encoding="ascii").splitlines()[1:]:
                with suppress(*_NOT_TOLD):
                    _, local, remote, state, *rest = line.split()
                    if state == _ESTABLISHED and rest[5] in inodes:
                        yield rest[5], _address(local), _address(remote)


def _inode(target: str) -> str:
    """Return the inode of an open socket, such as 4711 for ``socket:[4711]``; empty for other files."""
    return target[8:-1] if target.startswith("socket:[") else ""


def _address(written: str) -> str:
    """Parse an address from ``/proc/net/tcp``: hexadecimal 4-byte words in the machine's byte order, and a port."""
    digits = written.partition(":")[0]
    words = [struct.pack("=I", int(digits[at : at + 8], 16)) for at in range(0, len(digits), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _interfaces(folder: Path, with_address: set[str]) -> Iterator[Interface]:
    with suppress(OSError):
        for name in sorted(os.listdir(folder)):
            if name != LOOPBACK and _text(folder / name / "operstate") in ("up", "unknown"):
                is_hardware = _is_hardware(folder / name)
                speed = _speed(folder / name) if is_hardware else None
                yield Interface(name, speed, is_hardware, name in with_address)


def _is_hardware(interface: Path) -> bool:
    """Return True if the interface is a physical device, or a bond, VLAN or bridge of such devices.

    Virtual interfaces, such as those in containers, always report a speed of 10 Gbit/s.
    """
    if (interface / "device").exists():
        return True
    with suppress(OSError):
        lower = [name for name in os.listdir(interface) if name.startswith("lower_")]
        return bool(lower) and all((interface / name / "device").exists() for name in lower)
    return False


def _speed(interface: Path) -> int | None:
    """Return the speed in bit/s; ``None`` if the driver does not report it, for example in virtual machines."""
    with suppress(*_NOT_TOLD):
        mbit = int(_text(interface / "speed"))
        return mbit * _MBIT if 0 < mbit < 2**31 - 1 else None  # 2³² - 1 and -1 stand for unknown
    return None


def _infiniband_ports(folder: Path) -> Iterator[InfinibandPort]:
    """Yield the active ports. The files of a port contain, for example, ``4: ACTIVE`` and ``200 Gb/sec (4X HDR)``."""
    with suppress(OSError):
        for port in sorted(folder.glob("*/ports/*")):
            rate = re.match(r"([\d.]+)\s*Gb/sec", _text(port / "rate"))
            if _text(port / "state").endswith("ACTIVE") and rate is not None:
                name = f"{port.parent.parent.name}:{port.name}"
                is_infiniband = _text(port / "link_layer") == "InfiniBand"
                yield InfinibandPort(name, round(float(rate[1]) * _GBIT), is_infiniband)


def _accelerators(root: Path) -> tuple[tuple[PcieLink, ...], tuple[tuple[int, int], ...]]:
    """Return the PCIe links of all visible GPUs, and the pairs of GPUs without peer access."""
    with suppress(RuntimeError, AttributeError, AssertionError):  # no GPU, a failed GPU, or an older torch
        if torch.cuda.is_initialized():  # otherwise these calls would initialize CUDA
            devices = range(min(torch.cuda.device_count(), _MOST_DEVICES))
            links = (_pcie_link(root, device) for device in devices)
            pairs = ((one, other) for one, other in combinations(devices, 2) if not _have_access(one, other))
            return tuple(link for link in links if link is not None), tuple(pairs)
    return (), ()


def _have_access(one: int, other: int) -> bool:
    return bool(torch.cuda.can_device_access_peer(one, other) and torch.cuda.can_device_access_peer(other, one))


def _pcie_link(root: Path, device: int) -> PcieLink | None:
    properties: Any = torch.cuda.get_device_properties(device)
    ids: list[int] = [getattr(properties, f"pci_{name}_id", -1) for name in ("domain", "bus", "device")]
    if min(ids) < 0:
        return None  # an older torch
    address = "{:04x}:{:02x}:{:02x}.0".format(*ids)
    link = root / "sys/bus/pci/devices" / address
    speeds = [_leading_number(link / f"{which}_link_speed") for which in ("current", "max")]
    widths = [_leading_number(link / f"{which}_link_width") for which in ("current", "max")]
    now, most = (None if width is None else int(width) for width in widths)
    return PcieLink(device, address, speeds[0], now, speeds[1], most)


def _leading_number(path: Path) -> float | None:
    """Return the number at the beginning of a file's content, for example 16.0 for ``16.0 GT/s PCIe``."""
    found = re.match(r"\d+(\.\d+)?", _text(path))
    return None if found is None else float(found[0])


def _text(path: Path) -> str:
    """Return the content of a small file; empty if it cannot be read."""
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="ascii").strip()
    return ""
