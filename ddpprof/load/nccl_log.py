"""Read which transports and algorithms NCCL chose from the log of one process (``NCCL_DEBUG=INFO``).

`ddpprof trace --nccl-log` makes NCCL write one file per process. The format differs between NCCL versions; unknown
lines are skipped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from ddpprof.files import Location, read_small
from ddpprof.model import Record
from ddpprof.model.links import NcclChoices
from ddpprof.rundir import attempt_of, nccl_log_file

_MOST_BYTES = 64 << 20
_MOST_LINES = 200_000
_MOST_PAIRS = 64

_VERSION = re.compile(r"NCCL version (\S+)")
_NETWORK = re.compile(r"NCCL INFO Using network (.+)")
_USING = re.compile(r"NCCL INFO NET/(\w+) : Using (.+)")
_NAMED = re.compile(r"\[\d+\]([\w.-]+(?::\d+(?=/))?)")
"""a network device in a list: ``[0]eth0:10.0.0.1<0>`` or ``[0]mlx5_0:1/IB``"""
_CHANNEL = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? : \S+ -> \S+ (\[receive\] )?(?:\[send\] )?via (\S+)")
_CHANNELS = re.compile(r"NCCL INFO (\d+) coll channels")
_TUNED = re.compile(r"NCCL INFO (?:AllReduce: )?(\d+) Bytes -> Algo (\w+) proto (\w+)")
_SET = re.compile(r"NCCL INFO (NCCL_\w+) set by environment to (.+)")
_NO_INFINIBAND = "NET/IB : No device found"
_WITHOUT_P2P = re.compile(r"P2P is disabled between (?:NVLINK )?connected GPUs (\d+) and (\d+)")

_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
"""names for the numbers written by versions before 2.24, in order"""


def load_nccl_log(directory: Location, record: Record) -> NcclChoices | None:
    """Return what NCCL logged in the rank's process, or ``None`` if there is no readable log."""
    is_attempt = attempt_of(directory.name) is not None
    run = directory.parent if is_attempt else directory
    with suppress(OSError):
        content = read_small(run / nccl_log_file(record.host, record.pid), _MOST_BYTES)
        return read_choices(content.decode("utf-8", "replace").splitlines()[:_MOST_LINES])
    return None


def read_choices(lines: Iterable[str]) -> NcclChoices:
    """Parse the lines of one process's log."""
    lines = list(lines)
    using = [(match[1], _NAMED.findall(match[2])) for match in _matches(_USING, lines)]
    tuned = max(_matches(_TUNED, lines), key=lambda match: int(match[1]), default=None)
    channels = [int(match[1]) for match in _matches(_CHANNELS, lines)]
    return NcclChoices(
        version=_first(_VERSION, lines),
        network=_first(_NETWORK, lines),
        interfaces=_devices(using, "Socket"),
        infiniband=_devices(using, "IB"),
        transports=_transports(lines),
        num_channels=max(channels, default=None),
        algorithm=None if tuned is None else _name(tuned[2], _ALGORITHMS),
        protocol=None if tuned is None else _name(tuned[3], _PROTOCOLS),
        found_no_infiniband=any(_NO_INFINIBAND in line for line in lines),
        without_p2p=_pairs(lines),
        settings={match[1]: match[2].strip().rstrip(".") for match in _matches(_SET, lines)},
    )


def _matches(pattern: re.Pattern[str], lines: Iterable[str]) -> Iterator[re.Match[str]]:
    return (match for line in lines if (match := pattern.search(line)) is not None)


def _first(pattern: re.Pattern[str], lines: Iterable[str]) -> str | None:
    match = next(_matches(pattern, lines), None)
    return None if match is None else match[1].strip()


def _devices(using: Iterable[tuple[str, list[str]]], kind: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for network, names in using for name in names if network == kind))


def _transports(lines: Iterable[str]) -> Mapping[str, int]:
    """Return the number of channels per transport. Receiving ends are not counted, because other ranks log them."""
    sends = (match[2] for match in _matches(_CHANNEL, lines) if match[1] is None)
    return dict(Counter(map(_transport, sends)).most_common())


def _transport(written: str) -> str:
    """Return the transport without its device number: ``NET/IB/0/GDRDMA`` becomes ``NET/IB/GDRDMA``."""
    parts = [part for part in re.sub(r"\([^)]*\)", "", written).split("/") if not part.isdecimal()]
    return parts[0] if parts[0] == "SHM" else "/".join(parts)


def _name(written: str, names: tuple[str, ...]) -> str:
    """Return the name of an algorithm or protocol. Older versions write its number."""
    if not written.isdecimal():
        return written.upper()
    return names[int(written)] if int(written) < len(names) else written


def _pairs(lines: Iterable[str]) -> tuple[tuple[int, int], ...]:
    found = (sorted((int(match[1]), int(match[2]))) for match in _matches(_WITHOUT_P2P, lines))
    return tuple(sorted({(low, high) for low, high in found}))[:_MOST_PAIRS]
