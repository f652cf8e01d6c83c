"""Types for checks, and checks of the machine: disk space, shared memory, clocks, CPU cores, memory and network."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import os
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ddpprof.linux_files import available_bytes, cpu_quota
from ddpprof.own_files import choose_temporary_directory


class CheckStatus(StrEnum):
    PASS = "PASS"  # noqa: S105 (not a password)
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    name: str
    verdict: CheckStatus
    expected: str | None = None
    found: str | None = None
    reason: str | None = None
    """reason why the check was skipped or, if it failed, what the failure means and what to do"""
    setup: str | None = None
    """backend, number of ranks and devices of the training; ``None`` for a check without training"""


def judge(name: str, holds: bool, expected: object, found: object, reason: str) -> CheckResult:
    """Return a pass if `holds` is true, otherwise a failure with its reason."""
    verdict = CheckStatus.PASS if holds else CheckStatus.FAIL
    return CheckResult(name, verdict, str(expected), str(found), None if holds else reason)


def skip(name: str, reason: str) -> CheckResult:
    return CheckResult(name, CheckStatus.SKIP, reason=reason)


class CannotCheck(Exception):
    """A check cannot be completed. The check then fails with this message."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Backend, number of ranks, and devices of a training script."""

    backend: str = "gloo"
    num_ranks: int = 2
    device: str = "cpu"
    num_gpus: int = 0
    """number of GPUs that the ranks share"""

    def __str__(self) -> str:
        where = "CPU" if self.device == "cpu" else "1 GPU" if self.num_gpus == 1 else f"{self.num_gpus} GPUs"
        return f"{self.backend}, {self.num_ranks} rank{'s' if self.num_ranks > 1 else ''}, {where}"

    @property
    def options(self) -> list[str]:
        """Command-line options for the training scripts."""
        return [f"--ranks={self.num_ranks}", f"--backend={self.backend}", f"--device={self.device}"]


def setups(num_gpus: int) -> list[Setup]:
    """Return the setups in which training is checked. The CPU is used only if there is no GPU."""
    if not num_gpus:
        return [Setup()]
    shared = [Setup("nccl", 1, "cuda", 1), Setup("gloo", 2, "cuda", 1)]
    return shared + ([Setup("nccl", num_gpus, "cuda", num_gpus)] if num_gpus > 1 else [])


@dataclass(frozen=True, slots=True)
class Context:
    """Input of a check."""

    folder: Path
    """empty temporary folder that only this check uses"""
    out: Path
    """folder in which the user keeps runs"""
    gpus: int | None = None
    """number of GPUs that the user wants to use"""
    setup: Setup = Setup()


@dataclass(frozen=True, slots=True)
class Check:
    """A function that returns the results of one or more named checks."""

    names: tuple[str, ...]
    run: Callable[[Context], Iterable[CheckResult]]


_MB = 1_000_000
_DISK_BYTES = 1000 * _MB
"""the check passes if this many bytes of disk space are free, enough for traces of a few steps of many ranks"""
_SHM_BYTES = 256 * _MB
"""the check passes if this many bytes of shared memory are free, for batches of DataLoader workers and NCCL buffers;
Docker's default is 64 MiB
"""
_MEMORY_BYTES = 2000 * _MB
_CLOCK_S = 0.5
_CLOCK_PPM = 500
"""maximum rate, in ppm, at which time daemons adjust a clock"""


def check_disk(context: Context) -> Iterator[CheckResult]:
    """Check that the output folder and the temporary folder have enough disk space for a run."""
    temporary = choose_temporary_directory()
    free = {"here": shutil.disk_usage(context.out).free, "for temporary files": shutil.disk_usage(temporary).free}
    where = min(free, key=lambda name: free[name])
    least = free[where]
    yield judge(
        "disk",
        least >= _DISK_BYTES,
        f"at least {_DISK_BYTES // _MB} MB free",
        f"{least // _MB} MB {where}",
        "Traces may not fit. Free some space, or record with --out on another disk.",
    )


def check_shared_memory(_context: Context) -> Iterator[CheckResult]:
    """Check that /dev/shm is large enough for DataLoader workers and NCCL."""
    folder = Path("/dev/shm")  # noqa: S108 (shared memory)
    if not folder.is_dir():
        yield skip("shared-memory", "this system has no /dev/shm")
        return
    free = shutil.disk_usage(folder).free
    yield judge(
        "shared-memory",
        free >= _SHM_BYTES,
        f"at least {_SHM_BYTES // _MB} MB free",
        f"{free // _MB} MB",
        "DataLoader workers and NCCL may be killed by SIGBUS. In Docker, start with --shm-size=1g or --ipc=host.",
    )


def check_clock(_context: Context) -> Iterator[CheckResult]:
    """Check that the system clock and the monotonic clock run at the same rate and do not jump."""
    wall_ns, steady_ns = time.time_ns(), time.perf_counter_ns()
    time.sleep(_CLOCK_S)
    wall_ns, steady_ns = time.time_ns() - wall_ns, time.perf_counter_ns() - steady_ns
    ppm = abs(wall_ns - steady_ns) / steady_ns * 1e6
    yield judge(
        "clock",
        ppm <= _CLOCK_PPM,
        f"clocks within {_CLOCK_PPM} ppm of each other",
        f"{ppm:.0f} ppm",
        "The system clock has jumped or is drifting, so steps on different hosts cannot be compared. Check the time "
        "synchronization (NTP).",
    )


def check_limits(context: Context) -> Iterator[CheckResult]:
    """Check that there are enough CPU cores and memory for the ranks."""
    ranks = max(2, context.gpus or 0)
    cores = min(len(os.sched_getaffinity(0)), cpu_quota() or float("inf"))
    yield judge(
        "cores",
        cores >= ranks,
        f"at least {ranks}, one per rank",
        f"{cores:g}",
        "Ranks share a CPU core, so times are not meaningful. Give the container more cores (docker run --cpus).",
    )
    memory = available_bytes()
    if memory is None:
        yield skip("memory", "this system does not report how much memory is available")
        return
    yield judge(
        "memory",
        memory >= _MEMORY_BYTES,
        f"at least {_MEMORY_BYTES // _MB} MB",
        f"{memory // _MB} MB",
        "Ranks may run out of memory and be killed. Give the container more memory (docker run --memory), or end other "
        "processes.",
    )


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
        "this host's name resolves to an address of one of its interfaces",
        {None: "no interface", "lo": "lo, only for ranks on this host"}.get(found) or _shown(found or ""),
        "Ranks on different hosts cannot connect to each other. Set GLOO_SOCKET_IFNAME to the interface to use, one "
        f"of: {', '.join(_up())}.",
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
        "NCCL finds no interface. Set NCCL_SOCKET_IFNAME to the interface to use.",
    )


def _of_pattern(asked: str) -> list[str]:
    """Return the interfaces that match a value of ``NCCL_SOCKET_IFNAME``.

    The value is a list of prefixes or, after ``=``, of whole names. A leading ``^`` excludes the matches.
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
        f"the interface in {variable} is up",
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
    """Resolve the name of this host, and return the interface with this address, or ``None``."""
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
