"""Build the tables of one rank's `Trace` from the columns of a trace file."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ddpprof.intervals import union
from ddpprof.load.classify import DEVICE_ROLES, Role, step_number
from ddpprof.load.host import (
    PhaseFinder,
    StepFinder,
    awaited_until,
    compute_pieces,
    holder_of,
    last_begun,
    launch_of,
    match_calls,
    positions,
    steps_from_forwards,
)
from ddpprof.load.kineto import Header
from ddpprof.load.kineto.columns import IntColumn, Rows, TraceRows
from ddpprof.model import (
    NO_STEP,
    UNKNOWN,
    CollectiveKind,
    Collectives,
    HostSpans,
    Int32Column,
    Int64Column,
    Mark,
    Phase,
    Step,
    Trace,
    Work,
)
from ddpprof.model.tables import HOOK_NODE

_BLOCK_ROWS = 100_000
"""number of rows processed at a time by computations that need much memory per row"""


def build_trace(header: Header, file: TraceRows) -> Trace:
    """Build the tables of one rank's trace."""
    steps, notes = _steps(file)
    found = StepFinder(steps)
    marks = file.rows(Role.MARK)
    phases = PhaseFinder(file.start_ns[marks], file.end_ns[marks], file.mark[marks], file.lane[marks])
    on_device = bool(len(file.rows(*DEVICE_ROLES)))
    work = _device_work(file, found, phases) if on_device else _host_work(file, found, phases)
    return Trace(
        device="gpu" if on_device else "cpu",
        has_cuda=file.has_cuda,
        backend=header.backend,
        rank=header.rank,
        world_size=header.world_size,
        host=header.host,
        epoch_ns=header.base_ns,
        names=tuple(file.names),
        kernels=tuple(file.kernels),
        groups=tuple(file.groups),
        steps=tuple(steps),
        compute=work.compute,
        copies=work.copies,
        collectives=work.collectives,
        host_spans=_host_spans(file, found),
        steps_are_counted=not len(file.rows(Role.STEP)),
        notes=(
            *notes,
            *work.notes,
            *_notes_on_collectives(file, work.collectives),
            *_notes_on_device(file, header, on_device),
        ),
    )


@dataclass(frozen=True, slots=True)
class _FoundWork:
    compute: Work
    copies: Work
    collectives: Collectives
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Origin:
    """Launch time, phase and step of each row of a table."""

    launched_ns: Int64Column
    """time at which the host launched the work in this row, or `UNKNOWN`"""
    phase: NDArray[np.int8]
    step: Int32Column

    def take(self, rows: Rows | NDArray[np.bool_]) -> _Origin:
        return _Origin(self.launched_ns[rows], self.phase[rows], self.step[rows])


def _steps(file: TraceRows) -> tuple[list[Step], list[str]]:
    rows = file.rows(Role.STEP)
    if len(rows):
        numbers = {index: step_number(name) for name, index in file.names.items()}
        rows = rows[np.argsort(file.start_ns[rows], kind="stable")]
        columns = (file.name[rows].tolist(), file.start_ns[rows].tolist(), file.end_ns[rows].tolist())
        return [Step(numbers[name] or 0, start, end) for name, start, end in zip(*columns, strict=True)], []
    forwards = file.marked(Mark.FORWARD)
    if not len(forwards):
        forwards = file.marked(Mark.DATA_PARALLEL)
    if not len(forwards):
        return [], ["the trace has no steps: neither ProfilerStep marks nor calls to DistributedDataParallel.forward"]
    threads, counts = np.unique(file.lane[forwards], return_counts=True)
    on_training_thread = forwards[file.lane[forwards] == threads[np.argmax(counts)]]
    optimizers = file.marked(Mark.OPTIMIZER)
    steps = steps_from_forwards(file.start_ns[on_training_thread], file.start_ns[optimizers], file.last_ns)
    return steps, ["the trace has no ProfilerStep marks: each step lasts from one forward pass to the next"]


