"""Measure the overlap of every rank of a folder with Holistic Trace Analysis; the last line of output is JSON."""

import json
import logging
import sys
import time

from hta.trace_analysis import TraceAnalysis

if __name__ == "__main__":
    logging.disable()
    began = time.perf_counter()
    found = TraceAnalysis(trace_dir=sys.argv[1]).get_comm_comp_overlap(visualize=False)
    seconds = time.perf_counter() - began
    overlaps = [float(value) for value in found.sort_values("rank")["comp_comm_overlap_pctg"]]
    print(json.dumps({"seconds": seconds, "overlap_percent": overlaps}))
