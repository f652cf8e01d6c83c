"""What did an accelerator do? The trace is processed in blocks of time, to save memory.

A block begins with every 100,000th start of the longest table, and so has at most as many of its rows. It has about the
same share of other tables, unless their work is concentrated in one block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ddpprof.engine.finding import Finding, in_ms, only_known
from ddpprof.engine.numbers import Number
from ddpprof.engine.topic import Topic, View
from ddpprof.intervals import Spans
from ddpprof.model import UNKNOWN, Collectives, Int64Column, Trace, Work
from ddpprof.model.tables import InterruptibleEnum

BLOCK_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of several tables, sorted by start, and by table for equal starts."""

    start_ns: Int64Column
    end_ns: Int64Column
    launched_ns: Int64Column
    """launch time, or `UNKNOWN`"""
    phase: NDArray[np.int8]
    table: NDArray[np.int8]
    """index of the table"""


def blocks_of(*tables: Work | Collectives) -> Iterator[Block]:
    """Yield non-empty blocks in time order; equal starts are in one block."""
    cuts = np.unique(max(tables, key=len).start_ns[BLOCK_ROWS::BLOCK_ROWS])
    bounds = [[0, *np.searchsorted(table.start_ns, cuts).tolist(), len(table)] for table in tables]
    for block in range(len(cuts) + 1):
        rows = [slice(of_table[block], of_table[block + 1]) for of_table in bounds]
        if any(some.stop > some.start for some in rows):
            yield _block(tables, rows)


def _block(tables: Sequence[Work | Collectives], rows: Sequence[slice]) -> Block:
    of_tables = list(zip(tables, rows, strict=True))
    start = np.concatenate([table.start_ns[some] for table, some in of_tables])
    end = np.concatenate([table.end_ns[some] for table, some in of_tables])
    launched = np.concatenate([table.launched_ns[some] for table, some in of_tables])
    phase = np.concatenate([table.phase[some] for table, some in of_tables])
    which = np.repeat(np.arange(len(tables), dtype=np.int8), [some.stop - some.start for some in rows])
    order = np.argsort(start, kind="stable")
    return Block(start[order], end[order], launched[order], phase[order], which[order])


