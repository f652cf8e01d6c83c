"""The stack of a thread: one line per frame, the innermost last, as ``file:line in function``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FrameType

_FRAME = re.compile(r"(.*):(\d+) in (.*)")
_OF_LIBRARIES = re.compile(r"/site-packages/|/dist-packages/|/lib/python3(?:\.\d+)?/|<frozen |/ddpprof/record/")

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
"""functions of ``torch.distributed`` in which every rank of the group must take part"""
_OF_SETUP = (
    "init_process_group",
    "destroy_process_group",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "split_group",
)
_OF_PEERS = ("send", "recv", "send_object_list", "recv_object_list", "batch_isend_irecv")
_OF_DDP = ("_verify_param_shape_across_processes", "_sync_module_states", "_sync_buffers")
"""functions in which DDP's constructor and its forward wait for other ranks"""
_COLLECTIVES = COLLECTIVES_OF_ALL | {*_OF_PEERS, *_OF_SETUP, *_OF_DDP}
_OF_DISTRIBUTED = re.compile(r"/torch/(?:distributed|nn/parallel)/(?!checkpoint/)")
"""files with collectives; torch's checkpoints have functions of the same names, in which a rank also writes its part"""
WORK_WAIT = "work.wait"
"""stands for a collective that was started with ``async_op=True``, or whose result is a future"""
_OF_ASYNCHRONOUS = re.compile(r"/ddpprof/record/patches\.py$|/torch/futures/__init__\.py$")
"""files in which a thread waits for what it started before: ddpprof wraps ``Work.wait``"""


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str

    @property
    def is_of_user(self) -> bool:
        """Whether it is the user's own code, not a library's."""
        return _OF_LIBRARIES.search(self.file) is None

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def read_stack(text: str | None) -> tuple[Frame, ...]:
    """Return the frames, innermost last; empty if the stack is unknown."""
    matches = (_FRAME.fullmatch(line) for line in (text or "").splitlines())
    return tuple(Frame(match[1], int(match[2]), match[3]) for match in matches if match)


def place_of_user(stack: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's code."""
    return next((frame for frame in reversed(stack) if frame.is_of_user), None)


def frames_of(walked: Iterable[tuple[FrameType, int]]) -> tuple[Frame, ...]:
    """Return the frames yielded by ``traceback.walk_stack`` or ``walk_tb``, in the same order."""
    return tuple(Frame(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked)


def is_of_ddp(collective: str | None) -> bool:
    """Return True if DDP itself calls the collective, not the script."""
    return collective in _OF_DDP


def is_of_peers(collective: str | None) -> bool:
    """Return True if only two ranks take part in it."""
    return collective in _OF_PEERS


def collective_of(stack: Sequence[Frame]) -> str | None:
    """Return the name of the collective that the thread is in, given by the outermost of torch's functions."""
    inside = (frame for frame in stack if _OF_DISTRIBUTED.search(frame.file))
    found = next((frame.function for frame in inside if frame.function in _COLLECTIVES), None)
    if found is None and any(one.function == "wait" and _OF_ASYNCHRONOUS.search(one.file) for one in stack):
        return WORK_WAIT
    return found


_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[^\n]*most recent call first\):\n((?:  [^\n]*\n?)*)", re.MULTILINE)
"""the stack of one thread, without its C stack, which Python 3.14 may write after it"""
_OF_CRASH = re.compile(r'  File "(.*)", line (\d+) in (.*)')


def stack_of_crash(text: str) -> tuple[Frame, ...]:
    """Return the stack of the main thread, innermost frame last, from the output of `faulthandler`.

    Threads are listed from the newest to the oldest. A DataLoader worker forked from the rank writes to the same file.
    """
    threads = _THREAD.findall(text)
    main_thread = threads[-1] if threads else ""
    frames = tuple(Frame(match[1], int(match[2]), match[3]) for match in _OF_CRASH.finditer(main_thread))
    return () if any(frame.function == "_worker_loop" for frame in frames) else frames[::-1]
