"""Reduce gradients in three ways on two, three and four hosts, and count each interface's bytes. Needs root.

python analyses/allreduce_algorithms/collect.py
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import RECORDINGS, begin_recording, end_recording

HERE = Path(__file__).resolve().parent
RATE = "1gbit"
NUM_HOSTS = (2, 3, 4)
NUM_LAYERS, WIDTH, BATCH = 4, 512, 8
"""A model with 4 MiB of gradients and next to no computation."""
COUNTED_STEPS = 10


def gather_and_broadcast(_state, bucket):
    """Average by hand: every rank sends all gradients to rank 0, which sends the mean back to every rank."""
    import torch
    import torch.distributed as dist

    mine, world_size = bucket.buffer(), dist.get_world_size()
    if dist.get_rank() == 0:
        others = [torch.empty_like(mine) for _ in range(1, world_size)]
        for request in [dist.irecv(other, rank) for rank, other in enumerate(others, 1)]:
            request.wait()
        for other in others:
            mine += other
        mine /= world_size
        for request in [dist.isend(mine, rank) for rank in range(1, world_size)]:
            request.wait()
    else:
        dist.send(mine, 0)
        dist.recv(mine, 0)
    return _done(mine)


def collectives(_state, bucket):
    """Average by gloo's own gather and broadcast."""
    import torch
    import torch.distributed as dist

    mine, world_size = bucket.buffer(), dist.get_world_size()
    everyone = [torch.empty_like(mine) for _ in range(world_size)] if dist.get_rank() == 0 else None
    dist.gather(mine, everyone, 0)
    if everyone is not None:
        torch.mean(torch.stack(everyone), dim=0, out=mine)
    dist.broadcast(mine, 0)
    return _done(mine)


def _done(result):
    import torch

    future = torch.futures.Future()
    future.set_result(result)
    return future


def train() -> None:
    import torch.distributed as dist
    from interleaved import Case, job, record_in_turn

    widths, one_bucket = [WIDTH] * NUM_LAYERS, {"bucket_cap_mb": 100}
    cases = [
        Case("all_reduce", widths, BATCH, one_bucket),
        Case("gather_and_broadcast", widths, BATCH, one_bucket, hook=gather_and_broadcast),
        Case("collectives", widths, BATCH, one_bucket, hook=collectives),
    ]
    with job(cases) as trainings:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        out = f"{RECORDINGS}/{world_size}-hosts"
        record_in_turn(trainings, f"{out}/timed", rounds=5, timed_steps=6, steps=1, profiler=False)
        record_in_turn(trainings, f"{out}/profiled", rounds=1, steps=3)
        traffic = {training.case.name: counted(training) for training in trainings}
        Path(f"{out}/traffic-{rank}.json").write_text(json.dumps(traffic, indent=1) + "\n", encoding="utf-8")


def counted(training) -> dict[str, object]:
    """Return the bytes over this host's interface, and to each other host by its TCP connections."""
    import torch.distributed as dist

    dist.barrier()
    time.sleep(0.2)
    interface, peers = interface_bytes(), bytes_to_peers()
    for _ in range(COUNTED_STEPS):
        training.step()
    time.sleep(0.2)
    after, peers_after = interface_bytes(), bytes_to_peers()
    dist.barrier()
    return {
        "steps": COUNTED_STEPS,
        "gradient_bytes": sum(p.numel() * p.element_size() for p in training.model.parameters()),
        "sent_bytes": after["tx"] - interface["tx"],
        "received_bytes": after["rx"] - interface["rx"],
        "sent_to": {str(peer): peers_after[peer] - peers[peer] for peer in sorted(peers_after)},
    }


def interface_bytes() -> dict[str, int]:
    counters = Path("/sys/class/net/eth0/statistics")
    return {way: int((counters / f"{way}_bytes").read_text()) for way in ("tx", "rx")}


def bytes_to_peers() -> Counter[int]:
    """Return the payload sent to each peer, by its rank, over all connections (``ss -ti``)."""
    shown = subprocess.run(["ss", "-tinHO"], check=True, capture_output=True, text=True).stdout
    sent: Counter[int] = Counter()
    for line in shown.splitlines():
        peer = re.search(r"\s\S*10\.77\.0\.\d+\S*:\d+\s+\S*10\.77\.0\.(\d+)\S*:\d+", line)
        payload = re.search(r"bytes_sent:(\d+)", line)
        if peer and payload:
            sent[int(peer.group(1)) - 1] += int(payload.group(1))
    return sent


def main() -> None:
    from hosts import linked_hosts

    begin_recording(HERE)
    for num_hosts in NUM_HOSTS:
        with linked_hosts(num_hosts, RATE, burst="128kb", both_ends=True) as hosts:
            hosts.run_job([sys.executable, Path(__file__).name], HERE)
    end_recording(HERE, cores=os.cpu_count(), link=RATE)


if __name__ == "__main__":
    train() if "RANK" in os.environ else main()