_NEVER = np.iinfo(np.int64).max
_COMM = 2


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle time of one step, ns."""

    launch_bound_ns: Annotated[int, Number("idle time because the host launched the next work too late; null on CPU")]
    comm_wait_ns: Annotated[int, Number("idle time around communication; null on CPU")]
    other_ns: Annotated[int, Number("idle time with another or an unknown cause; null on CPU")]

    @property
    def idle_ns(self) -> int:
        """``Breakdown.idle_ns`` of the same step."""
        return self.launch_bound_ns + self.comm_wait_ns + self.other_ns


class Cause(IntEnum, metaclass=InterruptibleEnum):
    OTHER = 0
    LAUNCH_BOUND = 1
    COMM_WAIT = 2


@dataclass(frozen=True, slots=True)
class Gaps:
    """The busy spans of an accelerator, and why it was idle after each."""

    busy: Spans
    cause: NDArray[np.int8]
    """`Cause` for each busy span"""


def find_gaps(trace: Trace) -> Gaps | None:
    """Find the gaps of the whole trace; ``None`` on CPU."""
    if trace.device == "cpu":
        return None
    finder = _CauseFinder(_latency(trace), _comm_ends(trace))
    starts, ends, causes = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int8)]
    busy_until = np.iinfo(np.int64).min
    for block in blocks_of(trace.compute, trace.copies, trace.collectives):
        work = _work(block)
        if not len(work.start_ns):
            continue
        latest_end = np.maximum(np.maximum.accumulate(work.end_ns), busy_until)
        before = np.append(busy_until, latest_end[:-1])
        ender = np.flatnonzero(work.start_ns > before)  # of several with the same start, the first
        starts.append(work.start_ns[ender])
        ends.append(before[ender])
        causes.append(finder.causes(before[ender], work.launched_ns[ender], work.is_comm[ender]))
        busy_until = int(latest_end[-1])
    # Each end and cause is for the previous busy span; nothing ends the last gap.
    busy = Spans(np.concatenate(starts), np.append(np.concatenate(ends), busy_until)[1:])
    return Gaps(busy, np.append(np.concatenate(causes), np.int8(Cause.OTHER))[1:])


def measure_idle(idle: Spans, gaps: Gaps) -> Idle:
    """Divide the idle time of one step, which is from `split_step` of the same trace."""
    length = idle.end_ns - idle.start_ns
    before = np.searchsorted(gaps.busy.start_ns, idle.start_ns, side="right") - 1  # a step begins with work
    cause = gaps.cause[before]
    launch_bound, comm_wait = (int(length[cause == which].sum()) for which in (Cause.LAUNCH_BOUND, Cause.COMM_WAIT))
    return Idle(launch_bound, comm_wait, int(length.sum()) - launch_bound - comm_wait)


@dataclass(frozen=True, slots=True)
class _CauseFinder:
    latency_ns: int
    comm_ends_ns: Int64Column
    """times in ascending order"""

    def causes(
        self, gap_start_ns: Int64Column, launched_ns: Int64Column, is_comm: NDArray[np.bool_]
    ) -> NDArray[np.int8]:
        """Return the causes of gaps, from the launch of the work that ends them and whether it is communication."""
        is_known = launched_ns != _NEVER
        is_late = is_known & (np.where(is_known, launched_ns, 0) + self.latency_ns > gap_start_ns)
        place = np.searchsorted(self.comm_ends_ns, gap_start_ns)
        follows_comm = np.append(self.comm_ends_ns, _NEVER)[place] == gap_start_ns
        waits = is_known & ~is_late & (follows_comm | is_comm)
        return np.where(is_late, Cause.LAUNCH_BOUND, np.where(waits, Cause.COMM_WAIT, Cause.OTHER)).astype(np.int8)


@dataclass(frozen=True, slots=True)
class _OrderedWork:
    """Work sorted by start, then by launch; unknown launches come last. Work of zero length ends no gap."""

    start_ns: Int64Column
    end_ns: Int64Column
    launched_ns: Int64Column
    is_comm: NDArray[np.bool_]


def _work(block: Block) -> _OrderedWork:
    """Sort a block of compute, copies and communication."""
    launched = np.where(block.launched_ns == UNKNOWN, _NEVER, block.launched_ns)
    is_comm = block.table == _COMM
    order = np.lexsort((is_comm, launched, block.start_ns))
    order = order[block.end_ns[order] > block.start_ns[order]]
    return _OrderedWork(block.start_ns[order], block.end_ns[order], launched[order], is_comm[order])


def _comm_ends(trace: Trace) -> Int64Column:
    comm = trace.collectives
    return np.sort(comm.end_ns[comm.end_ns > comm.start_ns])


def _latency(trace: Trace) -> int:
    """Return the launch latency, ns, without communication, which host threads may do."""
    delays = [
        int((table.start_ns - table.launched_ns).min(where=table.launched_ns != UNKNOWN, initial=_NEVER))
        for table in (trace.compute, trace.copies)
    ]
    return max(0, min(delays)) if min(delays) != _NEVER else 0


def launch_bound(launch_bound_ns: int, view: View) -> Iterator[Finding]:
    """Report an accelerator that idles because the host has not launched its next kernel yet."""
    if not view.step_ns or launch_bound_ns < 0.05 * view.step_ns:
        return
    yield Finding(
        "launch-bound",
        "The accelerator waits for the host",
        f"{in_ms(launch_bound_ns)} per step, {launch_bound_ns / view.step_ns:.0%} of the step: the kernel that ends "
        "the gap had not been launched when the gap began. Profiling slows the host, so the gaps are shorter in "
        "steps without the profiler",
        f"Launch fewer and larger kernels: {_OF_CUDA if view.has_cuda else _OF_OTHERS}. Avoid .item() and .cpu() in "
        "the step.",
        launch_bound_ns,
        numbers=only_known(launch_bound_ns=launch_bound_ns),
    )


_OF_CUDA = (
    "torch.compile(model), with mode='reduce-overhead' (CUDA graphs), fused optimizers (AdamW(…, fused=True)) or a "
    "larger batch"
)
_OF_OTHERS = "torch.compile(model), if it has a backend for this device, or a larger batch"


IDLE: Topic[None, int] = Topic("idle", rules=(launch_bound,), of_run=lambda view: view.launch_bound_ns)
"""time that the accelerator waits for the host's launches, ns per step"""
