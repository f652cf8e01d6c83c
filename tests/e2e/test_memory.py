"""Memory of real processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import QUICK, Run, on_ranks

from ddpprof.doctor.installation import SCRIPTS

GPU_SCRIPTS = Path(__file__).resolve().parents[1] / "gpu" / "scripts"

MORE_BYTES = 300 * 10**6

KEEPS = f"""
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DDP(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = torch.ones({MORE_BYTES} // 4) if dist.get_rank() == 1 else None
for step in range(20):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
dist.barrier()
time.sleep(0.2)  # gloo's threads let go of the last gradients; torch aborts if Python ends before that
dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_rank_that_keeps_more_is_named(tmp_path: Path, ddpprof: Run, report: Callable[[str], dict[str, Any]]) -> None:
    (tmp_path / "keeps.py").write_text(KEEPS)
    done = ddpprof("trace", "--quiet", "--out", "run", *QUICK, *on_ranks(2, "keeps.py"))
    assert done.returncode == 0, done.stderr
    shown = report("run")
    first, second = shown["memory"]
    assert (first["rank"], second["rank"], first["devices"], second["devices"]) == (0, 1, [], [])
    for memory in (first, second):
        assert 10**8 < memory["steady_rss_bytes"] <= memory["peak_rss_bytes"] < 4 * 10**9
    assert abs(second["steady_rss_bytes"] - first["steady_rss_bytes"] - MORE_BYTES) < 0.1 * MORE_BYTES
    (finding,) = [finding for finding in shown["findings"] if finding["rule"] == "memory-imbalance"]
    assert finding["title"].startswith("Rank 1 holds 0.")


TRAINS = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DDP(torch.nn.Linear(4000, 4000, bias=False), gradient_as_bucket_view=bool(os.environ.get("VIEWS")))
optimizer = torch.optim.Adam(model.parameters())
for step in range(20):
    model(torch.randn(1, 4000)).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
dist.barrier()
dist.destroy_process_group()
"""
PARAMETER_BYTES = 4 * 4000 * 4000


def test_the_memory_of_ddp_is_what_torch_and_the_process_hold(
    tmp_path: Path, ddpprof: Run, report: Callable[[str], dict[str, Any]]
) -> None:
    """Views of buckets save what the report of the run without them says, as the processes' memory shows."""
    (tmp_path / "trains.py").write_text(TRAINS)
    memory = {}
    for run, environment in {"copies": {}, "views": {"VIEWS": "1"}}.items():
        done = ddpprof("trace", "--quiet", "--out", run, *QUICK, *on_ranks(2, "trains.py"), **environment)
        assert done.returncode == 0, done.stderr
        memory[run] = report(run)["memory"][0]
    copies, views = memory["copies"]["model"], memory["views"]["model"]
    assert copies == {
        "parameter_bytes": PARAMETER_BYTES,
        "gradient_bytes": PARAMETER_BYTES,
        "bucket_bytes": PARAMETER_BYTES,
        "optimizer_bytes": 2 * PARAMETER_BYTES + 4,
        "zero_saves_bytes": PARAMETER_BYTES + 2,
        "zero_receives_bytes": PARAMETER_BYTES // 2,
    }
    assert views == {**copies, "gradient_bytes": 0}
    saved = memory["copies"]["steady_rss_bytes"] - memory["views"]["steady_rss_bytes"]
    assert abs(saved - PARAMETER_BYTES) < 0.1 * PARAMETER_BYTES


@pytest.mark.parametrize("part", ["forward", "backward", "optimizer", "other"])
def test_the_part_of_the_step_with_the_peak_is_named(
    part: str, ddpprof: Run, report: Callable[[str], dict[str, Any]]
) -> None:
    job = (str(GPU_SCRIPTS / "peaks.py"), "--part", part)
    done = ddpprof("trace", "--quiet", "--out", "run", *QUICK, *job, PYTHONPATH=str(SCRIPTS))
    assert done.returncode == 0, done.stderr
    for memory in report("run")["memory"]:
        assert memory["peak_in"] == part
        assert memory["peak_rss_bytes"] > memory["steady_rss_bytes"] + 3.5e8, "100 million floats"
