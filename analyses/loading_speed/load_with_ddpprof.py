"""Measure the overlap of every rank of a folder with ddpprof, and print one line of JSON.

As many processes read as there are cores, as in `ddpprof report`, or as the number after FOLDER says; if there are
fewer ranks, several processes read each.
"""

import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import ddpprof


def overlap_of(path: Path, num_processes: int) -> float:
    trace = ddpprof.load_trace(path, num_processes=num_processes)
    return 100 * (ddpprof.measure_overlap(trace, None).hidden_fraction or 0)


if __name__ == "__main__":
    ddpprof.give_back_large_arrays()  # as the command line does
    cores = int(sys.argv[2]) if len(sys.argv) > 2 else os.cpu_count() or 1
    began = time.perf_counter()
    files = sorted(Path(sys.argv[1]).iterdir())
    if len(files) == 1:
        overlaps = [overlap_of(files[0], cores)]
    else:
        with ProcessPoolExecutor(min(len(files), cores), get_context("spawn"), ddpprof.give_back_large_arrays) as pool:
            overlaps = list(pool.map(overlap_of, files, [max(1, cores // len(files))] * len(files)))
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "overlap_percent": overlaps}))
