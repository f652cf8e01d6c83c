"""Time refreshes of `ddpprof top` over more and more ranks → recordings/times.json.

python analyses/top_speed/collect.py [--rounds 20]

The ranks are copies of one that trained here, each with its own number. They lie in a temporary folder and, as those of
living ranks do, in memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from ddpprof.model import pulse_layout as layout
from ddpprof.monitor.overview import look_at
from ddpprof.monitor.pulse_files import shared_path
from ddpprof.render.top import Shown, rows_that_fit, top_view

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import as_json, begin_recording

STUDY = Path(__file__).resolve().parent
NUM_RANKS = (1, 10, 100, 1000)
PAGE = 4096


def record(folder: Path) -> bytes:
    """Return the pulse of a rank that has trained."""
    command = [sys.executable, "-m", "ddpprof", "trace", "--quiet", "--no-profiler", "--out", str(folder / "run")]
    subprocess.run([*command, "--nproc-per-node", "2", STUDY / "train.py"], check=True)
    return (folder / "run" / "rank-0.pulse").read_bytes()


def write_with_holes(path: Path, content: bytes) -> None:
    """Write a file without its pages of zeros, so that a thousand fit."""
    with path.open("wb") as file:
        file.truncate(len(content))
        for at in range(0, len(content), PAGE):
            if content[at : at + PAGE].strip(b"\0"):
                file.seek(at)
                file.write(content[at : at + PAGE])


def copy_of(content: bytes, rank: int, num_ranks: int, kept: Path, shared: Path) -> bytes:
    """Return the pulse as that of another rank, which has not ended."""
    identity = msgspec.structs.replace(
        layout.decode_identity(content), rank=rank, world_size=num_ranks, kept=str(kept), shared=str(shared)
    )
    head = layout.encode_head(identity).ljust(layout.HEAD_BYTES, b"\0")
    at = layout.state_offset("ended")
    return head + content[layout.HEAD_BYTES : at] + bytes(8) + content[at + 8 :]


def refreshes(content: bytes, num_ranks: int, rounds: int, in_memory: bool) -> list[dict[str, float]]:
    """Return the seconds of reading and of drawing, of each round."""
    shared = [shared_path(rank) for rank in range(num_ranks)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            for rank, path in enumerate(shared):
                kept = folder / f"rank-{rank}.pulse"
                made = copy_of(content, rank, num_ranks, kept, path)
                write_with_holes(kept, made)
                if in_memory:
                    write_with_holes(path, made)
            now_ns = layout.decode_state(content[layout.STATE_AT : layout.STACK_AT]).tick_ns
            return [refresh(folder, now_ns) for _ in range(rounds)]
        finally:
            for path in shared:
                path.unlink(missing_ok=True)


def refresh(folder: Path, now_ns: int) -> dict[str, float]:
    began, busy = time.perf_counter(), time.process_time()
    overview = look_at(folder, now_ns)
    read, read_busy = time.perf_counter(), time.process_time()
    console = Console(file=StringIO(), width=120, height=40, force_terminal=True)
    console.print(top_view(overview, Shown(most_rows=rows_that_fit(overview, Shown(), console)), console))
    times = {"read_s": read - began, "read_cpu_s": read_busy - busy, "draw_s": time.perf_counter() - read}
    return {name: round(seconds, 6) for name, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        content = record(Path(name))
    times: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 1), "cores": os.cpu_count(), "refreshes": []}
    for where, in_memory in (("in memory", True), ("in the run directory", False)):
        for num_ranks in NUM_RANKS:
            rounds = refreshes(content, num_ranks, options.rounds, in_memory)
            times["refreshes"].append({"ranks": num_ranks, "pulses": where, "rounds": rounds})
    (begin_recording(STUDY) / "times.json").write_text(as_json(times), encoding="utf-8")


if __name__ == "__main__":
    main()
