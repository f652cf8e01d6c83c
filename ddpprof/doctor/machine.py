"""Checks of the machine's resources: disk space, shared memory, clocks, cores and memory."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from ddpprof.doctor.check import CheckResult, Context, judge, skip
from ddpprof.linux_files import cpu_quota
from ddpprof.pipeline.pool import available_bytes
from ddpprof.scratch import choose_temporary_directory

_MB = 1_000_000
_DISK_BYTES = 1000 * _MB
"""minimum disk space in bytes, for traces of a few steps of many ranks"""
_SHM_BYTES = 256 * _MB
"""minimum shared memory in bytes, for batches of DataLoader workers and NCCL's buffers; Docker gives 64 MiB by default
"""
_MEMORY_BYTES = 2000 * _MB
_CLOCK_S = 0.5
_CLOCK_PPM = 500
"""maximum rate, in ppm, at which time daemons slew a clock"""


def check_disk(context: Context) -> Iterator[CheckResult]:
    """Check that there is space for a run in the user's folder, and in the folder for temporary files."""
    temporary = choose_temporary_directory()
    free = {"here": shutil.disk_usage(context.out).free, "for temporary files": shutil.disk_usage(temporary).free}
    where = min(free, key=lambda name: free[name])
    least = free[where]
    yield judge(
        "disk",
        least >= _DISK_BYTES,
        f"at least {_DISK_BYTES // _MB} MB free",
        f"{least // _MB} MB {where}",
        "Traces may not fit. Free some space, or record with --out on another disk.",
    )


def check_shared_memory(_context: Context) -> Iterator[CheckResult]:
    """Check that /dev/shm is large enough for DataLoader workers and NCCL."""
    folder = Path("/dev/shm")  # noqa: S108 (it is shared memory)
    if not folder.is_dir():
        yield skip("shared-memory", "this system has no /dev/shm")
        return
    free = shutil.disk_usage(folder).free
    yield judge(
        "shared-memory",
        free >= _SHM_BYTES,
        f"at least {_SHM_BYTES // _MB} MB free",
        f"{free // _MB} MB",
        "DataLoader workers and NCCL may be killed by SIGBUS. In Docker, start with --shm-size=1g or --ipc=host.",
    )


def check_clock(_context: Context) -> Iterator[CheckResult]:
    """Check that the clocks used for steps and for kernels run at the same rate, and that neither jumps."""
    wall_ns, steady_ns = time.time_ns(), time.perf_counter_ns()
    time.sleep(_CLOCK_S)
    wall_ns, steady_ns = time.time_ns() - wall_ns, time.perf_counter_ns() - steady_ns
    ppm = abs(wall_ns - steady_ns) / steady_ns * 1e6
    yield judge(
        "clock",
        ppm <= _CLOCK_PPM,
        f"clocks within {_CLOCK_PPM} ppm of each other",
        f"{ppm:.0f} ppm",
        "The system clock jumped or drifts: steps on different hosts cannot be compared. Check the time service.",
    )


def check_limits(context: Context) -> Iterator[CheckResult]:
    """Check that this process may use enough cores and memory for the ranks."""
    ranks = max(2, context.gpus or 0)
    cores = min(len(os.sched_getaffinity(0)), cpu_quota() or float("inf"))
    yield judge(
        "cores",
        cores >= ranks,
        f"at least {ranks}, one per rank",
        f"{cores:g}",
        "Ranks share a core, so times are not meaningful. Give the container more cores (docker run --cpus).",
    )
    memory = available_bytes()
    if memory is None:
        yield skip("memory", "this system does not report how much memory is available")
        return
    yield judge(
        "memory",
        memory >= _MEMORY_BYTES,
        f"at least {_MEMORY_BYTES // _MB} MB",
        f"{memory // _MB} MB",
        "Ranks may run out of memory and be killed. Give the container more memory (docker run --memory), or end other "
        "processes.",
    )
