"""Determine which code a rank's training thread runs, and whether the rank waits for others or others wait for it.

Functions of libraries are recognized by their names and files. A `Position` is one row of the table of evidence. It is
made by the first rule that applies to the rank.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from ddpprof.model.hang import Fault, Hint
from ddpprof.model.overdue import (
    WORK_WAIT,
    Call,
    Frame,
    Wait,
    caller_of_user,
    collective_of,
    is_of_ddp,
    is_of_peers,
    place_of_user,
)
from ddpprof.model.pulse import Activity, Ended, StepFlag
from ddpprof.monitor.evidence import RankEvidence
from ddpprof.words import listed

REDUCER = "the reducer"
OUTSIDE = {
    Wait.INPUT: "input from the terminal",
    Wait.NETWORK: "the network",
    Wait.PIPE: "a pipe to another program",
    Wait.FILE: "a file",
    Wait.FOREIGN_LOCK: "a file lock that another program holds",
}
"""reason for waiting → description of what a rank waits for outside the job"""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank is, and whether it waits for other ranks."""

    evidence: RankEvidence
    waits_in: str | None
    """collective (or `REDUCER`) in which the rank waits for other ranks; ``None`` if it is not waiting for them"""
    fault: Fault
    """why other ranks have to wait for this rank, if it is at fault"""
    detail: str | None = None
    hint: Hint | None = None

    @property
    def rank(self) -> int:
        return self.evidence.rank

    @property
    def waits_in_reducer(self) -> bool:
        return self.waits_in == REDUCER

    @property
    def waits_in_ddp(self) -> bool:
        """Whether the rank waits or died in one of DDP's own collectives, and not in a collective of the script."""
        if self.fault is Fault.DIED:
            in_pass = self.evidence.state.activity in (Activity.BACKWARD, Activity.FORWARD)
            record = self.evidence.record
            return in_pass and (record is None or record.ended_in is None or is_of_ddp(record.ended_in))
        return self.waits_in_reducer or is_of_ddp(self.waits_in)

    @property
    def place(self) -> str | None:
        """Innermost line of the user's code where the rank is, or where it died."""
        frame, record = place_of_user(self.evidence.stack), self.evidence.record
        if frame is None and self.fault is Fault.DIED and record is not None:
            return record.ended_place
        return None if frame is None else str(frame)

    @property
    def called_at(self) -> str | None:
        """Line of the user's code that called the function at `place`."""
        evidence, caller = self.evidence, caller_of_user(self.evidence.stack)
        if place_of_user(evidence.stack) is None and self.fault is Fault.DIED and evidence.record is not None:
            return evidence.record.ended_called_at
        return None if caller is None else str(caller)

    @property
    def calls(self) -> tuple[Call, ...]:
        """Collectives that the rank has called, as recorded by PyTorch, most recent last."""
        return self.evidence.facts.calls

    @property
    def progress(self) -> tuple[int, int]:
        """Number of backward passes that this rank has begun, and number of buckets launched in the last pass."""
        state = self.evidence.state
        return state.num_passes, state.bucket + 1


Table = Sequence[Position]
"""positions of the ranks, one row per rank"""


def others_of(table: Table, blamed: Position) -> list[Position]:
    return [one for one in table if one is not blamed]


def position_of(evidence: RankEvidence) -> Position:
    """Return the position of a rank, from the first rule that applies."""
    return next(found for rule in _RULES if (found := rule(evidence)) is not None)


def _is_over(one: RankEvidence) -> Position | None:
    if one.is_dead:
        return Position(one, None, Fault.DIED)
    if one.state.ended == Ended.FINISHED:
        return Position(one, None, Fault.ENDED_EARLY, hint=why_ended(one))
    return None


def _is_held(one: RankEvidence) -> Position | None:
    """Return the position of a process that is stopped or swapping."""
    process = one.process
    if process is not None and process.is_frozen:
        return Position(one, None, Fault.STOPPED, "its control group is frozen", Hint.FROZEN)
    if process is not None and process.is_stopped:
        return Position(one, None, Fault.STOPPED)
    if process is not None and process.is_traced:
        return Position(one, None, Fault.TRACED)
    if one.is_swapping:
        return Position(one, None, Fault.SWAPPING)
    return None


