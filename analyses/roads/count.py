"""Count the modules of ddpprof that data passes through, from a trace file to a printed line.

python analyses/roads/count.py [RUN]      the modules of each road, in order; RUN: another run than the sample
python analyses/roads/count.py --record   also the roads that begin in a training, which takes half a minute and torch

A module is on a straight road if a function of it is on the stack when one of the road's stations is called: the
functions that take the data one step further. Stations have the qualified names of their functions, in any module.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

SAMPLE = Path(__file__).resolve().parents[2] / "sample_traces" / "transformer-gloo-4ranks"
WHOLE = "the whole report"
_PACKAGE = "ddpprof"
_WATCHED_S = 60


@dataclass(frozen=True)
class Road:
    """One way of data through ddpprof."""

    name: str
    goal: int
    recorder: tuple[str, ...]
    """stations in a training process; empty if the road begins with a file"""
    reader: tuple[str, ...]
    """stations in the command that prints"""
    command: tuple[str, ...]
    """the command; it is followed by the run"""


_REPORT = ("report", "--no-cache", "--jobs", "1")
KERNEL = Road(
    "a kernel → the “exposed” time in the terminal",
    20,
    (),
    (
        "find_ranks",
        "load_rank",
        "read_trace",
        "EventReader.add_batches",
        "decode_entries",
        "classify_in",
        "Collector.add",
        "columns_of",
        "build_trace",
        "measure_overlap",
        "measure_topics",
        "reduce_summary",
        "step_bars",
        "render_terminal",
    ),
    (*_REPORT, "--section", "step"),
)
BUCKET = Road(
    "a bucket from the reducer → the bucket table",
    18,
    ("TimingProcessGroup.allreduce", "ReducerTimer.launched", "ReducerTimer.times", "RankOutput.append_step"),
    ("load_record", "bucket_steps", "summarize_buckets", "bucket_tables", "render_terminal"),
    (*_REPORT, "--section", "buckets"),
)
PULSE = Road(
    "a row of a pulse → a verdict",
    15,
    ("PulseWriter.begins", "PulseWriter.step_ends", "PulseRows.make"),
    ("read_head", "gather", "position_of", "judge", "verdict_on", "verdict_lines", "say"),
    ("diagnose",),
)
GOALS = {WHOLE: 108, **{road.name: road.goal for road in (KERNEL, BUCKET, PULSE)}}
"""the most modules that each road should have"""


class Counter:
    """Notes which modules are entered, and which of them are on the road to each station."""

    def __init__(self, stations: Sequence[str], results: Path) -> None:
        self._stations = frozenset(stations)
        self._results = results
        self.entered: dict[str, None] = {}
        self.on_road: dict[str, None] = {}
        self.reached: dict[str, None] = {}

    def begin(self) -> None:
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        name = frame.f_globals.get("__name__", "") if event == "call" else ""
        if not name or not name.startswith(_PACKAGE):  # while Python ends, a module has no name
            return
        if name not in self.entered and not _is_importing(frame):
            self.entered[name] = None
        station = frame.f_code.co_qualname
        if station in self._stations and station not in self.reached:
            self.reached[station] = None
            self.on_road.update(dict.fromkeys(reversed([*_modules_of(frame)])))
            self.write()

    def write(self) -> None:
        found = {"entered": [*self.entered], "on_road": [*self.on_road], "reached": [*self.reached]}
        part = self._results.with_suffix(".part")
        part.write_text(json.dumps(found), encoding="utf-8")
        part.replace(self._results)


def _is_importing(frame: FrameType | None) -> bool:
    """Return True if the frame is the body of a module, or defines its classes."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
            return True
        frame = frame.f_back
    return False


