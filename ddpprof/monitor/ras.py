"""Query NCCL's RAS subsystem about the ranks of a job that hangs, through a socket on this machine.

NCCL has had the socket since version 2.24, and has answered in JSON since 2.28.7. Older versions answer in plain text,
and name only the ranks that differ from the majority. One answer covers all machines of the job. ddpprof connects only
to the loopback interface, and never from the training process.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpprof.words import ranks_in_words

ADDRESS_VARIABLE = "NCCL_RAS_ADDR"
PATIENCE_S = 2.0
"""time limit for connecting and reading the whole answer, in seconds"""
_ADDRESS = "localhost:28028"
_RAS_TIMEOUT_S = 1
"""time limit that ddpprof asks RAS to use for answers from processes on other machines, in seconds"""
_REQUEST = f"CLIENT PROTOCOL 2\nTIMEOUT {_RAS_TIMEOUT_S}\nSET FORMAT json\nVERBOSE STATUS\n".encode()
"""request to RAS; older versions answer ``SET FORMAT`` with an error, and then answer in text"""
_MOST_BYTES = 64 << 20
_MOST_GROUPS = 4

_OK, _IN_PROGRESS = 0, 7
_ERRORS = {
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
}
"""NCCL's result codes → their names"""


@dataclass(frozen=True, slots=True)
class NcclRank:
    """What RAS reports about one rank of a communicator."""

    pid: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    """collective operation → number of launches; an answer in text form has only the operations whose launch counts
    differ between ranks
    """
    is_missing: bool = False
    """whether RAS got no answer from the rank's process"""
    is_dead: bool = False
    """whether RAS considers the rank's process dead"""
    error: str | None = None
    """asynchronous error of the communicator on this rank"""


Communicator = Mapping[int, NcclRank]
"""rank → what RAS reports about it; for all ranks of a communicator"""


def ask(address: str, patience_s: float = PATIENCE_S) -> str | None:
    """Return the answer of the RAS thread at ``HOST:PORT``.

    Returns ``None`` if there is no answer in time, or if the address is not on this machine.
    """
    deadline, received = time.monotonic() + patience_s, bytearray()
    with suppress(OSError, ValueError):
        host, _, port = address.rpartition(":")
        if not _is_loopback(host.strip("[]")):
            return None
        with socket.create_connection((host.strip("[]"), int(port)), timeout=patience_s) as asked:
            asked.sendall(_REQUEST)
            while len(received) < _MOST_BYTES:
                asked.settimeout(max(deadline - time.monotonic(), 0.001))
                part = asked.recv(1 << 16)
                if not part:  # RAS closes the connection after its answer
                    return received.decode("utf-8", "replace")
                received += part
    return None


def _is_loopback(host: str) -> bool:
    return host == "localhost" or ipaddress.ip_address(host).is_loopback


def address_of(pid: int | None) -> str:
    """Return the address of the RAS socket, according to the environment variables of the process."""
    name = f"{ADDRESS_VARIABLE}=".encode()
    with suppress(OSError, StopIteration):
        content = Path(f"/proc/{pid}/environ").read_bytes() if pid is not None else b""
        return next(one for one in content.split(b"\0") if one.startswith(name))[len(name) :].decode("utf-8", "replace")
    return os.environ.get(ADDRESS_VARIABLE, _ADDRESS)


