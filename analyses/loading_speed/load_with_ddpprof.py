"""One process, and those that it starts: the overlap of every rank of a folder, with ddpprof. Prints one line of JSON.

As `ddpprof report` does by default, as many processes read as there are cores, or as FOLDER is followed by: where ranks
are fewer, several read each. `peak_bytes` is the sum of the peaks of this process and of those that it started; with
several ranks, of this one.
"""

import json
import multiprocessing
import os
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from ddpprof.load.folder import load_trace
from ddpprof.load.heap import give_back_large_arrays
from ddpprof.load.limits import DEFAULT_LIMITS
from ddpprof.measures.overlap import measure_overlap

KIB = 1024


def overlap_of(path: Path, num_processes: int) -> float:
    trace = load_trace(path, DEFAULT_LIMITS, num_processes)
    return 100 * (measure_overlap(trace, None).hidden_fraction or 0)


def peak_bytes(num_helpers: int) -> int:
    """The largest helper's counts for each. What keeps account of shared memory for them still runs."""
    own, helper = (resource.getrusage(whose).ru_maxrss for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    running = [child for task in Path("/proc/self/task").glob("*/children") for child in task.read_text().split()]
    lines = [line for child in running for line in Path(f"/proc/{child}/status").read_text().splitlines()]
    still = sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return (own + num_helpers * helper + still) * KIB


if __name__ == "__main__":
    give_back_large_arrays()  # as the command line does
    cores = int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count() or 1
    began = time.perf_counter()
    files = sorted(Path(sys.argv[1]).iterdir())
    if len(files) == 1:
        overlaps = [overlap_of(files[0], cores)]
    else:
        with ProcessPoolExecutor(min(len(files), cores), get_context("spawn"), give_back_large_arrays) as pool:
            overlaps = list(pool.map(overlap_of, files, [max(1, cores // len(files))] * len(files)))
    seconds = time.perf_counter() - began
    assert not multiprocessing.active_children()
    peak = peak_bytes(cores - 1 if len(files) == 1 else 0)
    print(json.dumps({"seconds": seconds, "peak_bytes": peak, "overlap_percent": overlaps}))
