"""Read ranks in other processes: on this machine, or on a Dask cluster.

On this machine, ranks are read in as many processes as CPU cores and memory allow. If there are few ranks, several
processes read each rank. On a cluster, workers read the files, return the cache entries, and merge the summaries in a
tree. If a worker is lost, Dask repeats its work on another worker. The cluster may be started in any way: Dask
supports, for example, Slurm, Kubernetes and SSH.
"""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import socket
import time
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from ddpprof import own_files
from ddpprof.child_processes import safe_path, start_resource_tracker
from ddpprof.errors import DdpprofError, how_to_install
from ddpprof.files import Location
from ddpprof.linux_files import available_bytes, own_cores
from ddpprof.load.file_bytes import begin_reading_process
from ddpprof.model import DdpModule
from ddpprof.own_files import choose_temporary_directory
from ddpprof.pipeline.entry import (
    Cache,
    Progress,
    RankTask,
    Watch,
    code_version,
    make_entry,
    num_bytes,
    read_summary,
    run_task,
)
from ddpprof.report.topics import RunSummary, decode, encode, merge_summaries
from ddpprof.signals import children_without_ctrl_c

if TYPE_CHECKING:
    from distributed import Client
    from distributed import Future as Leaf

_BASE_BYTES = 150_000_000
"""memory in bytes that a process needs in addition to the memory for its trace"""
_BYTES_PER_BYTE = 1.5
"""bytes of memory needed per byte of a compressed trace: a process needs 6 % of the JSON size, which is 12 times the
compressed size, plus a margin
"""
_TELL_EVERY_S = 0.2
_WORTH_A_POOL_BYTES = 4_000_000
"""if the files are smaller than this in total, they are read in this process, because that is faster than starting
processes
"""
_MOST_PER_RANK = 4
"""maximum number of processes per rank; with more processes, most of their time would be spent on decompression"""


