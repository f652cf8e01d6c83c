"""Rewrite a trace so that TensorBoard's profiler plugin (torch-tb-profiler 0.4.3) shows the numbers of the report.

The plugin is no longer maintained and misreads new traces: it recognizes CUDA runtime calls by a category that PyTorch
no longer writes, counts collectives twice, and counts NCCL kernels as computation. Each function below corrects one of
these errors. Events that must not be counted are given a category unknown to the plugin. The plugin's trace view still
shows them.
"""

from __future__ import annotations

import gzip
import os
import re
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ddpprof import own_files
from ddpprof.files import Location
from ddpprof.intervals import union
from ddpprof.load.classify import Identity, Role, classify, step_number
from ddpprof.load.file_bytes import opened
from ddpprof.load.host import cut_out
from ddpprof.load.lenient_json import EXACT_FLOAT_US, LARGEST_US, as_int, decode_repaired, nanoseconds
from ddpprof.model import Int64Column, Mark
from ddpprof.model.backends import KNOWN
from ddpprof.model.tables import PluginCollective, PluginView

_Event = dict[str, Any]

_UNKNOWN_TO_PLUGIN = ", not counted"
"""suffix added to an event's category to make the plugin ignore the event"""

_CATEGORIES = {Role.KERNEL: "kernel", Role.LAUNCH: "Runtime"}
_COLLECTIVE = re.compile(rf"(?:{'|'.join(KNOWN)}):")
_EXTERNAL_ID = "External id"
_NOTHING = Identity("", Role.UNUSED)


def write_plugin_trace(source: Location, target: Path, view: PluginView) -> None:
    """Write a copy of one of the rank's traces for the plugin. `view`: the steps and collectives to count.

    Raises ``OSError``.
    """
    document = _read(source)
    base_ns = document.get("baseTimeNanoseconds")
    shift_ns = base_ns - view.epoch_ns if isinstance(base_ns, int) and view.epoch_ns is not None else 0
    copy = _Copy(document.pop("traceEvents"), shift_ns)
    _use_known_categories(copy)
    _link_kernels_to_launches(copy)
    _mark_steps(copy, view)
    if view.device == "cpu":
        _take_calls_out_of_ops(copy)
    _mark_collectives(copy, view)
    begin_ns = _move_to_zero(copy)
    _number_threads(copy)
    if isinstance(base_ns, int):
        document["baseTimeNanoseconds"] = base_ns + begin_ns - shift_ns
    document["traceEvents"] = copy.events  # must be the last key: the plugin appends before the file's last bracket
    with os.fdopen(own_files.overwrite(target), "wb") as plain, gzip.open(plain, "wb", compresslevel=1) as file:
        file.write(msgspec.json.Encoder(decimal_format="number").encode(document))


def _read(path: Location) -> dict[str, Any]:
    with opened(path) as stream:
        text = b"".join(iter(lambda: stream.read(1 << 24), b""))
    document = _decode(text, float)
    if isinstance(document, list):
        document = {"traceEvents": document}
    if any(abs(_time_us(event, "ts")) >= EXACT_FLOAT_US for event in document["traceEvents"]):
        exact = _decode(text, Decimal)
        document = {"traceEvents": exact} if isinstance(exact, list) else exact
    return dict(document)


def _decode(text: bytes, number: type[float | Decimal]) -> Any:
    return decode_repaired(msgspec.json.Decoder(float_hook=None if number is float else number).decode, text)


class _Copy:
    """The events to write, with their identities. Times are on the clock of the view."""

    def __init__(self, events: list[_Event], shift_ns: int) -> None:
        for event in events:
            event["name"] = event.get("name") or ""
            event["args"] = event["args"] if isinstance(event.get("args"), dict) else {}
        self.events = events
        self.identities = [self._identity(event) for event in events]
        times = [_time_us(event, "ts") for event in events]
        durations = [_time_us(event, "dur") for event in events]
        exact = any(abs(time) >= EXACT_FLOAT_US for time in times)
        start_ns = nanoseconds(times, exact=exact) + shift_ns
        end_ns = start_ns + np.maximum(nanoseconds(durations, exact=exact), 0)
        self.start_ns, self.end_ns = start_ns.tolist(), end_ns.tolist()
        self._next_id = 1 + max((_id(event) for event in events), default=0)

    @staticmethod
    def _identity(event: _Event) -> Identity:
        return classify(event.get("cat") or "", event["name"]) if event.get("ph") == "X" else _NOTHING

    def rows(self, *roles: Role) -> Iterator[int]:
        return (row for row, identity in enumerate(self.identities) if identity.role in roles)

    def extent(self) -> tuple[int, int]:
        """Return the start of the first event that has a role, and the latest end of such an event."""
        used = [row for row, what in enumerate(self.identities) if what.role is not Role.UNUSED]
        return min((self.start_ns[row] for row in used), default=0), max((self.end_ns[row] for row in used), default=0)

    def hide(self, row: int) -> None:
        self.events[row]["cat"] = f"{self.events[row].get('cat')}{_UNKNOWN_TO_PLUGIN}"

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def append(self, like: int, start_ns: int, end_ns: int, **changes: Any) -> None:
        event = self.events[like]
        self.events.append({**event, "args": dict(event["args"]), **changes})
        self.identities.append(_NOTHING)
        self.start_ns.append(start_ns)
        self.end_ns.append(end_ns)


