"""Time loading by ddpprof, its floor and its peer in turn, each in a fresh process, and measure the peaks of memory in
further ones → recordings/times.json.

python analyses/loading_speed/collect.py [--rounds 5] [--peer-rounds 3] [--source trace.json.gz] [--folder FOLDER]

It makes a virtual environment with the peer, and inputs of 6 GB of JSON (0.5 GB on disk), in FOLDER, and keeps both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
from generate import Event, events_of, made_up_step, write
from memory import peak_bytes

STUDY = Path(__file__).resolve().parent
PEER = ("traceinsight==0.6.1", "pandas==3.1.1", "numpy==2.4.6")
SIZES_MB = (20, 60, 200, 600, 2000)
"""of growth"""


def environment(folder: Path) -> Path:
    """Return the peer's interpreter."""
    python = folder / "peer" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "peer", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEER], check=True, stderr=subprocess.DEVNULL)
    return python


def measured(python: Path | str, script: str, target: Path) -> dict[str, Any]:
    said = subprocess.run([python, STUDY / script, target], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    return found


def peaks_of(python: Path | str, script: str, target: Path, rounds: int = 3) -> list[int]:
    return [peak_bytes([python, STUDY / script, target]) for _ in range(rounds)]


def prepared(folder: Path, megabytes: int, ranks: int, events: list[Event]) -> list[int]:
    sizes = folder.with_suffix(".json")
    if not sizes.exists():
        sizes.write_text(json.dumps(write(folder, megabytes, ranks, events)))
    found: list[int] = json.loads(sizes.read_text())
    return found


def in_turn(folder: Path, megabytes: int, ranks: int, events: list[Event], peer: Path, rounds: int) -> dict[str, Any]:
    target = folder / f"{megabytes}MB-{ranks}"
    sizes = prepared(target, megabytes, ranks, events)
    runs: dict[str, list[dict[str, Any]]] = {"ddpprof": [], "peer": []}
    for number in range(rounds):
        print(f"{target.name}: round {number + 1} of {rounds}", flush=True)
        runs["ddpprof"].append(measured(sys.executable, "load_with_ddpprof.py", target))
        runs["peer"].append(measured(peer, "load_with_peer.py", target))
    peaks = {
        "ddpprof": peaks_of(sys.executable, "load_with_ddpprof.py", target),
        "peer": peaks_of(peer, "load_with_peer.py", target, rounds=1),
    }
    return {"json_bytes": sizes, "peak_bytes": peaks, **runs}


def beside_floor(folder: Path, rounds: int, variants: dict[str, list[Event]]) -> dict[str, Any]:
    found = {}
    for name, events in variants.items():
        target = folder / f"floor-{name.replace(' ', '-')}"
        sizes = prepared(target, 300, 1, events)
        runs: dict[str, list[dict[str, Any]]] = {"floor": [], "ddpprof": []}
        for _ in range(rounds):
            print(f"{target.name}", flush=True)
            runs["floor"].append(measured(sys.executable, "decode_only.py", target / "rank-0.json.gz"))
            runs["ddpprof"].append(measured(sys.executable, "load_with_ddpprof.py", target))
        peaks = {"ddpprof": peaks_of(sys.executable, "load_with_ddpprof.py", target)}
        found[name] = {"json_bytes": sizes, "peak_bytes": peaks, **runs}
    return found


def growth(folder: Path, rounds: int, events: list[Event]) -> list[dict[str, Any]]:
    found = []
    for megabytes in SIZES_MB:
        target = folder / f"{megabytes}MB"
        sizes = prepared(target, megabytes, 1, events)
        print(target.name, flush=True)
        runs = [measured(sys.executable, "load_with_ddpprof.py", target) for _ in range(rounds)]
        peaks = {"ddpprof": peaks_of(sys.executable, "load_with_ddpprof.py", target)}
        found.append({"json_bytes": sizes, "peak_bytes": peaks, "ddpprof": runs})
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-rounds", type=int, default=3)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "ddpprof-loading-speed")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    peer = environment(options.folder)
    plain = events_of(options.source) if options.source else made_up_step(shapes=False, stacks=False)
    variants = {
        "plain": plain,
        "shapes": made_up_step(shapes=True, stacks=False),
        "stacks and shapes": made_up_step(shapes=True, stacks=True),
    }
    found = {
        "source": options.source.name if options.source else "made up",
        "peer": PEER[0],
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "one_rank": in_turn(options.folder, 300, 1, plain, peer, options.peer_rounds),
        "four_ranks": in_turn(options.folder, 300, 4, plain, peer, options.peer_rounds),
        "floor": beside_floor(options.folder, options.rounds, variants),
        "growth": growth(options.folder, 3, plain),
    }
    found["load_average_after"] = os.getloadavg()[0]
    recordings = STUDY / "recordings"
    recordings.mkdir(exist_ok=True)
    (recordings / "times.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
