"""Traces of any size: one training step on a GPU, or the events of a real trace, repeated end to end.

    python analyses/loading_speed/generate.py --mb 300 --ranks 4 --out FOLDER [--shapes] [--stacks]
    python analyses/loading_speed/generate.py --mb 300 --ranks 4 --out FOLDER --source trace.json.gz

Copies are shifted in time; numbers that link events (correlations, ids of ops and flows) are shifted by more than the
largest of them, so that launches and kernels of a copy still find each other. The mix of events and arguments in the
made-up step is like ResNet-50's under DDP on two A100: of ten events four are ops of the host, three launches and
other calls of CUDA, two flows, one a kernel.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]

_IDS = ("correlation", "External id", "Ev Idx", "Record function id", "Python id", "Python parent id")
_LAYERS = 160
_STEP = "ProfilerStep#"
_COPIES_PER_STEP = 20
"""so that 300 MB are twenty steps: users profile tens of steps, not hundreds, and the peer takes a pass for each"""
_GAP_US = 50
_KERNEL = {
    "queued": 0, "device": 0, "context": 1, "registers per thread": 32, "shared memory": 0, "blocks per SM": 14.8,
    "warps per SM": 59.3, "grid": [1600, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 87,
}  # fmt: skip
_SHAPES = {
    "Input Dims": [[32, 64, 56, 56], [64, 64, 3, 3], [], [], []],
    "Input type": ["float", "float", "", "ScalarList", "ScalarList"],
    "Input Strides": [[200704, 3136, 56, 1], [576, 9, 3, 1], [], [], []],
    "Concrete Inputs": ["", "", "", "[1, 1]", "[1, 1]"],
}


def made_up_step(*, shapes: bool, stacks: bool) -> list[Event]:
    """Return a step: forward, backward with five buckets reduced beside it, optimizer. Times are whole microseconds."""
    step = _Step(shapes=shapes, stacks=stacks)
    for layer in range(_LAYERS):
        step.layer("forward", layer)
    for layer in range(_LAYERS):
        step.layer("backward", layer)
        if layer % (_LAYERS // 5) == _LAYERS // 5 - 1:
            step.bucket()
    for layer in range(_LAYERS // 2):
        step.layer("optimizer", layer)
    return step.finished()


class _Step:
    def __init__(self, *, shapes: bool, stacks: bool) -> None:
        self.events: list[Event] = []
        self._chance = random.Random(0)
        self._shapes, self._stacks = shapes, stacks
        self._now = self._device = 20
        self._link_free = 0
        self._id = 1
        self._begins: dict[str, int] = {}

    def _add(self, category: str, name: str, tid: int, start: int, end: int, **args: Any) -> None:
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": 0 if tid < 100 else 4711, "tid": tid,
                            "ts": start, "dur": end - start, "args": args})  # fmt: skip

    def _op(self, name: str, start: int, end: int) -> None:
        self._id += 1
        args = {"External id": self._id, "Record function id": 0, "Ev Idx": self._id} | (
            _SHAPES if self._shapes else {}
        )
        if self._stacks:
            frame = f"torch/nn/modules/module.py({1500 + self._id % 90}): _call_impl"
            args["Call stack"] = "; ".join([frame] * 6)
            for depth in range(2):
                ids = {"Python parent id": self._id, "Python id": self._id + depth, "Ev Idx": self._id}
                self._add("python_function", frame, 4711, start, end, **ids)
        self._add("cpu_op", name, 4711, start, end, **args)

    def _launch(self, name: str, kernel: str, duration: int, stream: int, begin: int, **args: Any) -> int:
        self._id += 1
        link = {"External id": self._id - 1, "correlation": self._id}
        self._add("cuda_runtime", name, 4711, self._now, self._now + 4, cbid=211, **link)
        for phase, tid, time in (("s", 4711, self._now), ("f", stream, begin)):
            self.events.append({"ph": phase, "id": self._id, "pid": 0 if phase == "f" else 4711, "tid": tid, "ts": time,
                                "cat": "ac2g", "name": "ac2g"} | ({"bp": "e"} if phase == "f" else {}))  # fmt: skip
        self._add("kernel", kernel, stream, begin, begin + duration, stream=stream, **link, **_KERNEL, **args)
        return begin + duration

    def layer(self, phase: str, index: int) -> None:
        begin = self._now
        for inner in range(4):
            self._op(f"aten::{phase}_{index % 20}_{inner}", begin + inner, begin + 40 - inner)
        for name in ("cudaStreamIsCapturing", "cudaEventRecord"):
            self._add("cuda_runtime", name, 4711, begin + 8, begin + 9, cbid=3, correlation=0)
        self._now += 12
        duration = self._chance.randrange(8, 60)
        kernel = f"void at::native::{phase}_kernel_{index % 40}<float, 128, 1>(at::TensorIterator, float const*)"
        self._device = self._launch("cudaLaunchKernel", kernel, duration, 7, max(self._device, self._now + 6))
        self._begins.setdefault(phase, begin)
        self._begins[f"{phase} ends"] = self._now = begin + 42

    def bucket(self) -> None:
        begin = max(self._device, self._link_free)
        kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
        self._op("record_param_comms", self._now, self._now + 20)
        details = {"Collective name": "allreduce", "In msg nelems": 5_000_000, "dtype": "Float", "Group size": 2}
        self._link_free = self._launch("cudaLaunchKernelExC", kernel, 1100, 20, begin, **details)
        self._now += 25

    def finished(self) -> list[Event]:
        end = max(self._device, self._link_free, self._now) + 30
        marks = (("DistributedDataParallel.forward", "cpu_op", "forward"),
                 ("autograd::engine::evaluate_function: Backward", "cpu_op", "backward"),
                 ("Optimizer.step#SGD.step", "user_annotation", "optimizer"))  # fmt: skip
        for name, category, phase in marks:
            self._add(category, name, 4711, self._begins[phase] - 1, self._begins[f"{phase} ends"] + 30)
        self._add("user_annotation", "ProfilerStep#1", 4711, 0, end)
        return self.events


def events_of(source: Path) -> list[Event]:
    text = gzip.decompress(source.read_bytes()) if source.name.endswith(".gz") else source.read_bytes()
    return [event for event in json.loads(text)["traceEvents"] if event.get("ph") in ("X", "s", "f")]


def copies(events: list[Event]) -> Iterator[str]:
    """Yield the text of each copy, without end."""
    marks = [event for event in events if event["name"].startswith(_STEP)]
    others = [event for event in events if not event["name"].startswith(_STEP)]
    starts = [event["ts"] for event in events]
    begin, end = min(starts), max(event["ts"] + event.get("dur", 0) for event in events)
    links = [event.get("args", {}).get(key, 0) for event in events for key in _IDS]
    stride = 1 + max(link for link in [*links, *(event.get("id", 0) for event in events)] if isinstance(link, int))
    number = 0
    while True:
        period_us = end - begin + _GAP_US
        now = [_moved(event, number, period_us * number, stride) for event in others]
        if number % _COPIES_PER_STEP == 0:
            now += [_step_mark(event, number, period_us) for event in marks[:1]]
        yield ",\n".join("  " + json.dumps(event) for event in now)
        number += 1


def _step_mark(event: Event, number: int, period_us: float) -> Event:
    """From this copy on, over as many as are a step."""
    times = {"ts": round(event["ts"] + number * period_us, 3), "dur": period_us * _COPIES_PER_STEP - _GAP_US}
    return {**event, **times, "name": f"{_STEP}{number // _COPIES_PER_STEP}"}


def _moved(event: Event, number: int, by_us: float, stride: int) -> Event:
    moved = {**event, "ts": round(event["ts"] + by_us, 3)}
    if isinstance(event.get("id"), int):
        moved["id"] = event["id"] + number * stride
    args = event.get("args", {})
    shifted = {key: args[key] + number * stride for key in _IDS if isinstance(args.get(key), int) and args[key] > 0}
    return {**moved, "args": {**args, **shifted}} if args else moved


def write(folder: Path, megabytes: float, ranks: int, events: list[Event]) -> list[int]:
    """Write files ``rank-N.json.gz``; return the bytes of JSON in each."""
    folder.mkdir(parents=True)
    body = folder / "body"
    with gzip.open(body, "wt", compresslevel=4, encoding="utf-8") as file:
        written = 0
        for number, text in enumerate(copies(events)):
            written += file.write((",\n" if number else "") + text)
            if written >= megabytes * 1e6:
                break
        written += file.write("\n]}\n")
    sizes = []
    for rank in range(ranks):
        info = {"backend": "nccl", "rank": rank, "world_size": ranks}
        keys = {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "distributedInfo": info}
        head = (json.dumps(keys)[:-1] + ', "traceEvents": [\n').encode()
        with (folder / f"rank-{rank}.json.gz").open("wb") as file:
            file.write(gzip.compress(head))
            file.write(body.read_bytes())  # gzip data may follow gzip data
        sizes.append(len(head) + written)
    body.unlink()
    return sizes


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=float, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--shapes", action="store_true")
    parser.add_argument("--stacks", action="store_true")
    options = parser.parse_args()
    made = events_of(options.source) if options.source else made_up_step(shapes=options.shapes, stacks=options.stacks)
    print(write(options.out, options.mb, options.ranks, made))
