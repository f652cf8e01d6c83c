"""Measure when an accelerator was idle, and why. The trace is processed in blocks of time to save memory.

A block begins at every 100,000th start in the longest table, so it has at most 100,000 rows of that table. It also has
about the same share of the rows of the other tables, unless their work is concentrated in one block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from statistics import median
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ddpprof.engine.finding import Finding, only_known
from ddpprof.engine.numbers import Number
from ddpprof.engine.topic import Topic, View
from ddpprof.intervals import Spans, union_of
from ddpprof.layout import in_ms
from ddpprof.model import UNKNOWN, Collectives, HostRead, Int64Column, Mark, OptimizerFacts, Rank, Trace, Work
from ddpprof.model.backends import FROM_DEVICE, PAGEABLE
from ddpprof.model.record import EMPTY_CACHE
from ddpprof.model.tables import InterruptibleEnum
from ddpprof.topics.script_code import short_line
from ddpprof.topics.steps.breakdown import split_step

BLOCK_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of several tables, sorted by start time. Rows that start at the same time are sorted by table."""

    start_ns: Int64Column
    end_ns: Int64Column
    launched_ns: Int64Column
    """time at which the host launched the work, or `UNKNOWN`"""
    phase: NDArray[np.int8]
    table: NDArray[np.int8]
    """index of the table that contains the row"""


def blocks_of(*tables: Work | Collectives) -> Iterator[Block]:
    """Yield non-empty blocks in time order. Rows that start at the same time are in the same block."""
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
    """Idle time of one step, in ns."""

    launch_bound_ns: Annotated[int, Number("idle time before a kernel that the host launched too late; null on CPU")]
    comm_wait_ns: Annotated[int, Number("idle time directly before or after communication; null on CPU")]
    other_ns: Annotated[int, Number("idle time with other or unknown causes; null on CPU")]
    host_read_ns: Annotated[
        int, Number("part of the launch-bound time that began while the host waited for the device; null on CPU")
    ] = 0
    """part of the launch-bound time that began while the training thread waited for the accelerator, with no work
    queued
    """

    @property
    def late_launch_ns(self) -> int:
        """Launch-bound idle time, excluding `host_read_ns`."""
        return self.launch_bound_ns - self.host_read_ns

    @property
    def idle_ns(self) -> int:
        """Same as ``Breakdown.idle_ns`` of the step."""
        return self.launch_bound_ns + self.comm_wait_ns + self.other_ns


class Cause(IntEnum, metaclass=InterruptibleEnum):
    OTHER = 0
    LAUNCH_BOUND = 1
    COMM_WAIT = 2
    HOST_READ = 3
    """launch-bound, because the host was waiting for the accelerator when the idle time began"""


@dataclass(frozen=True, slots=True)
class Gaps:
    """The busy spans of an accelerator, and the cause of the idle time after each of them."""

    busy: Spans
    cause: NDArray[np.int8]
    """for each busy span, `Cause` of the idle time after it"""


def find_gaps(trace: Trace) -> Gaps | None:
    """Return the idle gaps of the whole trace; ``None`` on CPU."""
    if trace.device == "cpu":
        return None
    finder = _CauseFinder(_latency(trace), _comm_ends(trace), _waits(trace), _read_ends(trace))
    starts, ends, causes = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int8)]
    busy_until = np.iinfo(np.int64).min
    for block in blocks_of(trace.compute, trace.copies, trace.collectives):
        work = _work(block)
        if not len(work.start_ns):
            continue
        latest_end = np.maximum(np.maximum.accumulate(work.end_ns), busy_until)
        before = np.append(busy_until, latest_end[:-1])
        ender = np.flatnonzero(work.start_ns > before)  # the first of several rows with the same start
        starts.append(work.start_ns[ender])
        ends.append(before[ender])
        causes.append(finder.causes(before[ender], work.launched_ns[ender], work.is_comm[ender]))
        busy_until = int(latest_end[-1])
    # Each end and cause belongs to the previous busy span. No work ends the last gap.
    busy = Spans(np.concatenate(starts), np.append(np.concatenate(ends), busy_until)[1:])
    return Gaps(busy, np.append(np.concatenate(causes), np.int8(Cause.OTHER))[1:])


