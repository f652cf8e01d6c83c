"""RPC beside DDP: calls are counted, and are not taken for DDP's communication."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from jobs import QUICK, Run, outside_checkout, script

WIDTH, BATCH = 16, 8
INDICES, VECTORS = 8 * BATCH, 4 * BATCH * WIDTH
"""bytes of a batch of indices, and of embeddings"""

EVERY_STEP = {
    ("server", "lookup", "sync", BATCH, INDICES, VECTORS),
    ("server", "lookup", "async", 1, INDICES, VECTORS),
    ("server", "push", "sync", 1, INDICES + VECTORS, 0),
}


@pytest.mark.long
def test_two_trainers_and_a_parameter_server(start: Run, ddpprof: Run, report: Callable[[str], dict[str, Any]]) -> None:
    bare = start(sys.executable, *script("parameter_server.py"))
    done = ddpprof("trace", "--quiet", "--out", "run", *QUICK, *script("parameter_server.py"))
    assert (done.returncode, done.stdout) == (0, bare.stdout)
    assert bare.stdout.startswith("params-sha256")
    assert "ddpprof: " not in outside_checkout(done.stderr)
    shown = report("run")
    assert [rank["rank"] for rank in shown["rpc"]] == [0, 1]
    for rank in shown["rpc"]:
        found = {
            (c["callee"], c["function"], c["kind"], c["num_calls"], c["request_bytes"], c["reply_bytes"])
            for c in rank["calls"]
        }
        assert found == EVERY_STEP
        assert rank["num_sync_calls"] == BATCH + 1
        assert all(call["latency_ns"] > 0 for call in rank["calls"])
        assert 0 < rank["longest_wait_ns"] <= rank["waited_ns"]
    assert shown["job"]["world_size"] == 2, "the server is no rank of DDP"
    assert {row["kind"] for row in shown["across"]["collectives"]} == {"all_reduce"}
    assert [[step["num_comm_kernels"] for step in rank["steps"]] for rank in shown["ranks"]] == [[1, 1, 1]] * 2
    assert shown["outside"] == []
