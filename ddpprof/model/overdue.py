"""The facts that a rank reports if a step is overdue: its stack, collectives, error, and reason for waiting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import FrameType
from zlib import crc32

import msgspec
from msgspec import Struct

_FRAME = re.compile(r"(.*):(\d+) in (.*)")
_OF_LIBRARIES = re.compile(
    r"/site-packages/|/dist-packages/|/lib/python3(?:\.\d+)?/|<frozen |/ddpprof/record/|<eval_with_key>|/torchinductor_"
)
"""pattern for the files of libraries, and for code that torch.compile generates"""

COLLECTIVES_OF_ALL = frozenset(
    {
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_gather_coalesced",
        "all_reduce_coalesced",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "broadcast",
        "broadcast_object_list",
        "gather",
        "gather_object",
        "scatter_object_list",
        "monitored_barrier",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter",
    }
)
"""functions of ``torch.distributed`` that every rank of the group must call"""
_OF_SETUP = (
    "init_process_group",
    "destroy_process_group",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "split_group",
)
_OF_PEERS = ("send", "recv", "send_object_list", "recv_object_list", "batch_isend_irecv")
COLLECTIVES_OF_DDP = {
    "_verify_param_shape_across_processes": "DDP's comparison of parameter shapes",
    "_sync_module_states": "DDP's broadcast of the model",
    "_pre_forward": "DDP's broadcast of its bucket order",
    "_sync_buffers": "DDP's buffer broadcast",
}
"""function of DDP's constructor or forward pass that waits for other ranks → what it does"""
_COLLECTIVES = COLLECTIVES_OF_ALL | {*_OF_PEERS, *_OF_SETUP, *COLLECTIVES_OF_DDP} - {"_pre_forward"}
_OF_DISTRIBUTED = re.compile(r"/torch/(?:distributed|nn/parallel)/(?!checkpoint/)")
"""pattern for the source files of collectives; ``torch.distributed.checkpoint`` is excluded, because it has functions
with the same names
"""
WORK_WAIT = "work.wait"
"""name that stands for a collective that was started with ``async_op=True`` or returned a future"""
_OF_ASYNCHRONOUS = re.compile(r"/ddpprof/record/patches\.py$|/torch/futures/__init__\.py$")
"""pattern for the source files in which a thread waits for an asynchronous collective; ``Work.wait`` is wrapped by
ddpprof
"""


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str

    @property
    def is_of_user(self) -> bool:
        """Whether the frame belongs to the user's own code, not to a library."""
        return _OF_LIBRARIES.search(self.file) is None

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def read_stack(text: str | None) -> tuple[Frame, ...]:
    """Parse a stack into frames, innermost last. Return no frames if the stack is unknown."""
    matches = (_FRAME.fullmatch(line) for line in (text or "").splitlines())
    return tuple(Frame(match[1], int(match[2]), match[3]) for match in matches if match)