def _time_us(event: _Event, key: str) -> Any:
    """Return the value of `key` in microseconds, or 0 if it is missing or implausible."""
    time = event.get(key)
    return time if isinstance(time, int | float | Decimal) and -LARGEST_US < time < LARGEST_US else 0


def _id(event: _Event) -> int:
    number = event["args"].get("external id", event["args"].get(_EXTERNAL_ID))
    return number if isinstance(number, int) else 0


def _correlation(event: _Event) -> int | None:
    return as_int(event["args"].get("correlation"))


def _set_id(event: _Event, number: int) -> None:
    event["args"].pop("external id", None)
    event["args"][_EXTERNAL_ID] = number


def _use_known_categories(copy: _Copy) -> None:
    """Give events categories that the plugin supports.

    The plugin counts data loading only if its category is that of an op. Device annotations are hidden, because they
    repeat the host annotations.
    """
    for row, (event, what) in enumerate(zip(copy.events, copy.identities, strict=True)):
        category = str(event.get("cat") or "").lower()
        if event.get("ph") != "X":
            continue
        if what.role is Role.COPY:
            event["cat"] = "gpu_memset" if "memset" in category else "gpu_memcpy"
        elif what.role in _CATEGORIES:
            event["cat"] = _CATEGORIES[what.role]
        elif what.is_op or what.mark is Mark.DATA:
            event["cat"] = "cpu_op"
        elif _COLLECTIVE.match(event["name"]) or category in ("gpu_user_annotation", "python"):
            copy.hide(row)
        elif category == "operator":
            event["cat"] = "user_annotation"


def _link_kernels_to_launches(copy: _Copy) -> None:
    """Give launches and kernels the ``External id`` of their op. The plugin uses it to find the op of a kernel."""
    ops = {_id(event) for event, what in zip(copy.events, copy.identities, strict=True) if what.is_op}
    of_launch = {}
    for row in copy.rows(Role.LAUNCH):
        event = copy.events[row]
        _set_id(event, _id(event) if _id(event) in ops else 0)
        of_launch[_correlation(event)] = _id(event)
    for row in copy.rows(Role.KERNEL, Role.COPY):
        event = copy.events[row]
        _set_id(event, of_launch.get(_correlation(event), 0))


def _mark_steps(copy: _Copy, view: PluginView) -> None:
    """Mark exactly the steps of the report as ``ProfilerStep``, even if the trace has no such marks."""
    begin_ns, end_ns = copy.extent()
    unmarked = {
        (step.number, step.start_ns): step for step in view.steps if begin_ns <= step.start_ns <= end_ns
    }  # other steps are in other files
    for row in copy.rows(Role.STEP):
        number = step_number(copy.events[row]["name"])
        if number is None or unmarked.pop((number, copy.start_ns[row]), None) is None:
            copy.hide(row)
        else:
            copy.events[row].update(name=f"ProfilerStep#{number}", cat="user_annotation")
    if unmarked:
        like = next(row for row, what in enumerate(copy.identities) if what.mark in (Mark.FORWARD, Mark.DATA_PARALLEL))
        for step in unmarked.values():
            name = f"ProfilerStep#{step.number}"
            copy.append(like, step.start_ns, step.end_ns, name=name, cat="user_annotation", args={})


