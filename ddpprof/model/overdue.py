"""What a rank reports about itself once something is wrong: its collectives, its error, and what it waits for."""

from __future__ import annotations

from enum import StrEnum
from zlib import crc32

import msgspec
from msgspec import Struct


class Wait(StrEnum):
    """A reason why the kernel lets a training thread sleep."""

    INPUT = "input"
    """it reads standard input"""
    NETWORK = "network"
    PIPE = "pipe"
    FILE = "file"
    LOCK = "lock"
    """it waits for another thread, or for a file lock"""
    FOREIGN_LOCK = "foreign-lock"
    """it waits for a file lock that no rank holds"""
    PROCESS = "process"
    """it waits for a child process to end"""
    SLEEP = "sleep"
    EVENTS = "events"
    """it waits for one of several files, as in ``select``"""


class Call(Struct, frozen=True, array_like=True):
    """One collective that a rank has called."""

    group: str
    """name of the process group; the group of all ranks is ``"0"``"""
    sequence: int
    """sequence number in its group"""
    name: str
    numel: int

    @property
    def kind(self) -> tuple[str, str, int]:
        """The part of the call that is the same on all ranks."""
        return self.group, self.name, self.numel


class KindOfCall(Struct, frozen=True, array_like=True):
    """How often, and when, a rank has called one kind of collective in the steps that torch still has."""

    group: str
    name: str
    numel: int
    count: int
    last: tuple[int, ...]
    """sequence numbers of the last two of them in their group"""

    def is_due(self, sequence: int) -> bool:
        """Return True if a call with this number is as far from the last one as the last one is from the one before.

        If there was only one so far, any distance is accepted.
        """
        return len(self.last) < 2 or sequence - self.last[-1] == self.last[-1] - self.last[-2]


class OverdueFacts(Struct, frozen=True):
    """Facts that only the process itself knows."""

    stack_crc: int = 0
    """checksum of the thread's stack at that time: see `crc_of`"""
    calls: tuple[Call, ...] = ()
    """last collectives, oldest first, as far as torch knows them"""
    kinds: tuple[KindOfCall, ...] = ()
    error: str | None = None
    """exception that the training thread is handling, as ``Type: message``"""
    error_place: str | None = None
    """line of the user's code that raised it"""
    wait: Wait | None = None
    learning_rate: float | None = None
    """learning rate of the optimizer's first parameter group"""
    peer: int | None = None
    """rank that it sends to, or receives from, if it waits in that"""
    thread: int | None = None
    """the system's ID of the training thread; ``None`` if that is the main thread"""
    saves_in_thread: bool = False
    """whether another thread is within `torch.save`"""

    def known(self, kind: tuple[str, str, int]) -> KindOfCall | None:
        """Return what is known about earlier calls of this kind; ``None`` if there were none."""
        return next((one for one in self.kinds if (one.group, one.name, one.numel) == kind), None)


def crc_of(stack: str) -> int:
    return crc32(stack.encode(errors="replace"))


def encode_facts(facts: OverdueFacts, most_bytes: int) -> bytes:
    """Return the facts as JSON. If they are too long, the oldest calls and the rarest kinds are left out."""
    for num_calls in (len(facts.calls), 100, 20, 0):
        shorter = msgspec.structs.replace(facts, calls=facts.calls[-num_calls:] if num_calls else ())
        for one in (shorter, msgspec.structs.replace(shorter, kinds=shorter.kinds[:20])):
            content = msgspec.json.encode(one)
            if len(content) <= most_bytes:
                return content
    return b""


def decode_facts(content: bytes) -> OverdueFacts | None:
    """Return the facts up to the first null byte; ``None`` if there are none, or they are just being written."""
    try:
        return msgspec.json.decode(content.partition(b"\0")[0], type=OverdueFacts)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
