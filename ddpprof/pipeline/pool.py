"""Read ranks in as many processes as CPU cores and memory allow, and in several per rank if there are few ranks."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import MutableSequence, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial

from ddpprof import own_files
from ddpprof.child_processes import safe_path, start_resource_tracker
from ddpprof.linux_files import available_bytes
from ddpprof.load.file_bytes import begin_reading_process
from ddpprof.own_files import choose_temporary_directory
from ddpprof.pipeline.entry import Cache, Progress, RankTask, make_entry
from ddpprof.signals import children_without_ctrl_c

_BASE_BYTES = 150_000_000
"""memory that a process needs in addition to the trace"""
_BYTES_PER_BYTE = 1.5
"""memory per byte of a compressed trace: 6 % of its JSON, which is 12 times as large, and a margin"""
_TELL_EVERY_S = 0.2
_WORTH_A_POOL_BYTES = 4_000_000
"""total size up to which reading in this process is faster than starting others"""
_MOST_PER_RANK = 4
"""maximum number of processes per rank; with more, processes would mostly decompress"""


def processes_for(tasks: Sequence[RankTask], sizes: Sequence[int], jobs: int | None) -> tuple[int, int]:
    """Return the number of ranks to read at a time, and the number of processes per rank.

    If ranks are read one at a time, this is done in the current process. `sizes`: size of each task in bytes. `jobs`:
    number of processes; ``None`` for as many as possible.
    """
    num_processes, per_rank = _divided(jobs or _that_fit(max(sizes, default=0)), len(tasks))
    is_known = all(size or not task.files.traces for size, task in zip(sizes, tasks, strict=True))
    is_little = is_known and sum(sizes) < _WORTH_A_POOL_BYTES
    return (1 if jobs is None and is_little else num_processes), per_rank


def read_in_processes(
    tasks: Sequence[RankTask], cache: Cache, num_processes: int, per_rank: int, progress: Progress
) -> dict[int, str]:
    """Write an entry for each rank. Return the errors of failed tasks, by index."""
    failed: dict[int, str] = {}
    left = list(range(len(tasks)))
    while left:
        with safe_path():
            choose_temporary_directory()  # before `multiprocessing` does
            start_resource_tracker()
            suspects, left = _run(left, tasks, cache, num_processes, per_rank, progress)
            # If a process runs out of memory, the system kills it, and the pool does not say which task it ran.
            failed |= {index: _KILLED for index in suspects if _run([index], tasks, cache, 1, 1, progress)[0]}
        num_processes = max(1, num_processes // 2)
    return failed


_KILLED = (
    "the process that read it was killed, possibly because it ran out of memory. Try again with --jobs 1, or on a "
    "machine with more memory"
)


def _run(
    chosen: Sequence[int],
    tasks: Sequence[RankTask],
    cache: Cache,
    num_processes: int,
    per_rank: int,
    progress: Progress,
) -> tuple[list[int], list[int]]:
    """Return the tasks that may have killed a process or run out of memory, and the tasks that have not begun."""
    # Use spawn, because forking a process with threads may deadlock.
    context, of_caller = multiprocessing.get_context("spawn"), multiprocessing.active_children()
    read_bytes = context.RawArray("q", len(tasks))
    pool = ProcessPoolExecutor(num_processes, context, _begin_process, (read_bytes,))
    running: dict[Future[None], int] = {}
    waiting = list(reversed(chosen))
    unfinished: list[int] = []
    is_broken = False
    try:
        while waiting or running:
            while waiting and len(running) < num_processes and not is_broken:
                index = waiting.pop()
                progress.begin(index)
                try:
                    with children_without_ctrl_c():
                        running[pool.submit(_make_entry, index, tasks[index], cache, per_rank)] = index
                except BrokenProcessPool:
                    waiting.append(index)
                    is_broken = True
            if not running:
                break
            for index in running.values():
                progress.read(index, read_bytes[index])
            for future in wait(running, _TELL_EVERY_S, FIRST_COMPLETED).done:
                index = running.pop(future)
                try:
                    future.result()
                    progress.end(index)
                except BrokenProcessPool:
                    unfinished.append(index)
                    is_broken = True
                except MemoryError:
                    unfinished.append(index)
        pool.shutdown()
    except BaseException:
        for process in multiprocessing.active_children():
            if process not in of_caller:
                process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    finally:
        own_files.remove_left_parts(cache.folder)
    return unfinished, list(reversed(waiting))


def _begin_process(read_bytes: MutableSequence[int]) -> None:
    global _read_bytes  # noqa: PLW0603 (shared memory can only be passed when a process starts)
    _read_bytes = read_bytes
    begin_reading_process()


_read_bytes: MutableSequence[int] = []
"""number of bytes read for each task; shared by all processes"""


def _make_entry(index: int, task: RankTask, cache: Cache, num_processes: int) -> None:
    make_entry(task, cache, partial(_read_bytes.__setitem__, index), num_processes)


def _that_fit(largest_bytes: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = available_bytes()
    if memory is None:
        return cores
    return max(1, min(cores, int(memory / (_BASE_BYTES + _BYTES_PER_BYTE * largest_bytes))))


def _divided(num_processes: int, num_ranks: int) -> tuple[int, int]:
    """Return the number of ranks to read at a time, and the number of processes per rank."""
    at_a_time = max(1, min(num_processes, num_ranks))
    return at_a_time, min(_MOST_PER_RANK, num_processes // at_a_time)
