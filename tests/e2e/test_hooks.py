"""`ddpprof.hooks` times buckets and leaves the numbers as DDP makes them without a hook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from jobs import environment

TRAIN = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import ddpprof
dist.init_process_group("gloo")
torch.set_num_threads(1)
def train(hooked):
    torch.manual_seed(0)
    model = DDP(torch.nn.Sequential(*[torch.nn.Linear(33, 33) for _ in range(5)]), bucket_cap_mb=0.01)
    timer = ddpprof.hooks.BucketTimer()
    if hooked:
        model.register_comm_hook(timer, ddpprof.hooks.timed_allreduce_hook)
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(7, 33)).square().mean().backward()
        optimizer.step()
        buckets = timer.take()
    return torch.cat([p.flatten() for p in model.parameters()]), buckets
plain, _ = train(False)
hooked, buckets = train(True)
assert torch.equal(plain, hooked)
assert [b.index for b in sorted(buckets, key=lambda b: b.index)] == list(range(len(buckets))) and len(buckets) > 1
assert sum(b.num_bytes for b in buckets) == plain.numel() * 4
assert all(b.duration_ns > 0 for b in buckets)
print("same")
time.sleep(0.2)
dist.destroy_process_group()
"""


def test_the_hook_keeps_every_bit_with_three_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("same") == 3