def _take_calls_out_of_ops(copy: _Copy) -> None:
    """On CPU, hide all events that are not compute.

    Compute is the training threads' ops without the ``c10d::`` calls in them.
    """
    threads: dict[object, list[int]] = {}
    training = set()
    for row, what in enumerate(copy.identities):
        thread = copy.events[row].get("tid")
        if what.is_op:
            threads.setdefault(thread, []).append(row)
        if what.role is Role.STEP or what.mark in (Mark.FORWARD, Mark.BACKWARD):
            training.add(thread)
    for thread, ops in threads.items():
        if thread in training:
            _cut_ops(copy, ops)
        else:
            for row in ops:
                copy.hide(row)


def _cut_ops(copy: _Copy, ops: list[int]) -> None:
    calls = [row for row in ops if copy.identities[row].mark is Mark.COLLECTIVE_CALL]
    holes = union(*_times(copy, calls))
    start, end, owner = cut_out(*_times(copy, ops), holes)
    pieces: dict[int, list[tuple[int, int]]] = {}
    for piece_start, piece_end, index in zip(start.tolist(), end.tolist(), owner.tolist(), strict=True):
        pieces.setdefault(ops[index], []).append((piece_start, piece_end))
    for row in ops:
        if row not in pieces and copy.end_ns[row] > copy.start_ns[row]:
            copy.hide(row)
        for number, (piece_start, piece_end) in enumerate(pieces.get(row, [])):
            if number:
                copy.append(row, piece_start, piece_end)
            else:
                copy.start_ns[row], copy.end_ns[row] = piece_start, piece_end


def _times(copy: _Copy, rows: list[int]) -> tuple[Int64Column, Int64Column]:
    starts, ends = ([times[row] for row in rows] for times in (copy.start_ns, copy.end_ns))
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _mark_collectives(copy: _Copy, view: PluginView) -> None:
    """Mark collectives: host spans by category, and kernels by an annotation with the kernel's ``External id``."""
    launches = {_correlation(copy.events[row]): row for row in copy.rows(Role.LAUNCH)}
    num_begun: Counter[int] = Counter()
    for row in _communication(copy):
        start_ns = copy.start_ns[row]
        event, shown = copy.events[row], view.collectives.get((start_ns, num_begun[start_ns]))
        num_begun[start_ns] += 1
        on_device = copy.identities[row].role is Role.KERNEL
        if shown is None:
            if on_device:  # host spans are hidden already
                copy.hide(row)
            continue
        own_id = copy.new_id()
        arguments = {_EXTERNAL_ID: own_id, **_message(shown)}
        if not on_device:
            copy.start_ns[row], copy.end_ns[row] = shown.start_ns, shown.end_ns
            event.update(name=shown.name, cat="user_annotation", args={**event["args"], **arguments})
            continue
        launch = launches.get(_correlation(event))
        for linked in [event] if launch is None else [event, copy.events[launch]]:
            _set_id(linked, own_id)
        copy.append(row, shown.start_ns, shown.end_ns, name=shown.name, cat="user_annotation", args=arguments)


def _communication(copy: _Copy) -> list[int]:
    """Return the rows of the events that `Trace.collectives` contains, in the order of that table."""
    kernels = [
        row
        for row in copy.rows(Role.KERNEL)
        if copy.identities[row].kind is not None or isinstance(copy.events[row]["args"].get("Collective name"), str)
    ]
    return sorted(kernels or copy.rows(Role.HOST_COLLECTIVE), key=lambda row: copy.start_ns[row])


def _message(shown: PluginCollective) -> dict[str, Any]:
    """Return arguments from which the plugin computes the message size: input shapes and types."""
    if shown.num_bytes is None:
        return {"Input Dims": [], "Input type": []}
    return {"Input Dims": [[shown.num_bytes]], "Input type": ["unsigned char"]}


def _move_to_zero(copy: _Copy) -> int:
    """Shift all times so that they start at 0, and return the shift in ns.

    The plugin stores times as floats, which have nanosecond resolution only for small values.
    """
    base_ns, _ = copy.extent()
    for event, start_ns, end_ns in zip(copy.events, copy.start_ns, copy.end_ns, strict=True):
        if event.get("ph") != "M" and event.get("ts") is not None:
            event["ts"] = (start_ns - base_ns) / 1000
            if event.get("ph") == "X":
                event["dur"] = (end_ns - start_ns) / 1000
    return base_ns


def _number_threads(copy: _Copy) -> None:
    """Replace thread names with numbers, because the plugin accepts only numbers."""
    numbers: dict[object, int] = {}
    for event in copy.events:
        thread = event.get("tid")
        if isinstance(thread, str) and not thread.isdecimal():
            event["tid"] = numbers.setdefault(thread, -1 - len(numbers))