def processes_for(tasks: Sequence[RankTask], sizes: Sequence[int], jobs: int | None) -> tuple[int, int]:
    """Return the number of ranks to read at a time, and the number of processes per rank.

    If ranks are read one at a time, the current process reads them. `sizes`: size of each task in bytes. `jobs`:
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
    "the process that read this rank's files was killed, possibly because it ran out of memory. Try again with "
    "--jobs 1, or on a machine with more memory"
)


def _run(
    chosen: Sequence[int],
    tasks: Sequence[RankTask],
    cache: Cache,
    num_processes: int,
    per_rank: int,
    progress: Progress,
) -> tuple[list[int], list[int]]:
    """Run the tasks. Return tasks that may have killed a process or run out of memory, and tasks that did not begin."""
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
    cores = len(own_cores() or ()) or os.cpu_count() or 1
    memory = available_bytes()
    if memory is None:
        return cores
    return max(1, min(cores, int(memory / (_BASE_BYTES + _BYTES_PER_BYTE * largest_bytes))))


def _divided(num_processes: int, num_ranks: int) -> tuple[int, int]:
    """Return the number of ranks to read at a time, and the number of processes per rank."""
    at_a_time = max(1, min(num_processes, num_ranks))
    return at_a_time, min(_MOST_PER_RANK, num_processes // at_a_time)


_MERGED_AT_ONCE = 16
_CONNECT_S = 20
_CLOSE_S = 5
_WORKERS_COME_S = 60
_LOOK_EVERY_S = 0.1


def run_on_cluster(
    tasks: Sequence[RankTask], cache: Cache, address: str, watch: Watch
) -> tuple[RunSummary | None, dict[int, str]]:
    """Write a cache entry for each rank. Return the merged summary, and the errors of failed tasks by index.

    The summary is ``None`` if the cluster was lost during the merge, after all entries had been written. At least one
    task is required.
    """
    client = _connected(address)
    try:
        _await_workers(client, address)
        # Send the modules once, in a way that the scheduler can repeat if workers are lost.
        modules = client.submit(_same, tasks[0].modules)
        leaves = {
            client.submit(_entry, replace(_for_others(task), modules=()), modules, pure=False): index
            for index, task in enumerate(tasks)
        }
        failed = _keep(client, leaves, tasks, cache, watch)
        done = [leaf for leaf, index in leaves.items() if index not in failed]
        return _merged_tree(client, done), failed
    except DdpprofError:
        raise
    except Exception as error:
        raise DdpprofError(
            f"lost the connection to the Dask scheduler at {address} ({type(error).__name__}). The results of "
            "ranks that were already read are kept."
        ) from error
    finally:
        client.close(timeout=_CLOSE_S)


def _await_workers(client: Client, address: str) -> None:
    """Wait for a worker. Raises `DdpprofError` if none connects, or if versions differ."""
    try:
        client.wait_for_workers(1, timeout=_WORKERS_COME_S)
    except TimeoutError as error:
        raise DdpprofError(
            f"no worker connected to the Dask scheduler at {address} within {_WORKERS_COME_S} s."
        ) from error
    try:
        versions = set(client.run(code_version).values())
    except Exception as error:
        why = str(error).partition("\n")[0]
        raise DdpprofError(
            f"the Dask workers at {address} do not have this version of ddpprof ({why}). Install this version on the "
            "workers."
        ) from error
    if versions - {code_version()}:
        raise DdpprofError(
            f"the Dask workers at {address} run a different version of ddpprof. Install the same version there."
        )


def _connected(address: str) -> Client:
    """Connect to the scheduler. Raises `DdpprofError` if it does not answer."""
    try:
        from distributed import Client
    except ImportError as error:
        raise DdpprofError(f"--scheduler needs Dask. {how_to_install('distributed')}") from error
    address = _checked(address)
    for part in ("client", "core", "comm"):  # they log every lost connection
        logging.getLogger(f"distributed.{part}").setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:  # TimeoutError is an OSError
        raise DdpprofError(f"no Dask scheduler answers at {address}: {str(error) or type(error).__name__}.") from error
    return client


def _checked(text: str) -> str:
    """Return the address of the scheduler after checking that it accepts connections. Raises `DdpprofError`.

    `text`: address or scheduler file. Without this check, Dask would retry the connection for a long time.
    """
    address = text
    if text.endswith(".json"):
        try:
            address = msgspec.json.decode(Path(text).read_bytes(), type=_SchedulerFile).address
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DdpprofError(f"{text} is not a Dask scheduler file: {error}.") from error
    try:
        parts = urlsplit(address)
        where = (parts.hostname, parts.port)
    except ValueError:
        where = (None, None)
    if where[0] is None or where[1] is None or "://" not in address:
        raise DdpprofError(f"{address} is not the address of a Dask scheduler. Write, for example, tcp://10.0.0.1:8786")
    try:
        socket.create_connection((where[0], where[1]), _CONNECT_S).close()
    except OSError as error:
        raise DdpprofError(f"no Dask scheduler answers at {address}: {error.strerror or error}.") from error
    return address


class _SchedulerFile(msgspec.Struct):
    address: str


def _keep(
    client: Client, leaves: dict[Leaf[bytes], int], tasks: Sequence[RankTask], cache: Cache, watch: Watch
) -> dict[int, str]:
    """Write entries as they arrive. Return the errors of failed tasks, by index."""
    from distributed import KilledWorker

    progress = Progress(watch, [task.files for task in tasks], [num_bytes(task.files) for task in tasks])
    failed = {}
    for leaf in _as_they_come(client, leaves):
        index = leaves[leaf]
        progress.begin(index)
        try:
            entry: bytes = leaf.result()
        except (DdpprofError, CancelledError):  # the client cancels all its requests when it loses the scheduler
            raise
        except KilledWorker:
            failed[index] = "workers that read this rank were killed repeatedly, possibly by the out-of-memory killer"
        except Exception as error:
            if client.status != "running":
                raise
            failed[index] = f"a worker could not read this rank: {type(error).__name__}: {error!s}".partition("\n")[0]
        else:
            cache.write(tasks[index].files, partial(_write, entry))
        progress.end(index)
    return failed


def _as_they_come(client: Client, leaves: Iterable[Leaf[bytes]]) -> Iterator[Leaf[bytes]]:
    """Yield finished futures. Raises `DdpprofError` if all workers are lost and no worker reconnects."""
    left, with_workers = list(leaves), time.monotonic()
    while left:
        done = [leaf for leaf in left if leaf.done()]
        yield from done
        left = [leaf for leaf in left if leaf not in done]
        if client.nthreads():
            with_workers = time.monotonic()
        elif time.monotonic() > with_workers + _WORKERS_COME_S:
            raise DdpprofError(
                f"all workers of the Dask scheduler have been disconnected for {_WORKERS_COME_S} s. The "
                "results of ranks that were already read are kept."
            )
        if not done:
            time.sleep(_LOOK_EVERY_S)


def _write(entry: bytes, part: Path) -> None:
    part.write_bytes(entry)


def _merged_tree(client: Client, leaves: Sequence[Leaf[bytes]]) -> RunSummary | None:
    """Merge the summaries in a tree. Return ``None`` if the cluster is lost."""
    level = [client.submit(_summary_of, leaf, pure=False) for leaf in leaves]
    while len(level) > 1:
        groups = [level[first : first + _MERGED_AT_ONCE] for first in range(0, len(level), _MERGED_AT_ONCE)]
        level = [client.submit(_merge, group, pure=False) for group in groups]
    if not level:
        return RunSummary()
    try:
        (root,) = _as_they_come(client, level)
        return decode(root.result(), RunSummary)
    except Exception:  # noqa: BLE001 (if the workers are lost, this process can merge the entries)
        return None


def _for_others(task: RankTask) -> RankTask:
    """Return the task with absolute paths, for processes on other machines."""

    def absolute(path: Location) -> Location:
        return path.absolute() if isinstance(path, Path) else path

    files = task.files
    directory = absolute(files.directory) if files.directory is not None else None
    return replace(task, files=replace(files, traces=tuple(map(absolute, files.traces)), directory=directory))


def _same(modules: tuple[DdpModule, ...]) -> tuple[DdpModule, ...]:
    return modules


def _entry(task: RankTask, modules: tuple[DdpModule, ...]) -> bytes:
    out = io.BytesIO()
    run_task(replace(task, modules=modules), out)
    return out.getvalue()


def _summary_of(entry: bytes) -> bytes:
    return encode(read_summary(io.BytesIO(entry)))


def _merge(summaries: Sequence[bytes]) -> bytes:
    return encode(merge_summaries([decode(one, RunSummary) for one in summaries]))