def measure_idle(idle: Spans, gaps: Gaps) -> Idle:
    """Divide the idle time of one step by cause. `idle`: from `split_step` of the same trace."""
    length = idle.end_ns - idle.start_ns
    before = np.searchsorted(gaps.busy.start_ns, idle.start_ns, side="right") - 1  # a step begins with work
    cause = gaps.cause[before]
    late, comm_wait, read = (
        int(length[cause == which].sum()) for which in (Cause.LAUNCH_BOUND, Cause.COMM_WAIT, Cause.HOST_READ)
    )
    return Idle(late + read, comm_wait, int(length.sum()) - late - read - comm_wait, read)


@dataclass(frozen=True, slots=True)
class _CauseFinder:
    latency_ns: int
    comm_ends_ns: Int64Column
    """end times of communication, in ascending order"""
    waits: Spans
    """spans in which the training thread waits for the accelerator"""
    read_ends_ns: Int64Column
    """end times of the copies that the host waits for, in ascending order"""

    def causes(
        self, gap_start_ns: Int64Column, launched_ns: Int64Column, is_comm: NDArray[np.bool_]
    ) -> NDArray[np.int8]:
        """Return the causes of gaps. `launched_ns` and `is_comm` describe the work that ends each gap."""
        is_known = launched_ns != _NEVER
        is_late = is_known & (np.where(is_known, launched_ns, 0) + self.latency_ns > gap_start_ns)
        follows_comm = _is_one_of(self.comm_ends_ns, gap_start_ns)
        waits = is_known & ~is_late & (follows_comm | is_comm)
        is_read = self.waits.contains(gap_start_ns) | _is_one_of(self.read_ends_ns, gap_start_ns)
        late = np.where(is_read, Cause.HOST_READ, Cause.LAUNCH_BOUND)
        return np.where(is_late, late, np.where(waits, Cause.COMM_WAIT, Cause.OTHER)).astype(np.int8)


def _is_one_of(times_ns: Int64Column, asked_ns: Int64Column) -> NDArray[np.bool_]:
    """Return a boolean array: True for each value of `asked_ns` that is in `times_ns`, an ascending array."""
    found: NDArray[np.bool_] = np.append(times_ns, _NEVER)[np.searchsorted(times_ns, asked_ns)] == asked_ns
    return found


@dataclass(frozen=True, slots=True)
class _OrderedWork:
    """Work with a duration above zero, sorted by start, then by launch; unknown launches come last."""

    start_ns: Int64Column
    end_ns: Int64Column
    launched_ns: Int64Column
    is_comm: NDArray[np.bool_]


def _work(block: Block) -> _OrderedWork:
    """Return the work of a block in order. Work of zero duration is excluded, because it cannot end a gap."""
    launched = np.where(block.launched_ns == UNKNOWN, _NEVER, block.launched_ns)
    is_comm = block.table == _COMM
    order = np.lexsort((is_comm, launched, block.start_ns))
    order = order[block.end_ns[order] > block.start_ns[order]]
    return _OrderedWork(block.start_ns[order], block.end_ns[order], launched[order], is_comm[order])


def _comm_ends(trace: Trace) -> Int64Column:
    comm = trace.collectives
    return np.sort(comm.end_ns[comm.end_ns > comm.start_ns])


def _read_ends(trace: Trace) -> Int64Column:
    """Return the times at which copies to pageable host memory end.

    The call that launches such a copy blocks until the copy ends.
    """
    copies = trace.copies
    names = [index for index, name in enumerate(trace.names) if FROM_DEVICE.search(name) and PAGEABLE in name]
    return np.sort(copies.end_ns[np.isin(copies.name, names)])


def _waits(trace: Trace) -> Spans:
    """Return the spans in which a training thread waits for the accelerator.

    If the training threads are unknown, any thread counts.
    """
    host = trace.host_spans
    is_wait = host.mark == Mark.DEVICE_WAIT
    trains = np.unique(host.thread[np.isin(host.mark, _OF_TRAINING)])
    return union_of(host, np.flatnonzero(is_wait & (np.isin(host.thread, trains) | (len(trains) == 0))))


_OF_TRAINING = (Mark.FORWARD, Mark.BACKWARD, Mark.OPTIMIZER, Mark.DATA, Mark.DATA_PARALLEL)


def _latency(trace: Trace) -> int:
    """Return the launch latency in ns. Communication is ignored, because it may run on host threads."""
    delays = [
        int((table.start_ns - table.launched_ns).min(where=table.launched_ns != UNKNOWN, initial=_NEVER))
        for table in (trace.compute, trace.copies)
    ]
    return max(0, min(delays)) if min(delays) != _NEVER else 0