def _device_work(file: TraceRows, steps: StepFinder, phases: PhaseFinder) -> _FoundWork:
    kernels = file.rows(Role.KERNEL)
    communicates = file.detail[kernels] != UNKNOWN
    compute, talk, copies = (
        _Queued(file, rows) for rows in (kernels[~communicates], kernels[communicates], file.rows(Role.COPY))
    )
    del kernels, communicates
    origins = [_origin(file, queued, steps, phases) for queued in (compute, talk, copies)]
    notes = []
    if not any(queued.is_known.any() for queued in (compute, talk, copies)):
        notes.append(
            "the trace does not show what launched its kernels: each kernel is assigned to the step in which it runs"
        )
        origins = [
            replace(origin, step=steps.at(file.start_ns[queued.rows]))
            for origin, queued in zip(origins, (compute, talk, copies), strict=True)
        ]
    elif len(talk.rows) and not talk.is_known.any():
        notes.append(
            "the trace does not show what launched its collectives: each collective is assigned to the step of the "
            "last kernel or copy that began before it"
        )
        origins[1] = _of_company(file, talk, (compute, origins[0]), (copies, origins[2]))
    collectives = _collectives(file, talk.rows, origins[1], _asking(file, talk))
    if not len(talk.rows):
        # There are no NCCL kernels. With gloo, host threads transfer the gradients of an accelerator.
        spans = file.rows(Role.HOST_COLLECTIVE)
        collectives = _host_collectives(file, steps, phases, spans, _asked_by(file, spans))
    of_compute, of_copies = compute.rows, copies.rows
    file.forget_launches()
    del compute, talk, copies  # frees the links from kernels to launches, a third of the memory
    copied = _work(file, of_copies, origins.pop())
    computed = _work(file, of_compute, origins[0], file.kernel_of(of_compute))
    return _FoundWork(computed, copied, collectives, tuple(notes))


class _Queued:
    """Rows of device work, and for each row the index of the host call that launched it, or `UNKNOWN`."""

    def __init__(self, file: TraceRows, rows: Rows) -> None:
        self.rows = rows
        self.launch = launch_of(file.correlation[rows], file.launches.correlation, file.launches.start_ns)
        self.is_known: NDArray[np.bool_] = self.launch != UNKNOWN


def _origin(file: TraceRows, queued: _Queued, steps: StepFinder, phases: PhaseFinder) -> _Origin:
    known = queued.is_known
    launched = np.full(len(known), UNKNOWN, np.int64)
    phase = np.full(len(known), Phase.OTHER, np.int8)
    step = np.full(len(known), NO_STEP, np.int32)
    for begin in range(0, len(known), _BLOCK_ROWS):
        rows = begin + np.flatnonzero(known[begin : begin + _BLOCK_ROWS])
        launch = queued.launch[rows]
        launched[rows] = start = file.launches.start_ns[launch]
        phase[rows] = phases.at(start, file.launches.lane[launch])
        step[rows] = steps.at(start)
    return _Origin(launched, phase, step)


def _of_company(file: TraceRows, talk: _Queued, *others: tuple[_Queued, _Origin]) -> _Origin:
    """Assign each communication kernel to a step and phase without knowing its launch.

    Each kernel gets the step and phase of the last earlier kernel or copy with a known launch. ROCm's tracer loses the
    launches of communication kernels (ROCm/roctracer issue 100).
    """
    start = np.concatenate([file.start_ns[queued.rows[queued.is_known]] for queued, _ in others])
    phase = np.concatenate([*(origin.phase[queued.is_known] for queued, origin in others), [Phase.OTHER]])
    step = np.concatenate([*(origin.step[queued.is_known] for queued, origin in others), [NO_STEP]])
    near = last_begun(file.start_ns[talk.rows], start)
    return _Origin(np.full(len(near), UNKNOWN, np.int64), phase[near].astype(np.int8), step[near].astype(np.int32))


def _asking(file: TraceRows, talk: _Queued) -> Rows:
    """Return, for each communication kernel, the ``record_param_comms`` op that launched it, or `UNKNOWN`."""
    ops = file.rows(Role.PARAM_COMMS)
    found = np.full(len(talk.rows), UNKNOWN, np.int64)
    launch = talk.launch[talk.is_known]
    held = holder_of(
        file.launches.start_ns[launch], file.launches.lane[launch],
        file.start_ns[ops], file.end_ns[ops], file.lane[ops],
    )  # fmt: skip
    found[talk.is_known] = np.append(ops, UNKNOWN)[held]
    return found


