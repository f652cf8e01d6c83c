"""One process: the overlap of every rank of a folder, with ddpprof. Prints one line of JSON."""

import json
import os
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from ddpprof.load.folder import load_trace
from ddpprof.load.heap import give_back_large_arrays
from ddpprof.measures.overlap import measure_overlap


def overlap_of(path: Path) -> float:
    return 100 * (measure_overlap(load_trace(path), None).hidden_fraction or 0)


if __name__ == "__main__":
    give_back_large_arrays()  # as the command line does
    began = time.perf_counter()
    files = sorted(Path(sys.argv[1]).iterdir())
    if len(files) == 1:
        overlaps = [overlap_of(files[0])]
    else:
        with ProcessPoolExecutor(
            min(len(files), os.cpu_count() or 1), get_context("spawn"), give_back_large_arrays
        ) as pool:
            overlaps = list(pool.map(overlap_of, files))
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak_bytes": peak, "overlap_percent": overlaps}))