def launch_bound(late_ns: int, view: View) -> Iterator[Finding]:
    """Report an accelerator that is idle because the host launches its next kernel too late."""
    gain_ns = max(0, late_ns - (view.profiler_ns or 0))
    if not view.step_ns or gain_ns < _MUCH * view.step_ns:
        return
    without = "the idle time is shorter without the profiler"
    if view.profiler_ns:
        without = f"the gain does not include the {in_ms(view.profiler_ns)} by which the profiler makes a step longer"
    yield Finding(
        "launch-bound",
        "The accelerator waits for the host",
        f"the accelerator is idle for {in_ms(late_ns)} per step ({late_ns / view.step_ns:.0%} of the step) because "
        f"the next kernel had not been launched yet. Profiling slows the host: {without}",
        f"Launch fewer and larger kernels: {_OF_CUDA if view.has_cuda else _OF_OTHERS}.",
        gain_ns,
        numbers=only_known(launch_bound_ns=late_ns, profiler_ns=view.profiler_ns),
    )


def host_reads(_late_ns: int, view: View) -> Iterator[Finding]:
    """Report an accelerator that is idle because the host reads a result before it launches more work."""
    read_ns = view.host_read_ns
    if read_ns is None or not view.worth(read_ns):
        return
    of_ranks = (tuple(one for one in of.host_reads if not one.empties_cache) for of in view.records.values())
    reads = max(of_ranks, key=_num_calls, default=())
    lines = [
        f"{one.place.rpartition('/')[2]} calls {one.written} {_times(one.num_calls, one.num_steps)} per step"
        f"{f', through torch/{one.library}' if one.library else ''}"
        for one in reads[:_MOST_LINES]
    ]
    of_scaler = any(one.is_of_scaler for one in reads)
    yield Finding(
        "host-reads",
        "The accelerator is idle because the script reads its results"
        + (f" {_times(_num_calls(reads), reads[0].num_steps)} per step" if reads else ""),
        "; ".join((f"the accelerator is idle for {in_ms(read_ns)} per step after these reads", *lines)),
        f"{_OF_SCALER if of_scaler else ''}{_ON_DEVICE}",
        read_ns,
        numbers=only_known(host_read_ns=read_ns, num_lines=len(reads) or None),
    )


_ON_DEVICE = (
    "Keep values on the device: add up losses and metrics as detached tensors, and call .item() only when they are "
    "logged. Replace Python conditions on tensors with torch.where, and copy with non_blocking=True into pinned memory."
)
_OF_SCALER = (
    "GradScaler.step() reads whether gradients overflowed, unless the optimizer is fused: use AdamW(…, fused=True), or "
    "bfloat16 without a GradScaler. "
)


def _times(num_calls: int, num_steps: int) -> str:
    """Return the average number of calls per step as text."""
    return "once" if num_calls == num_steps else f"{num_calls / max(1, num_steps):.3g} times"


def _num_calls(reads: Sequence[HostRead]) -> int:
    return sum(one.num_calls for one in reads)


@dataclass(frozen=True, slots=True)
class RankAllocations:
    """Calls that allocate or free memory of one rank's accelerator, per step; medians over steps."""

    rank: int
    num_steps: int
    num_calls: float
    idle_ns: int
    """total length of the idle gaps in which the host allocated or freed memory"""


def measure_allocations(rank: Rank, steps: Sequence[int]) -> RankAllocations | None:
    """Measure the steps with these indices; return ``None`` if the host allocates and frees no memory in them."""
    trace = rank.trace
    if trace is None or trace.device == "cpu":
        return None
    host = trace.host_spans
    is_call = host.mark == Mark.DEVICE_MEMORY
    numbers = [int(np.count_nonzero(is_call & (host.step == step))) for step in steps]
    idle = [split.idle for step in steps if any(numbers) and (split := split_step(trace, step)) is not None]
    if not idle:
        return None
    calls = union_of(host, is_call)
    idle_ns = [int((gaps.end_ns - gaps.start_ns)[calls.within(gaps.start_ns, gaps.end_ns) > 0].sum()) for gaps in idle]
    return RankAllocations(rank.rank, len(idle), float(median(numbers)), round(median(idle_ns)))


