"""What a rank tells of itself once something is wrong: the collectives it has called, its error, for what it waits."""

from __future__ import annotations

from enum import StrEnum
from zlib import crc32

import msgspec
from msgspec import Struct


class Wait(StrEnum):
    """A reason for which the kernel lets a training thread sleep."""

    INPUT = "input"
    """it reads standard input"""
    NETWORK = "network"
    PIPE = "pipe"
    FILE = "file"
    LOCK = "lock"
    """it waits for another thread, or for the lock of a file"""
    FOREIGN_LOCK = "foreign-lock"
    """it waits for the lock of a file that no rank holds"""
    PROCESS = "process"
    """it waits for a child to end"""
    SLEEP = "sleep"
    EVENTS = "events"
    """it waits for one of several files, as in ``select``"""


class Call(Struct, frozen=True, array_like=True):
    """One collective that a rank has called."""

    group: str
    """name of the process group; the group of all ranks is ``"0"``"""
    sequence: int
    """number in its group"""
    name: str
    numel: int

    @property
    def kind(self) -> tuple[str, str, int]:
        """The part of the call that is the same on all ranks."""
        return self.group, self.name, self.numel


class KindOfCall(Struct, frozen=True, array_like=True):
    """How often a rank has called one kind of collective in the steps that torch still knows, and when."""

    group: str
    name: str
    numel: int
    count: int
    last: tuple[int, ...]
    """numbers of the last two of them in their group"""

    def is_due(self, sequence: int) -> bool:
        """Return whether a call under this number has the same distance from the last one as that from the one before.

        If there was only one so far, nothing speaks against it.
        """
        return len(self.last) < 2 or sequence - self.last[-1] == self.last[-1] - self.last[-2]


class OverdueFacts(Struct, frozen=True):
    """What only the process itself can tell."""

    stack_crc: int = 0
    """checksum of the stack at which the thread stood then: see `crc_of`"""
    calls: tuple[Call, ...] = ()
    """last collectives, oldest first, as far as torch knows them"""
    kinds: tuple[KindOfCall, ...] = ()
    error: str | None = None
    """exception that the training thread is handling, as ``Type: message``"""
    error_place: str | None = None
    """line of the user's code that raised it"""
    wait: Wait | None = None
    learning_rate: float | None = None
    """learning rate of the optimizer's first parameters"""
    peer: int | None = None
    """rank to which it sends, or from which it receives, if it waits in that"""
    thread: int | None = None
    """the system's number of the training thread; ``None`` if that is the main thread"""
    saves_in_thread: bool = False
    """whether another thread is within `torch.save`"""

    def known(self, kind: tuple[str, str, int]) -> KindOfCall | None:
        """Return what is known of earlier calls of this kind; ``None`` if there were none."""
        return next((one for one in self.kinds if (one.group, one.name, one.numel) == kind), None)


def crc_of(stack: str) -> int:
    return crc32(stack.encode(errors="replace"))


def encode_facts(facts: OverdueFacts, most_bytes: int) -> bytes:
    """Return the facts as JSON, without the oldest calls and the rarest kinds if they are too long."""
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