def _is_silent(one: RankEvidence) -> Position | None:
    if not one.is_silent:
        return None
    waits_for_disk = one.state.activity == Activity.SAVE or (one.process is not None and one.process.state == "D")
    return Position(one, None, Fault.STORAGE if waits_for_disk else Fault.INTERPRETER_HELD)


def _waits_for_others(one: RankEvidence) -> Position | None:
    collective, activity = collective_of(one.stack), one.state.activity
    if (activity == Activity.EVALUATION or one.state.evaluates) and is_of_ddp(collective):
        return Position(one, collective, Fault.EVALUATES_ALONE)
    if activity == Activity.FORWARD and is_of_ddp(collective):
        return Position(one, collective, Fault.FEWER_PASSES)
    if collective is not None:
        return _in_collective(one, collective)
    if activity == Activity.BACKWARD and (not one.stack or is_in_engine(one.stack)):
        return Position(one, REDUCER, Fault.FEWER_PASSES)
    return None


def _in_collective(one: RankEvidence, collective: str) -> Position:
    """Return the position of a rank in a collective called by the script."""
    if one.facts.error is not None:
        return Position(one, collective, Fault.OTHER_COLLECTIVE, _error_in_flight(one), Hint.ERROR_IN_FLIGHT)
    if collective == WORK_WAIT and one.facts.last_p2p is not None:
        said = f"it waits for a point-to-point operation that it started with {one.facts.last_p2p}"
        return Position(one, one.facts.last_p2p, Fault.OTHER_COLLECTIVE, said, Hint.OF_PEERS)
    if is_of_peers(collective):
        peer = "" if one.facts.peer is None else f"; its peer is rank {one.facts.peer}"
        return Position(one, collective, Fault.OTHER_COLLECTIVE, f"it waits in {collective}(){peer}", Hint.OF_PEERS)
    if collective == "destroy_process_group":
        return Position(one, collective, Fault.ENDED_EARLY, hint=why_ended(one))
    return Position(one, collective, Fault.OTHER_COLLECTIVE)


def _error_in_flight(one: RankEvidence) -> str | None:
    if one.facts.error is None:
        return None
    raised = "" if one.facts.error_place is None else f", raised at {one.facts.error_place}"
    return f"it is handling {one.facts.error}{raised}"


def _loads(one: RankEvidence) -> Position | None:
    if one.state.activity != Activity.DATA:
        return None
    hint = Hint.WORKER_AT_LOCK if any(worker.wait is Wait.LOCK for worker in one.workers) else None
    return Position(one, None, Fault.LOADER, _workers(one), hint)


def _waits_for_disk(one: RankEvidence) -> Position | None:
    if one.state.activity == Activity.SAVE or (one.process is not None and one.process.state == "D"):
        return Position(one, None, Fault.STORAGE)
    return None


def _is_at_a_lock(one: RankEvidence) -> Position | None:
    if outside_wait(one) is None and (is_at_a_lock(one.stack) or (one.wait is Wait.LOCK and not one.computes)):
        return Position(one, None, Fault.LOCK, one.facts.ended_thread)
    return None


def _is_in_own_code(one: RankEvidence) -> Position:
    wait = outside_wait(one)
    if one.wait is Wait.SLEEP and polls(one.stack) and not one.computes:
        said = "it polls in a loop, and sleeps between polls"
        return Position(one, None, Fault.OWN_CODE, said, Hint.WAITS_OUTSIDE)
    if one.computes or wait is None:
        return Position(one, None, Fault.OWN_CODE, _error_in_flight(one) or ("it computes" if one.computes else None))
    hint = Hint.WAITS_FOR_INPUT if wait is Wait.INPUT else Hint.WAITS_OUTSIDE
    return Position(one, None, Fault.OWN_CODE, f"it waits for {OUTSIDE[wait]}", hint)


