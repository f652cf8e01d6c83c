"""Files that ddpprof reads, damaged at random: each must give a report or one error, in bounded time and memory.

A mutant is determined by its number. To look at one: python tests/support/mutants.py NUMBER
"""

from __future__ import annotations

import gzip
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

SECONDS, MEMORY_BYTES = 20, 3 * 10**9
"""limits for one mutant; memory is the process's address space, with all it has loaded"""

_TOKENS = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud800", b"null", b"true", b"NaN", b"-Infinity",
    b"1e999", b"-1", b"0", b"1e-300", b"9" * 25, b"-9223372036854775808", b"9223372036854775807", b"2147483648",
    b"1.5", b"9007199254740993", b"1700000000000000.123", b'""', b'"ph"', b'"ph":"X",', b'"traceEvents":[', b"\xff\xfe",
    b"\x00",    b"\xef\xbb\xbf", b"[" * 2000, b'{"a":' * 2000, b"[" * 2000 + b"]" * 2000, b'"' + b"x" * 5000 + b'"',
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1.5, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64, 10**40, 1e-320, 1e18, 1e300, "", "x", "7",
    "ProfilerStep#3", "\ud800", "\x1b[31m", "<script>", "../..", [], {}, [[]], [None], [1, "a"], {"a": 1}, [[1], [2]],
)  # fmt: skip


def mutant(text: bytes, number: int) -> bytes:
    """Damage a text one to four times, then perhaps compress it and damage it again."""
    chance = random.Random(number)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        text = chance.choice(_DAMAGES)(text, chance)
    if chance.random() < 0.15:
        text = gzip.compress(text, 1)
        if chance.random() < 0.5:
            text = chance.choice((_cut, _flip, _remove))(text, chance)
    return text


def _cut(text: bytes, chance: random.Random) -> bytes:
    return text[: chance.randrange(len(text) + 1)]


def _flip(text: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(text)
    for _ in range(chance.choice((1, 1, 8))):
        if damaged:
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def _place(text: bytes, chance: random.Random) -> int:
    return chance.randrange(len(text) + 1)


def _remove(text: bytes, chance: random.Random) -> bytes:
    place = _place(text, chance)
    return text[:place] + text[place + chance.choice((1, 3, 40, 400)) :]


def _put(text: bytes, chance: random.Random) -> bytes:
    place = _place(text, chance)
    return text[:place] + chance.choice(_TOKENS) + text[place + chance.choice((0, 0, 1, 5)) :]


def _splice(text: bytes, chance: random.Random) -> bytes:
    begin, place = _place(text, chance), _place(text, chance)
    return text[:place] + text[begin : begin + chance.choice((10, 100, 1000))] + text[place:]


def _repeat_key(text: bytes, chance: random.Random) -> bytes:
    """Repeat a key, with values of different kinds."""
    keys = [index for index in range(len(text)) if text.startswith(b'": ', index)]
    if not keys:
        return text
    end = chance.choice(keys)
    begin = text.rfind(b'"', 0, end)
    return (
        text[:begin] + text[begin:end] + b'": ' + chance.choice((b"null", b"[]", b"7", b'"x"')) + b", " + text[begin:]
    )


def _change_value(text: bytes, chance: random.Random) -> bytes:
    """Return well-formed JSON with a value of another kind or size, or without one."""
    lines = text.splitlines() if b"\n{" in text else [text]
    number = chance.randrange(len(lines)) if lines else 0
    try:
        document = json.loads(lines[number])
    except (ValueError, RecursionError, IndexError):
        return text
    holders = list(_holders(document))
    if not holders:
        return text
    for _ in range(chance.choice((1, 1, 3))):
        holder = chance.choice(holders)
        key = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        if chance.random() < 0.2:
            del holder[key]
        else:
            holder[key] = deepcopy(chance.choice(_VALUES))
        holders = [one for one in _holders(document) if one]
        if not holders:
            break
    try:
        lines[number] = json.dumps(document).encode()
    except RecursionError:
        return text
    return b"\n".join(lines)


def _holders(value: Any, depth: int = 0) -> Iterator[Any]:
    """Return the objects and arrays that are not empty."""
    if isinstance(value, dict | list) and value and depth < 50:
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _holders(inner, depth + 1)


_DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _cut, _flip, _remove, _put, _put, _splice, _repeat_key, _change_value, _change_value, _change_value,
)  # fmt: skip


def _span(category: str, name: str, start: float, end: float, tid: Any = 1, **args: Any) -> dict[str, Any]:
    times = {"ts": start, "dur": round(end - start, 3)}
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, **times, "args": args}


def _host_step(number: int, begin: float) -> list[dict[str, Any]]:
    return [
        _span("user_annotation", f"ProfilerStep#{number}", begin, begin + 95.5),
        _span("user_annotation", "enumerate(DataLoader)#_Next.__next__", begin + 1, begin + 4),
        _span("cpu_op", "DistributedDataParallel.forward", begin + 5, begin + 30, **{"External id": 10 * number}),
        _span("cpu_op", "aten::linear", begin + 8, begin + 28,
              **{"External id": 10 * number + 1, "Input Dims": [[4, 4], []], "Input type": ["float", ""]}),
        _span("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", begin + 32, begin + 60, 2),
        _span("cpu_op", "aten::mm", begin + 33, begin + 50, 2, **{"External id": 10 * number + 2}),
        _span("cpu_op", "c10d::allreduce_", begin + 52, begin + 55, 2,
              **{"Input Dims": [[[16]], []], "Input type": ["TensorList", ""]}),
        _span("user_annotation", "Optimizer.step#SGD.step", begin + 80, begin + 90),
    ]  # fmt: skip