def _host_work(file: TraceRows, steps: StepFinder, phases: PhaseFinder) -> _FoundWork:
    spans = file.rows(Role.HOST_COLLECTIVE)
    asked = _asked_by(file, spans)
    ops = np.flatnonzero(file.is_op & np.isin(file.lane, _training_threads(file)))
    is_call = file.mark[ops] == Mark.COLLECTIVE_CALL
    over, lane = _over(file, spans, asked)[ops], file.lane[ops].astype(np.int64)
    awaited = awaited_until(file.end_ns[ops], file.start_ns[ops], lane, is_call, over)
    start, end, row = compute_pieces(file.start_ns[ops], file.end_ns[ops], lane, is_call, awaited)
    row = ops[row]
    order = np.argsort(start, kind="stable")
    start, end, row = start[order], end[order], row[order]
    del order, ops
    lane = file.lane[row].astype(np.int64)
    step = steps.at(start)
    kernel = file.kernel_of(row, positions(row, file.name[row], step))
    device = file.device[row].astype(np.int32)
    compute = Work(start, end, file.name[row], phases.at(start, lane), step, lane, kernel, start, device)
    no_rows = np.empty(0, np.int64)
    copies = _work(file, no_rows, _Origin(no_rows, no_rows.astype(np.int8), no_rows.astype(np.int32)))
    return _FoundWork(compute, copies, _host_collectives(file, steps, phases, spans, asked), ())


def _asked_by(file: TraceRows, spans: Rows) -> Rows:
    """Return, for each collective run by host threads, the row of the ``c10d::`` call that started it, or `UNKNOWN`."""
    calls = file.marked(Mark.COLLECTIVE_CALL)
    call = match_calls(file.start_ns[calls], file.kind[calls], file.start_ns[spans], file.kind[spans])
    return np.append(calls, UNKNOWN)[call]


def _over(file: TraceRows, spans: Rows, asked: Rows) -> Int64Column:
    """Return, for each collective, the time until which the training thread may wait for it.

    If a layer of the model starts a collective and waits for it, this is the end of the collective. Otherwise, it is
    the end of the call: DDP's gradient hooks do not wait, because the reducer waits for all buckets at the end of the
    backward pass. If the trace has no hooks, layers and DDP cannot be distinguished, and the end of each call is
    returned.
    """
    over = file.end_ns.copy()
    is_hook = np.array([name.endswith(HOOK_NODE) for name in file.names], np.bool_)
    hooks = np.flatnonzero((file.mark == Mark.BACKWARD) & is_hook[file.name])
    if not len(hooks):
        return over
    known = asked != UNKNOWN
    asked, span = asked[known], spans[known]
    by_hook = union(file.start_ns[hooks], file.end_ns[hooks]).contains(file.start_ns[asked])
    over[asked[~by_hook]] = file.end_ns[span[~by_hook]]
    return over


def _training_threads(file: TraceRows) -> IntColumn:
    in_training = np.isin(file.mark, (Mark.FORWARD, Mark.BACKWARD)) | (file.role == Role.STEP)
    return np.unique(file.lane[in_training])


def _host_collectives(file: TraceRows, steps: StepFinder, phases: PhaseFinder, spans: Rows, asked: Rows) -> Collectives:
    """Return the collectives run by host threads, with the step and phase in which the training thread started them.

    `asked`: for each span, the row of its call, or `UNKNOWN`. Indexing with `UNKNOWN` is allowed, but the result is not
    used.
    """
    known = asked != UNKNOWN
    launched = np.where(known, file.start_ns[asked], UNKNOWN)
    phase = np.where(known, phases.at(launched, file.lane[asked]), Phase.OTHER).astype(np.int8)
    # A comm hook may start further collectives from the backend's threads.
    by_hook = known & ~np.isin(file.lane[asked], _training_threads(file))
    phase = np.where(by_hook, np.int8(Phase.BACKWARD), phase)
    step = steps.at(np.where(known, launched, file.start_ns[spans]))
    collectives = _collectives(file, spans, _Origin(launched, phase, step))
    sizes_of_calls = np.where(known, file.num_bytes(asked), UNKNOWN)
    order = np.argsort(file.start_ns[spans], kind="stable")
    sizes = np.where(collectives.num_bytes == UNKNOWN, sizes_of_calls[order], collectives.num_bytes)
    return replace(collectives, num_bytes=sizes, end_ns=_awaited_ends(file, collectives))


