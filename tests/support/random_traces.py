"""Random small traces of DDP training, like a profiler's, for properties that hold for every trace."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st

from ddpprof.load.rank import load_trace
from ddpprof.model import Trace

TRAINING, AUTOGRAD, WORKER = 100, 200, 300
"""threads"""
STEP_NS = 1000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
NODE = "autograd::engine::evaluate_function: "


@dataclass(frozen=True)
class Event:
    """Times in nanoseconds."""

    category: str
    name: str
    start: int
    end: int
    tid: Any
    args: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        event = {"ph": "X", "cat": self.category, "name": self.name, "pid": 1, "tid": self.tid, "args": self.args}
        return f'{json.dumps(event)[:-1]}, "ts": {_micro(self.start)}, "dur": {_micro(self.end - self.start)}}}'

    def moved(self, by_ns: int) -> "Event":
        return replace(self, start=self.start + by_ns, end=self.end + by_ns)

    def slowed(self, factor: int) -> "Event":
        return replace(self, start=self.start * factor, end=self.end * factor)

    @property
    def is_on_device(self) -> bool:
        return self.category in ("kernel", "gpu_memcpy")


def _micro(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03}"


def load(events: list[Event]) -> Trace:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(f'{{"baseTimeNanoseconds": 5, "traceEvents": [{", ".join(e.text() for e in events)}]}}')
        return load_trace(path)


def host_marks(step: int) -> list[Event]:
    """Return the host work of every step: data, forward, four nodes of the backward pass, optimizer."""
    begin = STEP_NS * step
    nodes = ("MmBackward0", "torch::autograd::AccumulateGrad", "AddBackward0", "torch::autograd::AccumulateGrad")
    return [
        Event("user_annotation", f"ProfilerStep#{step + 3}", begin, begin + 990, TRAINING),
        Event("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin, begin + 50,
              TRAINING),
        Event("user_annotation", "DistributedDataParallel.forward", begin + 60, begin + 300, TRAINING),
        *(Event("cpu_op", NODE + node, begin + 300 + 100 * i, begin + 395 + 100 * i, AUTOGRAD)
          for i, node in enumerate(nodes)),
        Event("cpu_op", "torch::distributed::reducer::mul_out", begin + 410, begin + 420, AUTOGRAD),
        Event("cpu_op", "torch.distributed.ddp.reducer::copy_bucket_to_grad", begin + 700, begin + 710, AUTOGRAD),
        Event("user_annotation", "Optimizer.step#SGD.step", begin + 750, begin + 900, TRAINING),
    ]  # fmt: skip


def _in_a_hook(task: dict[str, Any]) -> dict[str, Any]:
    """Launch buckets inside autograd's nodes that accumulate gradients."""
    launched = task["launched"]
    return {**task, "launched": 400 + launched // 10 + 200 * (launched % 2)} if task["what"] == "bucket" else task


TASK = st.fixed_dictionaries(
    {
        "what": st.sampled_from(["kernel", "kernel", "kernel", "copy", "comm", "bucket"]),
        "launched": st.integers(0, 940),
        "delay": st.integers(1, 300),
        "length": st.integers(0, 250),
        "stream": st.sampled_from([7, 20]),
        "variant": st.integers(0, 2),
        "is_graph": st.booleans(),
        "num_elements": st.sampled_from([None, 64, 128]),
    }
).map(_in_a_hook)
"""device work, and the moment of the step at which the host launches it."""

STEPS = st.lists(st.lists(TASK, max_size=9, unique_by=lambda task: task["launched"]), min_size=1, max_size=4)


def device_events(steps: list[list[dict[str, Any]]]) -> list[Event]:
    events = []
    for step, tasks in enumerate(steps):
        events += host_marks(step)
        for task in tasks:
            launched = STEP_NS * step + task["launched"]
            thread = AUTOGRAD if 300 <= task["launched"] < 700 else TRAINING
            events += _task(task, launched, thread, correlation=len(events) + 1)
    return events


def _task(task: dict[str, Any], launched: int, thread: int, correlation: int) -> list[Event]:
    start, variant = launched + task["delay"], task["variant"]
    joined = {"correlation": correlation}
    args: dict[str, Any] = {**joined, "stream": task["stream"], "External id": 10_000 + correlation}
    found = [Event("cuda_runtime", "cudaLaunchKernel", launched, launched + 4, thread, joined)]
    if task["what"] == "copy":
        category, name = "gpu_memcpy", "Memcpy HtoD"
    elif task["what"] in ("comm", "bucket"):
        category, name = "kernel", ALL_REDUCE
        if task["num_elements"]:
            args |= {"Collective name": "allreduce", "In msg nelems": task["num_elements"], "dtype": "Float"}
    else:
        category, name = "kernel", f"gemm_{variant % 2}"
        args |= {"grid": [variant, 1, 1], "block": [128, 1, 1]}
        if variant:
            shapes = {"External id": 10_000 + correlation, "Input Dims": [[variant, 4]]}
            found.append(Event("cpu_op", "aten::mm", launched, launched + 4, thread, shapes))
    found.append(Event(category, name, start, start + task["length"], task["stream"], args))
    if task["is_graph"] and task["what"] == "kernel":  # a second kernel of the same launch
        found.append(Event(category, name, start, start + task["length"] // 2, 21, {**args, "stream": 21}))
    return found


device_traces: st.SearchStrategy[list[Event]] = STEPS.map(device_events)

OP = st.fixed_dictionaries(
    {
        "gap": st.integers(0, 60),
        "length": st.integers(1, 120),
        "variant": st.integers(0, 2),
        "calls": st.booleans(),
        "delay": st.integers(1, 200),
        "comm": st.integers(1, 300),
    }
)
"""op of the CPU after the previous one; it may hand a collective to gloo's threads."""


def host_events(steps: list[list[dict[str, Any]]]) -> list[Event]:
    events = []
    for step, ops in enumerate(steps):
        events += host_marks(step)
        now = STEP_NS * step + 80
        for op in ops:
            start, end = now + op["gap"], now + op["gap"] + op["length"]
            now = end + 1
            events.append(Event("cpu_op", f"aten::op{op['variant']}", start, end, TRAINING))
            if op["calls"]:
                begin = end + op["delay"]
                shapes = {"Input Dims": [[op["comm"]]], "Input type": ["float"]}
                events.append(Event("cpu_op", "c10d::allreduce_", end - 1, end, TRAINING))
                events.append(Event("user_annotation", "gloo:all_reduce", begin, begin + op["comm"], WORKER, shapes))
    return events


host_traces: st.SearchStrategy[list[Event]] = st.lists(st.lists(OP, max_size=5), min_size=1, max_size=3).map(
    host_events
)

traces = st.one_of(device_traces, host_traces)


def renamed(events: list[Event], rename: Callable[[Any], Any]) -> list[Event]:
    """Give threads and streams other names, the same everywhere."""
    return [
        replace(
            event,
            tid=rename(event.tid),
            args={key: rename(value) if key == "stream" else value for key, value in event.args.items()},
        )
        for event in events
    ]


@dataclass(frozen=True)
class Dialect:
    """Rename the events as another vendor or another version does."""

    kernel: str = "kernel"
    runtime: str = "cuda_runtime"
    launch: str = "cudaLaunchKernel"
    copy: str = "gpu_memcpy"
    op: str = "cpu_op"
    annotation: str = "user_annotation"
    all_reduce: str = ALL_REDUCE
    named_by_arguments: bool = False
    """the kernel's name does not tell the collective, its arguments do"""
    tid: Callable[[Any], Any] = lambda tid: tid

    def speak(self, event: Event) -> Event:
        categories = {
            "kernel": self.kernel, "cuda_runtime": self.runtime, "gpu_memcpy": self.copy, "cpu_op": self.op,
            "user_annotation": self.annotation,
        }  # fmt: skip
        names = {"cudaLaunchKernel": self.launch, ALL_REDUCE: self.all_reduce}
        args = event.args
        if event.name == ALL_REDUCE and self.named_by_arguments:
            args = {"Collective name": "allreduce", **args}
        on_device = event.category in ("kernel", "gpu_memcpy")
        return replace(
            event,
            category=categories[event.category],
            name=names.get(event.name, event.name),
            args=args,
            tid=self.tid(event.tid) if on_device else event.tid,
        )
