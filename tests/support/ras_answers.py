"""Answers of NCCL's RAS, in both formats, made by hand after its documentation."""

from __future__ import annotations

import json
from typing import Any


def json_answer(*counts: int, missing: tuple[int, ...] = (), size: int | None = None, **of_ranks: Any) -> str:
    """Return an answer about ranks that have launched so many all-reduces.

    `of_ranks`: ``async_error`` by rank, and ``first_pid``.
    """
    first_pid, errors = of_ranks.get("first_pid", 100), of_ranks.get("async_error", {})
    answered = [
        {
            "rank": rank,
            "host": "10.0.0.1",
            "pid": first_pid + rank,
            "cuda_dev": rank,
            "nvml_dev": rank,
            "status": {"init_state": 0, "async_error": errors.get(rank, 0), "finalize_called": False},
            "collective_counts": {"Broadcast": 2, "AllReduce": count},
        }
        for rank, count in enumerate(counts)
        if rank not in missing
    ]
    left = [
        {"rank": rank, "pid": first_pid + rank, "status": {"unresponsive": True, "considered_dead": False}}
        for rank in missing
    ]
    communicator = {"hash": "0xab", "size": size or len(counts), "ranks": answered, "missing_ranks": left}
    content = {"nccl_version": "2.28.9", "communicators_count": 1, "communicators": [communicator]}
    return f"SERVER PROTOCOL 2\nOK\nOK\n{json.dumps(content, indent=2)}\n"


_JOB = """\
SERVER PROTOCOL 2
OK
ERROR: Unknown command SET FORMAT json
NCCL version 2.26.2 compiled with CUDA 12.8

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          4            1          4        4

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         4         4         4   RUNNING  MISMATCH

"""

ONE_BEHIND = f"""{_JOB}Errors
======

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 101
  Rank 1 has launched up to operation 100 -- GPU 1 managed by process 101 on node 10.0.0.1

"""
NONE_LAUNCHED = ONE_BEHIND.replace("has launched up to operation 100", "has not launched any operations")
HALVES = f"""{_JOB}Errors
======

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  2 ranks have launched up to operation 101
  2 ranks have launched up to operation 100

"""
MISSING = f"""{_JOB}Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 103 on node 10.0.0.1 managing GPU 3

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 3 -- GPU 3 managed by process 103 on node 10.0.0.1

#0-0 (cf264af53edbe986) ERROR
  Asynchronous error on 1 rank
  Rank 0 reported Remote process error -- GPU 0 managed by process 100 on node 10.0.0.1

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

"""
OF_2_24 = f"""{_JOB}Errors
======

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  6 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 5 -- GPU 5 managed by process 105 on node 10.0.0.1
  Rank 7 -- GPU 7 managed by process 107 on node 10.0.0.1

"""
HEALTHY = f"{_JOB.replace('MISMATCH', '      OK')}Errors\n======\n\nWarnings\n========\n\n"