def device_allocations(ranks: Sequence[RankAllocations], view: View) -> Iterator[Finding]:
    """Report accelerator memory that is allocated and freed in most steps instead of being reused."""
    least = min(ranks, key=lambda one: one.idle_ns)
    if least.num_calls < 1 or not view.worth(least.idle_ns):
        return
    emptied = next((one for of in view.records.values() for one in of.host_reads if one.empties_cache), None)
    line = None if emptied is None else short_line(emptied.place)
    yield Finding(
        "device-allocations",
        "The accelerator is idle while the host allocates and frees memory on it"
        + (f", because {line} calls {EMPTY_CACHE}" if line else ""),
        f"{least.num_calls:g} calls such as cudaMalloc and cudaFree per step; the accelerator is idle for "
        f"{in_ms(least.idle_ns)} per step in the gaps in which they run, measured in {least.num_steps} steps of rank "
        f"{least.rank}",
        _EMPTIED if line else _FULL,
        least.idle_ns,
        subject={} if emptied is None else {"line": emptied.place},
        numbers=only_known(idle_ns=least.idle_ns, num_calls=least.num_calls),
    )


_EMPTIED = f"Remove {EMPTY_CACHE} from the training loop. Without this call, torch keeps the memory and uses it again."
_FULL = (
    f"Remove {EMPTY_CACHE} if the training loop calls it. Otherwise, memory is nearly full or fragmented, and torch "
    "frees memory that it soon needs again: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use smaller "
    "batches."
)

_MUCH = 0.05
"""late launches and, on CPU, the optimizer are reported if they cost at least this share of the step"""
_MOST_LINES = 3
_OF_CUDA = (
    "torch.compile(model), with mode='reduce-overhead' (CUDA graphs), fused optimizers (AdamW(…, fused=True)) or a "
    "larger batch"
)
_OF_OTHERS = "torch.compile(model), if it has a backend for this device, or a larger batch"


def optimizer_not_fused(took_ns: int, view: View) -> Iterator[Finding]:
    """Report an optimizer that is not fused, or that runs separate operators for each of many small groups.

    On CPU, an optimizer is reported only if it takes much of the step. Fusing makes Adam three to five times as fast on
    CPU, but hardly speeds up plain SGD, which has no state.
    """
    optimizers = next((one.optimizers for one in view.records.values() if one.optimizers), ())
    unfused = [one for one in optimizers if one.could_be_fused and not one.is_fused]
    if view.device == "cpu":
        unfused = [one for one in unfused if one.state_bytes]
    slow = [one for one in optimizers if one in unfused or _has_small_groups(one)]
    least_ns = _MUCH * (view.step_ns or 0) if view.device == "cpu" else 0
    if view.device is None or not slow or not view.worth(took_ns) or took_ns < least_ns:
        return
    one = max(slow, key=lambda facts: facts.num_groups)
    title, advice = [], []
    if one in unfused:
        title.append("runs each operation separately, although it has a fused implementation")
        advice.append(f"Pass fused=True: {one.name}(…, fused=True). Results may differ because of rounding.")
    if _has_small_groups(one):
        title.append(f"has {one.num_groups} groups for {one.num_parameters} parameters")
        advice.append(
            "Put parameters with the same options into one group: the optimizer runs separate operators for each group."
        )
    yield Finding(
        "optimizer-not-fused",
        f"{one.name} {', and '.join(title)}",
        f"the optimizer takes {in_ms(took_ns)} per step",
        " ".join(advice),
        view.without_profiler(took_ns),
        numbers=only_known(optimizer_ns=took_ns, num_groups=one.num_groups or None),
    )


def _has_small_groups(one: OptimizerFacts) -> bool:
    return one.num_groups >= _MANY_GROUPS and one.num_parameters < _SMALL_GROUP * one.num_groups


_MANY_GROUPS = 20
_SMALL_GROUP = 4
"""parameter groups count as small if they have fewer parameters than this on average"""

ALLOCATIONS: Topic[RankAllocations, tuple[RankAllocations, ...]] = Topic(
    "allocations",
    rules=(device_allocations,),
    of_rank=lambda rank, steps, _modules: measure_allocations(rank, steps),
    rank_type=RankAllocations,
    of_ranks=tuple,
)
IDLE: Topic[None, int] = Topic("idle", rules=(launch_bound, host_reads), of_run=lambda view: view.launch_bound_ns)
"""time in which the accelerator waits for the host to launch work, in ns per step"""
OPTIMIZERS: Topic[None, int] = Topic("optimizers", rules=(optimizer_not_fused,), of_run=lambda view: view.optimizer_ns)
"""computation time of the optimizers, in ns per step"""