def host_trace() -> bytes:
    gloo = {"Input Dims": [[16]], "Input type": ["float"]}
    events = [
        event
        for number in (3, 4)
        for begin in [100.25 * number]
        for event in [*_host_step(number, begin),
                      _span("user_annotation", "gloo:all_reduce", begin + 56, begin + 70, 3, **gloo)]
    ]  # fmt: skip
    return _trace(events)


def device_trace() -> bytes:
    events = []
    for number in (3, 4):
        begin = 100.25 * number
        nccl = {"Collective name": "allreduce", "In msg nelems": 16, "Out msg nelems": 16, "dtype": "Float",
                "Seq": number, "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}  # fmt: skip
        kernels = (("gemm", 10, 10 * number + 1, {}), ("gemm_backward", 40, 10 * number + 2, {}),
                   ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", 58, 10 * number + 3, nccl))  # fmt: skip
        events += _host_step(number, begin)
        for name, start, op, args in kernels:
            events += [
                _span("cuda_runtime", "cudaLaunchKernel", begin + start, begin + start + 1, 2 if start > 30 else 1,
                      correlation=op),
                _span("kernel", name, begin + start + 4, begin + start + 20, 7, device=0, stream=7, correlation=op,
                      grid=[1, 1, 1], block=[8, 1, 1], **{"External id": op, **args}),
            ]  # fmt: skip
        events.append(_span("gpu_memcpy", "Memcpy HtoD", begin + 6, begin + 8, 7, device=0, stream=7, correlation=9))
        events.append({"ph": "s", "id": number, "pid": 1, "tid": 1, "ts": begin, "cat": "ac2g", "name": "ac2g"})
    return _trace(events)


def _trace(events: list[dict[str, Any]]) -> bytes:
    end = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 520.5}
    info = {"backend": "nccl", "rank": 0, "world_size": 2}
    return json.dumps(
        {"distributedInfo": info, "host_name": "a", "traceEvents": [*events, end], "traceName": "x"}
    ).encode()


class Bench:
    """Originals, and a folder for mutants of them."""

    def __init__(self, folder: Path, recorded: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        shutil.copytree(recorded, self.run)
        for number in range(2):
            (self.run / f"rank-{number}.trace.json.gz").write_bytes(gzip.compress(host_trace()))
        names = ("run.json", "rank-0.facts.json", "rank-0.steps.jsonl", "rank-1.facts.json", "rank-1.steps.jsonl")
        self.files = [self.run / name for name in names]
        self.originals = {path: path.read_bytes() for path in self.files}
        self.report = self._report(recorded)
        self.traces = (host_trace(), device_trace())

    def _report(self, recorded: Path) -> bytes:
        from ddpprof.load.run import load_run
        from ddpprof.render.json import render_json
        from ddpprof.report.build import build_report

        return json.dumps(json.loads(render_json(build_report(load_run(recorded))))).encode()

    def complaint(self, number: int) -> str | None:
        """Return what is wrong with ddpprof's handling of a mutant."""
        kind = number % 10
        if kind < 7:
            path = self.folder / "trace.json"
            path.write_bytes(mutant(self.traces[kind % 2], number))
            return complaint_about(path, number)
        if kind < 9:
            path = self.files[number // 10 % len(self.files)]
            path.write_bytes(mutant(self.originals[path], number))
            try:
                return complaint_about(self.run, number)
            finally:
                path.write_bytes(self.originals[path])
        path = self.folder / "report.json"
        path.write_bytes(mutant(self.report, number))
        return complaint_about(path, number)


def complaint_about(path: Path, number: int) -> str | None:
    from ddpprof.errors import DdpprofError

    try:
        with in_time():
            _show(path, number)
    except DdpprofError as error:
        return f"{number}: an error of several lines: {error!s:.300}" if "\n" in str(error) else None
    except BaseException as error:  # noqa: BLE001 -- whatever it is, it is the find
        return f"{number}: {''.join(traceback.format_exception(error)[-6:])}"
    return None


def _show(path: Path, number: int) -> None:
    """Open a file like the command line, in this process."""
    from ddpprof.pipeline.analysis import AnalysisOptions, analysed
    from ddpprof.render import json as as_json
    from ddpprof.render.html.report_page import report_page
    from ddpprof.render.markdown import render_markdown
    from ddpprof.render.sections import sections
    from ddpprof.render.terminal import render_terminal
    from ddpprof.topics.steps.timeline import typical_lanes

    report = as_json.read_report(path) if path.is_file() else None
    timeline = None
    if report is None:
        with analysed(path, AnalysisOptions(jobs=1, use_cache=number % 3 == 0)) as analysis:
            report, timeline = analysis.report, analysis.timeline()
    if number // 10 % 4 == 0:
        as_json.render_json(report)
    elif number // 10 % 4 == 1:
        render_markdown("mutant", sections(report, typical_lanes(timeline, report)))
    elif number // 10 % 40 == 2:
        report_page(report, timeline)
    else:
        render_terminal(sections(report, typical_lanes(timeline, report)), StringIO(), width=100)


@contextmanager
def in_time() -> Iterator[None]:
    def refuse(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, refuse)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def complaints(numbers: range, recorded: Path) -> list[str]:
    """Return the complaints about these mutants; to be run in a process of its own, as it limits memory."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), recorded)
        return [found for number in numbers if (found := bench.complaint(number)) is not None]


if __name__ == "__main__":
    SAMPLE = Path(__file__).parents[2] / "sample_traces" / "convnet-gloo-2ranks"
    first, last = int(sys.argv[1]), int(sys.argv[-1])
    for text in complaints(range(first, last + 1), SAMPLE):
        print(text)
    os._exit(0)