def _modules_of(frame: FrameType | None) -> Iterator[str]:
    """Yield the modules on the stack, innermost first."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(_PACKAGE):
            yield name
        frame = frame.f_back


def _begin_counting(stations: str, results: str) -> Counter:
    counter = Counter(stations.split(), Path(results))
    counter.begin()
    return counter


def command_counted(stations: str, results: str, *words: str) -> None:
    """Run a command of ddpprof in this process."""
    from ddpprof.cli import main as ddpprof_main

    counter = _begin_counting(stations, results)
    try:
        ddpprof_main(list(words))
    finally:
        sys.setprofile(None)
        counter.write()


def training_counted(stations: str, results: str, out: str, store: str, rank: str, world_size: str) -> None:
    """Train in this process. In a job of two, rank 1 stops after 40 steps, so that rank 0 waits for it."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import ddpprof

    if rank == "0":
        _begin_counting(stations, results)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(world_size))
    torch.set_num_threads(1)
    hangs = int(world_size) > 1
    with ddpprof.watch(out) if hangs else ddpprof.profile(out, profiler=False):
        model = DistributedDataParallel(torch.nn.Linear(64, 64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(60):
            if hangs and step == 40 and rank == "1":
                time.sleep(_WATCHED_S)
            optimizer.zero_grad()
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
            time.sleep(0.02)
    dist.destroy_process_group()


def _command(function: str, *arguments: object) -> list[str]:
    return [sys.executable, __file__, function, *map(str, arguments)]


def _read(results: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(results.read_text(encoding="utf-8"))
    return found


def counted_command(stations: Sequence[str], words: Sequence[object]) -> dict[str, list[str]]:
    """Return the modules that a command enters, those on the road to the stations, and the stations reached."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        environment = {**os.environ, "NO_COLOR": "1"}
        command = _command(command_counted.__name__, " ".join(stations), results, *words)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        return _read(results)


def read_roads(run: Path = SAMPLE) -> dict[str, list[str]]:
    """Return the modules of the whole report of a run, and of the parts of roads that end in a report."""
    roads = {WHOLE: counted_command((), (*_REPORT, run))["entered"]}
    for road in (KERNEL, BUCKET):
        roads[road.name] = _road(counted_command(road.reader, (*road.command, run)), road.reader)
    return roads


def _road(found: Mapping[str, list[str]], stations: Sequence[str]) -> list[str]:
    missed = [one for one in stations if one not in found["reached"]]
    if missed:
        raise SystemExit(f"count.py: these stations were not called; have they been renamed? {', '.join(missed)}")
    return found["on_road"]


def recorded_roads() -> dict[str, list[str]]:
    """Return the modules of the parts of roads that begin in a training, and of the verdict on one that hangs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = folder / "bucket.json"
        train = _command(training_counted.__name__, " ".join(BUCKET.recorder), results, folder / "bucket")
        subprocess.run([*train, str(folder / "store-of-one"), "0", "1"], check=True)
        return {BUCKET.name: _road(_read(results), BUCKET.recorder), PULSE.name: _road_to_verdict(folder)}


def _road_to_verdict(folder: Path) -> list[str]:
    results, run = folder / "pulse.json", folder / "pulse"
    train = _command(training_counted.__name__, " ".join(PULSE.recorder), results, run, folder / "store-of-two")
    ranks = [subprocess.Popen([*train, str(rank), "2"]) for rank in range(2)]
    try:
        until = time.monotonic() + _WATCHED_S
        while time.monotonic() < until:
            time.sleep(3)
            found = counted_command(PULSE.reader, (*PULSE.command, run)) if run.is_dir() else {"reached": []}
            if set(PULSE.reader) <= set(found["reached"]):
                break
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [*dict.fromkeys((*_road(_read(results), PULSE.recorder), *_road(found, PULSE.reader)))]


def whole_roads(recorded: Mapping[str, list[str]], read: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return each road from end to end."""
    names = (name for name in GOALS if name in read or name in recorded)
    return {name: [*dict.fromkeys((*recorded.get(name, ()), *read.get(name, ())))] for name in names}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path, nargs="?", default=SAMPLE)
    parser.add_argument("--record", action="store_true", help="also count in a training")
    options = parser.parse_args()
    for name, modules in whole_roads(recorded_roads() if options.record else {}, read_roads(options.run)).items():
        print(f"{name}: {len(modules)} modules, at most {GOALS[name]} wanted")
        print("    " + "\n    ".join(one.removeprefix("ddpprof.") for one in modules))


if __name__ == "__main__":
    inside = {one.__name__: one for one in (command_counted, training_counted)}
    if sys.argv[1:] and sys.argv[1] in inside:
        inside[sys.argv[1]](*sys.argv[2:])
    else:
        main()
