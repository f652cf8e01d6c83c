"""The profiled steps end by themselves, also where no step ends."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpprof.record.bounds import Bounds

TRAINING = """
import gzip, json, os, sys, torch, torch.distributed as dist
import ddpprof
torch.set_num_threads(1)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo")

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).sum().backward()
        optimizer.step()

with ddpprof.profile(sys.argv[1], skip_first=3, cost_steps=8, warmup=1, steps=5):
    train(13)
    x, before = torch.randn(8, 16), resident()
    with torch.no_grad():
        for _ in range(300_000):
            x.add_(1).relu_()
    grown = [resident() - before]
    train(int(sys.argv[2]))
print(json.dumps([*grown, resident() - before]))
"""


@pytest.mark.parametrize("more", [0, 6])
def test_a_validation_in_the_profiled_steps_takes_no_memory_and_is_left_out(more: int, tmp_path: Path) -> None:
    """600,000 operators without an optimizer's step: before there were bounds, 435 MB and 24 s."""
    words = [sys.executable, "-c", TRAINING, "run", str(more)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert max(json.loads(done.stdout.splitlines()[-1])) < 100_000_000  # gloo itself may say something before
    trace = json.loads(gzip.decompress((tmp_path / "run" / "rank-0.trace.json.gz").read_bytes()))
    assert len(trace["traceEvents"]) < 300_000  # of four millions: the profiler's stop takes some 20 µs for each
    steps = [json.loads(line) for line in (tmp_path / "run" / "rank-0.steps.jsonl").read_text().splitlines()]
    modes = [step["mode"] for step in steps if step["number"] > 11]
    assert modes == (["profiled", "cut", "profiled", "profiled", "profiled"] if more else ["profiled"])


def bounds(most_seconds: float = 100.0, most_bytes: int = 1 << 40) -> tuple[Bounds, list[float]]:
    asked: list[float] = []

    def leave_out() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 1  # at the first time it was within a backward pass

    return Bounds(leave_out, most_seconds, most_bytes), asked


def work_for(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100))


def work_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end:
        sum(range(100))


def test_a_step_that_does_not_end_is_left_out_once() -> None:
    one, asked = bounds(most_seconds=0.1)
    one.step_begins(profiled=False)
    one.step_ends(usual=True)
    one.step_begins(profiled=True)
    work_until(lambda: len(asked) == 2)
    work_for(0.2)
    one.end()
    assert len(asked) == 2


def test_a_usual_step_is_profiled_to_its_end() -> None:
    one, asked = bounds()
    one.step_begins(profiled=False)
    work_for(1.0)
    one.step_ends(usual=True)
    one.step_begins(profiled=True)
    held = bytearray(32 << 20)
    held[:: 1 << 12] = b"x" * (len(held) >> 12)
    work_for(0.1)
    one.step_ends(usual=True)
    work_for(0.3)
    one.end()
    assert asked == []
    assert one.exceeded() is None


def test_what_all_profiled_steps_may_take_is_bounded() -> None:
    one, _ = bounds(most_bytes=16 << 20)
    assert one.exceeded() is None
    one.step_begins(profiled=True)
    one.step_ends(usual=True)
    held = bytearray(64 << 20)
    held[:: 1 << 12] = b"x" * (len(held) >> 12)
    assert "--most-memory" in (one.exceeded() or "")
    one.end()
    late, _ = bounds(most_seconds=0.01)
    late.step_begins(profiled=True)
    late.step_ends(usual=True)
    time.sleep(0.05)
    assert "--most-seconds" in (late.exceeded() or "")
    late.end()