_RULES = (
    _is_over,
    _is_held,
    _is_silent,
    _waits_for_others,
    _loads,
    _waits_for_disk,
    _is_at_a_lock,
    _is_in_own_code,
)


def outside_wait(one: RankEvidence) -> Wait | None:
    """Return what a rank waits for outside the job, if it waits in the script's own code."""
    if not one.stack or collective_of(one.stack) is not None:
        return None
    if one.wait is Wait.EVENTS:
        return Wait.NETWORK if is_at_a_socket(one.stack) else None
    return one.wait if one.wait in OUTSIDE else None


def ran_out(evidence: RankEvidence) -> bool:
    """Return True if the rank's `DataLoader` was exhausted, and no further epoch has begun."""
    flags = evidence.state.flags
    return bool(flags & StepFlag.RAN_OUT) and not flags & StepFlag.BEGAN_EPOCH


def why_ended(one: RankEvidence) -> Hint | None:
    """Return `Hint.LEFT_LOOP` if no `DataLoader` of the rank was exhausted, else ``None``."""
    return None if one.state.flags & StepFlag.RAN_OUT else Hint.LEFT_LOOP


def _workers(evidence: RankEvidence) -> str | None:
    """Return a clause that names the rank's blocked DataLoader workers or, if no worker is blocked, all workers."""
    held = [f"process {one.pid} is {_STATES[one.state]}" for one in evidence.workers if one.state in _STATES]
    if held:
        return f"of its workers, {', '.join(held[:4])}"
    locked = [one.pid for one in evidence.workers if one.wait is Wait.LOCK]
    if locked:
        return f"its {'worker waits' if len(locked) == 1 else 'workers wait'} for a lock: {listed(locked, 4)}"
    if not evidence.workers:
        return "it has no workers, so the training process loads the data itself"
    return f"its workers are alive: {listed([one.pid for one in evidence.workers], 4)}"


_STATES = {"T": "stopped", "t": "held by a debugger", "D": "waiting for a disk"}


_LOCKS = re.compile(r"/(?:threading|queue|filelock/.*|multiprocessing/\w+|subprocess|selectors|socket|ssl)\.py$")
_SOCKETS = re.compile(r"/(?:socket|ssl|http/.*|urllib3/.*|requests/.*|httpx/.*|httpcore/.*|grpc/.*)\.py$")
_PROGRAM = re.compile(r"/subprocess\.py$")
_FRAMES_OF_SUBPROCESS = 4
"""number of stack frames between `subprocess.run` and the selector in which it may wait"""
_DEBUGGERS = re.compile(r"/(?:pdb|bdb|cmd|ipdb/.*|pudb/.*|debugpy/.*)\.py$|/IPython/")
_COMPILER = re.compile(r"/torch/(?:_dynamo/convert_frame|_inductor/(?:graph|async_compile))\.py$")
"""pattern for files that are on the stack while torch.compile compiles, but not while compiled code runs"""
_CHECKPOINT = re.compile(r"/torch/distributed/checkpoint/")
_BACKWARD = re.compile(r"/torch/autograd/(?:graph|__init__|function)\.py$")


def is_at_a_lock(stack: Sequence[Frame]) -> bool:
    """Return True if the thread waits for a lock, a queue, a socket or another process."""
    return bool(stack) and _LOCKS.search(stack[-1].file) is not None


def is_at_a_socket(stack: Sequence[Frame]) -> bool:
    """Return True if the thread waits for events in the user's code or in a network library."""
    return bool(stack) and (stack[-1].is_of_user or _SOCKETS.search(stack[-1].file) is not None)


def awaits_a_program(stack: Sequence[Frame]) -> bool:
    """Return True if the thread waits for a program that it started with `subprocess`."""
    return any(_PROGRAM.search(frame.file) for frame in stack[-_FRAMES_OF_SUBPROCESS:])


def is_in_checkpoint(stack: Sequence[Frame]) -> bool:
    """Return True if the thread reads or writes its part of a distributed checkpoint."""
    return any(_CHECKPOINT.search(frame.file) for frame in stack)