def read_answer(answer: str, world_size: int) -> Communicator | None:
    """Return the communicator that contains all ranks of the job; ``None`` if there is none.

    If there are several, the communicator with the most problems is returned.
    """
    begin = answer.find("{")
    found = None
    if begin >= 0:
        with suppress(ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            found = _of_json(json.loads(answer[begin:]), world_size)
    else:
        found = _of_text(answer.splitlines(), world_size)
    return max(found, key=_num_oddities) if found else None


def _num_oddities(communicator: Communicator) -> int:
    ranks = communicator.values()
    return sum(one.is_missing or one.error is not None for one in ranks) + len(differing(communicator))


def _of_json(content: Any, world_size: int) -> list[Communicator]:
    return [
        {
            **{int(one["rank"]): _answered(one) for one in communicator["ranks"]},
            **{int(one["rank"]): _missing(one) for one in communicator["missing_ranks"]},
        }
        for communicator in content["communicators"]
        if communicator["size"] == world_size
    ]


def _answered(one: Any) -> NcclRank:
    result = int(one["status"]["async_error"])
    error = None if result in (_OK, _IN_PROGRESS) else _ERRORS.get(result, f"error {result}")
    counts = {str(name): int(number) for name, number in one["collective_counts"].items()}
    return NcclRank(int(one["pid"]), counts, error=error)


def _missing(one: Any) -> NcclRank:
    status = one["status"]
    is_missing = bool(status["unresponsive"] or status["considered_dead"])
    return NcclRank(int(one["pid"]), is_missing=is_missing, is_dead=bool(status["considered_dead"]))


_SECTION = re.compile(r"^#\d+-\d+ \((?P<name>\w+)\) (?P<kind>[A-Z]+)")
_OPERATION = re.compile(r"^\s+Communicator ranks have different (\w+) operation counts")
_LAUNCHED = r"(?P<launched> has launched up to operation (?P<count>\d+)| has not launched any operations)"
_RANK = re.compile(rf"^\s+Rank (?P<rank>\d+)(?:{_LAUNCHED}| reported (?P<error>.+?))? -- ")
_PROCESS = re.compile(r"managed by process (\d+)")
_SEVERAL = re.compile(r"^\s+(\d+) ranks have (?:launched up to operation (\d+)|not launched any operations)")
_SEVERAL_ERRORS = re.compile(r"^\s+\d+ ranks reported (.+)")
_MISSING = re.compile(r"^\s+The missing ranks?: ([\d, ]+)")


class _Section:
    """Parser for the lines of a text answer about one communicator."""

    def __init__(self) -> None:
        self.ranks: dict[int, NcclRank] = {}
        self.usual: dict[str, tuple[int, int]] = {}
        """operation → size of the largest group of ranks with the same number of launches, and the number of launches
        in this group
        """
        self.kind = ""
        self._operation = ""
        self._count = 0
        self._error: str | None = None

    def read(self, line: str) -> None:
        if (match := _OPERATION.match(line)) is not None:
            self._operation = match[1]
        elif (match := _SEVERAL.match(line)) is not None:
            self._count = int(match[2] or 0)
            ranks = int(match[1])
            self.usual[self._operation] = max(self.usual.get(self._operation, (0, 0)), (ranks, self._count))
        elif (match := _SEVERAL_ERRORS.match(line)) is not None:
            self._error = match[1]
        elif (match := _MISSING.match(line)) is not None:
            for rank in match[1].replace(",", " ").split():
                self._add(int(rank), is_missing=True)
        elif (match := _RANK.match(line)) is not None:
            self._read_rank(match, line)

    def _read_rank(self, match: re.Match[str], line: str) -> None:
        rank, process = int(match["rank"]), _PROCESS.search(line)
        pid = None if process is None else int(process[1])
        if self.kind == "INCOMPLETE":
            self._add(rank, pid=pid, is_missing=True)
        elif self.kind == "ERROR":
            self._add(rank, pid=pid, error=match["error"] or self._error)
        elif self._operation:
            count = int(match["count"] or 0) if match["launched"] else self._count
            self._add(rank, pid=pid, counts={self._operation: count})

    def _add(self, rank: int, counts: Mapping[str, int] | None = None, **known: Any) -> None:
        there = self.ranks.get(rank, NcclRank())
        merged = {name: getattr(there, name) for name in ("pid", "is_missing", "is_dead", "error")}
        merged |= {name: value for name, value in known.items() if value is not None}
        self.ranks[rank] = NcclRank(counts={**there.counts, **(counts or {})}, **merged)

    def _names_others(self, operation: str, num_usual: int, world_size: int) -> bool:
        """Return True if the answer names every rank whose number of launches differs from the majority's."""
        known = [one for one in self.ranks.values() if one.is_missing or operation in one.counts]
        return bool(operation) and num_usual + len(known) == world_size

    def communicator(self, world_size: int) -> Communicator:
        """Return the communicator with all ranks.

        Ranks that are not named have launched as many operations as the majority.
        """
        usual = {
            name: count for name, (number, count) in self.usual.items() if self._names_others(name, number, world_size)
        }
        found = {}
        for rank in range(world_size):
            one = self.ranks.get(rank, NcclRank())
            counts = {} if one.is_missing else {**usual, **one.counts}
            found[rank] = NcclRank(one.pid, counts, one.is_missing, one.is_dead, one.error)
        return found


def _of_text(lines: Iterable[str], world_size: int) -> list[Communicator]:
    """Return the communicators with a problem, if all of their ranks belong to the job."""
    sections: dict[str, _Section] = {}
    section: _Section | None = None
    for line in lines:
        if (match := _SECTION.match(line)) is not None:
            section = sections.setdefault(match["name"], _Section())
            section.kind = match["kind"]
        elif section is not None:
            section.read(line)
    return [one.communicator(world_size) for one in sections.values() if max(one.ranks, default=0) < world_size]


def differing(communicator: Communicator) -> dict[str, dict[int, list[int]]]:
    """Return the operations whose number of launches differs between ranks: operation → number of launches → ranks."""
    found: dict[str, dict[int, list[int]]] = {}
    for rank, one in sorted(communicator.items()):
        for operation, number in one.counts.items():
            found.setdefault(operation, {}).setdefault(number, []).append(rank)
    return {operation: numbers for operation, numbers in found.items() if len(numbers) > 1}


def behind(communicator: Communicator) -> int | None:
    """Return the rank that has launched fewer collectives than all other ranks, or ``None``.

    All other ranks must have launched the same number of collectives.
    """
    totals = {rank: sum(one.counts.values()) for rank, one in communicator.items() if one.counts}
    if len(totals) < max(2, len(communicator)):
        return None  # it may be a rank that does not answer
    fewest = [rank for rank, total in totals.items() if total == min(totals.values())]
    others = Counter(total for rank, total in totals.items() if rank not in fewest)
    return fewest[0] if len(fewest) == len(others) == 1 else None


def in_words(communicator: Communicator) -> str | None:
    """Return a description of the differences between the ranks; ``None`` if there are none."""
    parts = [_counts_in_words(operation, numbers) for operation, numbers in differing(communicator).items()]
    missing = [rank for rank, one in sorted(communicator.items()) if one.is_missing]
    dead = [rank for rank in missing if communicator[rank].is_dead]
    if missing:
        more = ", and NCCL considers it dead" if dead == missing else ""
        parts.append(f"{_process(communicator, missing)} does not answer{more}")
    errors = {rank: one.error for rank, one in sorted(communicator.items()) if one.error is not None}
    parts += [f"rank {rank} reports: {error}" for rank, error in errors.items()][:_MOST_GROUPS]
    return "; ".join(parts) or None


def _process(communicator: Communicator, ranks: Sequence[int]) -> str:
    pid = communicator[ranks[0]].pid
    return f"{ranks_in_words(ranks)}{f' (process {pid})' if len(ranks) == 1 and pid is not None and pid > 0 else ''}"


def _counts_in_words(operation: str, numbers: Mapping[int, Sequence[int]]) -> str:
    """Return, for example, ``rank 1 has launched 100 AllReduce operations (ranks 0, 2, 3: 101)``."""
    what = "" if operation == "collective" else f"{operation} "
    groups = [(ranks_in_words(numbers[number]), number) for number in sorted(numbers)][:_MOST_GROUPS]
    (who, fewest), *rest = groups
    has = "has" if len(numbers[fewest]) == 1 else "have"
    others = ", ".join(f"{others}: {number:,}" for others, number in rest)
    return f"{who} {has} launched {fewest:,} {what}operations ({others})"
