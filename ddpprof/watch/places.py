"""Where does a training thread stand? Functions of libraries tell by their names and files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ddpprof.model.stack import Frame

_LOCKS = re.compile(r"/(?:threading|queue|filelock/.*|multiprocessing/\w+|subprocess|selectors|socket|ssl)\.py$")
_SOCKETS = re.compile(r"/(?:socket|ssl|http/.*|urllib3/.*|requests/.*|httpx/.*|httpcore/.*|grpc/.*)\.py$")
_PROGRAM = re.compile(r"/subprocess\.py$")
_FRAMES_OF_SUBPROCESS = 4
"""from `subprocess.run` down to the selector in which it may wait"""
_DEBUGGERS = re.compile(r"/(?:pdb|bdb|cmd|ipdb/.*|pudb/.*|debugpy/.*)\.py$|/IPython/")
_CHECKPOINT = re.compile(r"/torch/distributed/checkpoint/")
_BACKWARD = re.compile(r"/torch/autograd/(?:graph|__init__|function)\.py$")


def is_at_a_lock(stack: Sequence[Frame]) -> bool:
    """Return whether the thread waits for a lock, a queue, a socket or another process."""
    return bool(stack) and _LOCKS.search(stack[-1].file) is not None


def is_at_a_socket(stack: Sequence[Frame]) -> bool:
    """Return whether a thread that waits for events waits for the network: in a call of the user's, or of a library."""
    return bool(stack) and (stack[-1].is_of_user or _SOCKETS.search(stack[-1].file) is not None)


def awaits_a_program(stack: Sequence[Frame]) -> bool:
    """Return whether the thread waits for a program that it has started, such as one that evaluates a checkpoint."""
    return any(_PROGRAM.search(frame.file) for frame in stack[-_FRAMES_OF_SUBPROCESS:])


def is_in_checkpoint(stack: Sequence[Frame]) -> bool:
    """Return whether the thread writes or reads its part of a checkpoint of all ranks."""
    return any(_CHECKPOINT.search(frame.file) for frame in stack)


def is_debugged(stack: Sequence[Frame]) -> bool:
    """Return whether somebody is debugging the script with a debugger in the same process."""
    return any(_DEBUGGERS.search(frame.file) for frame in stack)


def is_in_engine(stack: Sequence[Frame]) -> bool:
    """Return whether the thread is in autograd's engine itself, and not in a function of Python that it has called."""
    return bool(stack) and _BACKWARD.search(stack[-1].file) is not None


_AT_EXIT = {
    "_finalize_join": "a multiprocessing.Queue still holds what the process has put into it",
    "_python_exit": "an executor of concurrent.futures still has work",
    "_shutdown_workers": "the workers of a DataLoader do not end",
    "_shutdown": "a thread that is not a daemon still runs",
    "_exit_function": "code that was registered to run at exit does not return",
}
"""functions of Python that run at the exit of a process, and why one of them may not return"""


def why_no_exit(stack: Sequence[Frame]) -> str | None:
    """Return why the process does not exit, if the thread stands in code that runs at its exit."""
    functions = {frame.function for frame in stack if not frame.is_of_user}
    return next((why for function, why in _AT_EXIT.items() if function in functions), None)


def place_at_exit(stack: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame outside `threading`, in which all waits for threads end."""
    return next((frame for frame in reversed(stack) if not frame.file.endswith("/threading.py")), None)


def polls(stack: Sequence[Frame]) -> bool:
    """Return whether a ``while`` loop of the function that sleeps, or of one that calls it, looks for something again.

    Callers count up to the innermost line of the user's code.
    """
    user = next((number for number, frame in enumerate(reversed(stack)) if frame.is_of_user), None)
    if user is None:
        return False
    return any(
        loop.first <= frame.line <= loop.last
        for frame in stack[len(stack) - 1 - user :]
        for loop in _loops_in(frame.file) or ()
        if loop.is_while
    )


def is_in_a_loop(stack: Sequence[Frame]) -> bool | None:
    """Return whether any line of the user's code on the stack is part of a loop; ``None`` if no source can be read."""
    found = [(frame.line, _loops_in(frame.file)) for frame in stack if frame.is_of_user]
    known = [(line, loops) for line, loops in found if loops is not None]
    return any(loop.first <= line <= loop.last for line, loops in known for loop in loops) if known else None


class _Loop(NamedTuple):
    first: int
    last: int
    is_while: bool
    function: int
    """line of the function that it is in; 0 outside of functions"""
    exits: tuple[int, ...]
    """lines at which a ``break`` or a ``return`` leaves it"""


def loop_left(stack: Sequence[Frame]) -> str | None:
    """Say how the last loop before the thread's line can be left before its end; ``None`` if it cannot.

    Of the user's functions on the stack, the innermost one with such a loop counts.
    """
    for frame in reversed(stack):
        if not frame.is_of_user:
            continue
        function = _function_at(frame.file, frame.line)
        loops = [one for one in _loops_in(frame.file) or () if one.last < frame.line and one.function == function]
        if loops:
            left = max(loops, key=lambda one: (one.last, -one.first))
            ways = ", ".join(f"{frame.file}:{line}" for line in left.exits[:_MOST_EXITS])
            return f"its loop can be left at {ways}" if ways else None
    return None


_MOST_EXITS = 3


@lru_cache(maxsize=32)
def _tree_of(file: str) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _function_at(file: str, line: int) -> int:
    """Return the line of the innermost function that contains a line; 0 if there is none."""
    tree = _tree_of(file)
    functions = (node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)) if tree is not None else ()
    return max((node.lineno for node in functions if node.lineno <= line <= (node.end_lineno or 0)), default=0)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.While)


@lru_cache(maxsize=32)
def _loops_in(file: str) -> tuple[_Loop, ...] | None:
    """Return the bodies of all loops in a file of Python."""
    tree = _tree_of(file)
    if tree is None:
        return None
    loops = (node for node in ast.walk(tree) if isinstance(node, _LOOPS))
    return tuple(
        _Loop(
            node.body[0].lineno,
            node.body[-1].end_lineno or 0,
            isinstance(node, ast.While),
            _function_at(file, node.lineno),
            tuple(sorted(_exits_of(node.body, in_loop=False))),
        )
        for node in loops
    )


def _exits_of(nodes: Sequence[ast.AST], in_loop: bool) -> Iterator[int]:
    """Yield the lines at which statements leave the loop around them. `in_loop`: they are in a loop within it."""
    for node in nodes:
        if isinstance(node, ast.Return) or (isinstance(node, ast.Break) and not in_loop):
            yield node.lineno
        elif not isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield from _exits_of([*ast.iter_child_nodes(node)], in_loop or isinstance(node, _LOOPS))