def is_compiling(stack: Sequence[Frame]) -> bool:
    """Return True if torch.compile compiles code in the thread, as it may do for a new shape of inputs."""
    return any(_COMPILER.search(frame.file) for frame in stack)


def is_debugged(stack: Sequence[Frame]) -> bool:
    """Return True if a debugger in the same process has stopped the script."""
    return any(_DEBUGGERS.search(frame.file) for frame in stack)


def is_in_engine(stack: Sequence[Frame]) -> bool:
    """Return True if the thread is in the autograd engine, not in a Python function that the engine called."""
    return bool(stack) and _BACKWARD.search(stack[-1].file) is not None


_AT_EXIT = {
    "_finalize_join": "a multiprocessing.Queue still contains items that this process has put into the queue",
    "_python_exit": "a concurrent.futures executor still has work",
    "_shutdown_workers": "the DataLoader's workers do not exit",
    "_shutdown": "a non-daemon thread is still running",
    "_exit_function": "a function registered to run at exit does not return",
}
"""Python function that runs when a process exits → reason why this function may never return"""


def why_no_exit(stack: Sequence[Frame]) -> str | None:
    """Return the reason why the process does not exit; ``None`` if the thread is not in code that runs at exit."""
    functions = {frame.function for frame in stack if not frame.is_of_user}
    return next((why for function, why in _AT_EXIT.items() if function in functions), None)


def place_at_exit(stack: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame outside the `threading` module."""
    return next((frame for frame in reversed(stack) if not frame.file.endswith("/threading.py")), None)


def polls(stack: Sequence[Frame], handles_error: bool = False) -> bool:
    """Return True if the thread is in a ``while`` loop of the innermost user function, or of a function called by it.

    `handles_error`: whether the thread is handling an exception, as between two tries; then any loop counts.
    """
    user = next((number for number, frame in enumerate(reversed(stack)) if frame.is_of_user), None)
    if user is None:
        return False
    return any(
        loop.first <= frame.line <= loop.last
        for frame in stack[len(stack) - 1 - user :]
        for loop in _loops_in(frame.file) or ()
        if loop.is_while or handles_error
    )


def is_in_a_loop(stack: Sequence[Frame]) -> bool | None:
    """Return True if any line of the user's code on the stack is in a loop; ``None`` if no source file can be read."""
    found = [(frame.line, _loops_in(frame.file)) for frame in stack if frame.is_of_user]
    known = [(line, loops) for line, loops in found if loops is not None]
    return any(loop.first <= line <= loop.last for line, loops in known for loop in loops) if known else None


class _Loop(NamedTuple):
    first: int
    last: int
    is_while: bool
    function: int
    """line at which the function that contains the loop begins; 0 if the loop is outside functions"""
    exits: tuple[int, ...]
    """lines with a ``break`` or a ``return`` that exits the loop"""


def loop_left(stack: Sequence[Frame]) -> str | None:
    """Return a clause with the lines at which the last loop before the thread's line can exit early, or ``None``.

    Only the innermost user function with such a loop is considered.
    """
    for frame in reversed(stack):
        if not frame.is_of_user:
            continue
        function = _function_at(frame.file, frame.line)
        loops = [one for one in _loops_in(frame.file) or () if one.last < frame.line and one.function == function]
        if loops:
            left = max(loops, key=lambda one: (one.last, -one.first))
            ways = ", ".join(f"{frame.file}:{line}" for line in left.exits[:_MOST_EXITS])
            return f"its loop can be exited early at {ways}" if ways else None
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
    """Return all loops in a Python file."""
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
    """Yield the lines of statements that exit a loop with this body.

    `in_loop`: whether `nodes` are in a nested loop.
    """
    for node in nodes:
        if isinstance(node, ast.Return) or (isinstance(node, ast.Break) and not in_loop):
            yield node.lineno
        elif not isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield from _exits_of([*ast.iter_child_nodes(node)], in_loop or isinstance(node, _LOOPS))