def place_of_user(stack: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's code."""
    return next((frame for frame in reversed(stack) if frame.is_of_user), None)


def caller_of_user(stack: Sequence[Frame]) -> Frame | None:
    """Return the frame of the user's code that called the function at `place_of_user`.

    Returns ``None`` if this function is the script's main function, or code outside functions.
    """
    of_user = [frame for frame in reversed(stack) if frame.is_of_user]
    return of_user[1] if len(of_user) > 1 and of_user[0].function not in ("main", "<module>") else None


def frames_of(walked: Iterable[tuple[FrameType, int]]) -> tuple[Frame, ...]:
    """Return the frames yielded by ``traceback.walk_stack`` or ``walk_tb``, in the same order."""
    return tuple(Frame(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked)


def is_of_ddp(collective: str | None) -> bool:
    """Return True if the collective is called by DDP, not by the script."""
    return collective in COLLECTIVES_OF_DDP


def is_of_peers(collective: str | None) -> bool:
    """Return True if the operation is a point-to-point operation."""
    return collective in _OF_PEERS


def collective_of(stack: Sequence[Frame]) -> str | None:
    """Return the name of the collective that the thread is running, from the outermost matching frame, or ``None``."""
    inside = [frame for frame in stack if _OF_DISTRIBUTED.search(frame.file)]
    found = next((frame.function for frame in inside if frame.function in _COLLECTIVES), None)
    if found is None and inside and stack[-1] is inside[-1] and stack[-1].function == "_pre_forward":
        return "_pre_forward"  # in the reducer, which is not Python code
    if found is None and any(one.function == "wait" and _OF_ASYNCHRONOUS.search(one.file) for one in stack):
        return WORK_WAIT
    return found


_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[^\n]*most recent call first\):\n((?:  [^\n]*\n?)*)", re.MULTILINE)
"""pattern for the Python stack of one thread; Python 3.14 may write the thread's C stack after it"""
_OF_CRASH = re.compile(r'  File "(.*)", line (\d+) in (.*)')


def stack_of_crash(text: str) -> tuple[Frame, ...]:
    """Return the stack of the main thread, innermost frame last, from the output of `faulthandler`.

    Threads are listed from the newest to the oldest. Stacks of DataLoader workers are ignored, because a worker forked
    from the rank writes to the same file.
    """
    threads = _THREAD.findall(text)
    main_thread = threads[-1] if threads else ""
    frames = tuple(Frame(match[1], int(match[2]), match[3]) for match in _OF_CRASH.finditer(main_thread))
    return () if any(frame.function == "_worker_loop" for frame in frames) else frames[::-1]


class Wait(StrEnum):
    """The reason why a training thread sleeps, according to the kernel."""

    INPUT = "input"
    """the thread reads standard input"""
    NETWORK = "network"
    PIPE = "pipe"
    FILE = "file"
    LOCK = "lock"
    """the thread waits for another thread, or for a file lock"""
    FOREIGN_LOCK = "foreign-lock"
    """the thread waits for a file lock that no rank holds"""
    PROCESS = "process"
    """the thread waits for a child process to end"""
    SLEEP = "sleep"
    EVENTS = "events"
    """the thread waits for one of several file descriptors, as in ``select``"""


class Call(Struct, frozen=True, array_like=True):
    """One call to a collective by a rank."""

    group: str
    """name of the process group; the group of all ranks is ``"0"``"""
    sequence: int
    """sequence number of the collective in its process group"""
    name: str
    numel: int

    @property
    def kind(self) -> tuple[str, str, int]:
        """The properties of the call that must be the same on all ranks."""
        return self.group, self.name, self.numel


class KindOfCall(Struct, frozen=True, array_like=True):
    """The calls of one kind of collective on a rank, in the steps that are still in PyTorch's flight recorder."""

    group: str
    name: str
    numel: int
    count: int
    last: tuple[int, ...]
    """sequence numbers, in the process group, of the last two calls of this kind"""

    def is_due(self, sequence: int) -> bool:
        """Return True if a call is expected at this sequence number, given the distance between the last two calls.

        If there has been only one call, any distance is accepted.
        """
        return len(self.last) < 2 or sequence - self.last[-1] == self.last[-1] - self.last[-2]


class OverdueFacts(Struct, frozen=True):
    """Facts about a rank that only its own process can determine."""

    stack_crc: int = 0
    """checksum of the stack that the training thread had when the facts were collected: see `crc_of`"""
    calls: tuple[Call, ...] = ()
    """last collectives in PyTorch's flight recorder, oldest first"""
    kinds: tuple[KindOfCall, ...] = ()
    error: str | None = None
    """exception that the training thread is handling, as ``Type: message``"""
    error_place: str | None = None
    """line of the user's code that raised the exception"""
    wait: Wait | None = None
    learning_rate: float | None = None
    """learning rate of the optimizer's first parameter group"""
    peer: int | None = None
    """other rank of the ``send`` or ``recv`` in which this rank waits, if any"""
    thread: int | None = None
    """native ID of the training thread; ``None`` if the main thread is the training thread"""
    saves_in_thread: bool = False
    """whether a thread other than the training thread is in `torch.save`"""
    last_p2p: str | None = None
    """name of the point-to-point operation for which the training thread waits, if it is in ``Work.wait()``"""
    ended_thread: str | None = None
    """the last thread of the process that an exception has ended, with the exception and its line"""

    def known(self, kind: tuple[str, str, int]) -> KindOfCall | None:
        """Return the earlier calls of this kind (group, name and number of elements), or ``None`` if there are none."""
        return next((one for one in self.kinds if (one.group, one.name, one.numel) == kind), None)


def crc_of(stack: str) -> int:
    return crc32(stack.encode(errors="replace"))


def encode_facts(facts: OverdueFacts, most_bytes: int) -> bytes:
    """Return the facts as JSON of at most `most_bytes`. If needed, the oldest calls and rarest kinds are omitted."""
    for num_calls in (len(facts.calls), 100, 20, 0):
        shorter = msgspec.structs.replace(facts, calls=facts.calls[-num_calls:] if num_calls else ())
        for one in (shorter, msgspec.structs.replace(shorter, kinds=shorter.kinds[:20])):
            content = msgspec.json.encode(one)
            if len(content) <= most_bytes:
                return content
    return b""


def decode_facts(content: bytes) -> OverdueFacts | None:
    """Decode the facts up to the first null byte. Return ``None`` if the facts are missing or are being written."""
    try:
        return msgspec.json.decode(content.partition(b"\0")[0], type=OverdueFacts)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