def _awaited_ends(file: TraceRows, collectives: Collectives) -> Int64Column:
    """Return the ends of collectives run by host threads.

    Collectives of the backward pass end before the optimizer starts.

    A span ends only when its thread is scheduled again after the collective. On a busy machine, this may be
    milliseconds late. If a span is still open when the profiler stops, it ends with the trace. The backward pass waits
    for its collectives, so they have ended when the optimizer starts.
    """
    forwards, optimizers = file.marked(Mark.FORWARD), file.marked(Mark.OPTIMIZER)
    on_training_thread = np.isin(file.lane[optimizers], file.lane[forwards])
    begins = np.append(np.sort(file.start_ns[optimizers[on_training_thread]]), np.iinfo(np.int64).max)
    following = begins[np.searchsorted(begins[:-1], collectives.start_ns)]
    awaited = np.minimum(collectives.end_ns, following)
    return np.where(collectives.phase == Phase.BACKWARD, awaited, collectives.end_ns)


def _work(file: TraceRows, rows: Rows, origin: _Origin, kernel: Int32Column | None = None) -> Work:
    kernel = np.full(len(rows), UNKNOWN, np.int32) if kernel is None else kernel
    start = file.start_ns[rows]
    if (np.diff(start) < 0).any():  # with a single stream, rows are already in order
        order = np.argsort(start, kind="stable")
        start, rows, origin, kernel = start[order], rows[order], origin.take(order), kernel[order]
        del order
    return Work(
        start, file.end_ns[rows], file.name[rows], origin.phase, origin.step,
        file.lane[rows].astype(np.int64), kernel, origin.launched_ns, file.device[rows].astype(np.int32),
    )  # fmt: skip


def _collectives(file: TraceRows, rows: Rows, origin: _Origin, asking: Rows | None = None) -> Collectives:
    """Build the table of collectives. Details that a row lacks are taken from the op that launched it.

    `asking`: for each of `rows`, the row of the op that launched it, or `UNKNOWN`.
    """
    order = np.argsort(file.start_ns[rows], kind="stable")
    asking = np.full(len(rows), UNKNOWN, np.int64) if asking is None else asking[order]
    rows, origin = rows[order], origin.take(order)
    details = [
        file.details_of(row).completed(None if op == UNKNOWN else file.details_of(op), by_name)
        for row, op, by_name in zip(rows.tolist(), asking.tolist(), file.kind[rows].tolist(), strict=True)
    ]
    groups = [
        UNKNOWN if detail.group is None else file.groups.setdefault(detail.group, len(file.groups))
        for detail in details
    ]
    return Collectives(
        start_ns=file.start_ns[rows],
        end_ns=file.end_ns[rows],
        name=file.name[rows],
        phase=origin.phase,
        step=origin.step,
        lane=file.lane[rows].astype(np.int64),
        kind=np.array([CollectiveKind.OTHER if d.kind is None else d.kind for d in details], np.int8),
        launched_ns=origin.launched_ns,
        num_bytes=np.array([detail.num_bytes for detail in details], np.int64),
        group=np.array(groups, np.int32),
        sequence=np.array([detail.sequence for detail in details], np.int64),
        device=file.device[rows].astype(np.int32),
    )


def _host_spans(file: TraceRows, steps: StepFinder) -> HostSpans:
    rows = file.rows(Role.MARK)
    rows = rows[np.argsort(file.start_ns[rows], kind="stable")]
    start = file.start_ns[rows]
    thread = file.lane[rows].astype(np.int64)
    return HostSpans(start, file.end_ns[rows], file.mark[rows], file.name[rows], steps.at(start), thread)


def _notes_on_collectives(file: TraceRows, collectives: Collectives) -> list[str]:
    """Return a note if host collectives were still running when the profiler stopped.

    In the trace, these collectives end when the profiler stops.
    """
    on_host = set(file.name[file.rows(Role.HOST_COLLECTIVE)].tolist())
    if file.window_end_ns is None or not on_host:
        return []
    num_open = int(np.count_nonzero(collectives.end_ns == file.window_end_ns))
    if not num_open:
        return []
    which, they_end = ("1 collective was", "it ends") if num_open == 1 else (f"{num_open} collectives were", "they end")
    return [f"{which} still running when the profiler stopped; the trace does not show when {they_end}"]


def _notes_on_device(file: TraceRows, header: Header, on_device: bool) -> list[str]:
    if file.num_devices > 1:
        return [
            f"the rank's kernels ran on {file.num_devices} accelerators. Only the devices table shows them separately"
        ]
    if on_device or not (header.has_device or file.num_launches):
        return []
    return ["the trace names an accelerator but contains no work on it: all times are host times"]
