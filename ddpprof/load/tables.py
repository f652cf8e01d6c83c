"""The columns of a trace file → the tables of one rank."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ddpprof.events import (
    NO_STEP,
    UNKNOWN,
    CollectiveKind,
    Collectives,
    HostSpans,
    Int32Column,
    Int64Column,
    Kernel,
    Mark,
    Phase,
    ProcessGroup,
    Step,
    Trace,
    Work,
)
from ddpprof.load.arguments import CollectiveDetails
from ddpprof.load.classify import DEVICE_ROLES, Role, step_number
from ddpprof.load.columns import Columns
from ddpprof.load.hostwork import compute_pieces, match_calls, positions
from ddpprof.load.kineto import Header
from ddpprof.load.steps import PhaseFinder, StepFinder, steps_from_forwards

Rows = NDArray[np.int64]


def build_trace(header: Header, columns: Columns) -> Trace:
    """The tables of one rank's trace."""
    file = _File(columns)
    steps, notes = _steps(file)
    found = StepFinder(steps)
    marks = file.rows(Role.MARK)
    phases = PhaseFinder(file.start_ns[marks], file.end_ns[marks], file.mark[marks], file.lane[marks])
    on_device = bool(len(file.rows(*DEVICE_ROLES)))
    work = _device_work(file, found, phases) if on_device else _host_work(file, found, phases)
    return Trace(
        device="gpu" if on_device else "cpu",
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


class _File:
    """The columns, and what the identities say of each row."""

    def __init__(self, columns: Columns) -> None:
        identities = columns.identities
        self.start_ns, self.end_ns = columns.start_ns, columns.end_ns
        self.lane, self.correlation = columns.lane, columns.correlation
        self.detail, self.details = columns.detail, columns.details
        self.window_end_ns = columns.window_end_ns
        self.names: dict[str, int] = {}
        """in order; the values count from 0"""
        self.kernels: dict[Kernel, int] = {}
        self.groups: dict[ProcessGroup, int] = {}
        self.launch_shape, self.input_shape, self.shapes = columns.launch_shape, columns.input_shape, columns.shapes
        index = [self.name_index(identity.name) for identity in identities]
        self.name = np.array(index, np.int32)[columns.identity]
        self.role = np.array([identity.role for identity in identities], np.int8)[columns.identity]
        self.is_op = np.array([identity.is_op for identity in identities], np.bool_)[columns.identity]
        mark = [UNKNOWN if identity.mark is None else identity.mark for identity in identities]
        self.mark = np.array(mark, np.int8)[columns.identity]
        kind = [UNKNOWN if identity.kind is None else identity.kind for identity in identities]
        self.kind = np.array(kind, np.int8)[columns.identity]

    def rows(self, *roles: Role) -> Rows:
        return np.flatnonzero(np.isin(self.role, roles))

    def marked(self, *marks: Mark) -> Rows:
        return np.flatnonzero(np.isin(self.mark, marks))

    def name_index(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def kernel_of(self, rows: Rows, position: Int64Column | None = None) -> Int32Column:
        """Index into ``kernels`` of each row; on CPU by its position among those of its name in its step."""
        if position is None:
            position = np.full(len(rows), UNKNOWN, np.int64)
        parts = np.stack((self.name[rows], self.launch_shape[rows], self.input_shape[rows], position))
        distinct, which = np.unique(parts, axis=1, return_inverse=True)
        names = list(self.names)

        def kernel(name: int, launch: int, inputs: int, place: int) -> Kernel:
            shape, of_inputs = (None if index == UNKNOWN else self.shapes[index] for index in (launch, inputs))
            return Kernel(names[name], shape, of_inputs, None if place == UNKNOWN else place)

        index = [self.kernels.setdefault(kernel(*column), len(self.kernels)) for column in distinct.T.tolist()]
        of_rows: Int32Column = np.array(index, np.int32)[which.reshape(-1)]
        return of_rows


@dataclass(frozen=True, slots=True)
class _Work:
    compute: Work
    copies: Work
    collectives: Collectives
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Origin:
    """Per row of a table: what the host did to bring it about."""

    launched_ns: Int64Column
    """or `UNKNOWN`"""
    phase: NDArray[np.int8]
    step: Int32Column

    def take(self, rows: Rows | NDArray[np.bool_]) -> _Origin:
        return _Origin(self.launched_ns[rows], self.phase[rows], self.step[rows])


def _steps(file: _File) -> tuple[list[Step], list[str]]:
    rows = file.rows(Role.STEP)
    if len(rows):
        numbers = {index: step_number(name) for name, index in file.names.items()}
        rows = rows[np.argsort(file.start_ns[rows], kind="stable")]
        columns = (file.name[rows].tolist(), file.start_ns[rows].tolist(), file.end_ns[rows].tolist())
        return [Step(numbers[name] or 0, start, end) for name, start, end in zip(*columns, strict=True)], []
    forwards = file.marked(Mark.FORWARD)
    if not len(forwards):
        return [], ["the trace has no steps: neither ProfilerStep marks nor a DistributedDataParallel.forward"]
    threads, counts = np.unique(file.lane[forwards], return_counts=True)
    on_training_thread = forwards[file.lane[forwards] == threads[np.argmax(counts)]]
    optimizers = file.marked(Mark.OPTIMIZER)
    last_ns = int(file.end_ns.max())
    steps = steps_from_forwards(file.start_ns[on_training_thread], file.start_ns[optimizers], last_ns)
    return steps, ["the trace has no ProfilerStep marks: steps are counted from one DDP forward to the next"]


def _device_work(file: _File, steps: StepFinder, phases: PhaseFinder) -> _Work:
    kernels, copies, launches = file.rows(Role.KERNEL), file.rows(Role.COPY), file.rows(Role.LAUNCH)
    communicates = file.detail[kernels] != UNKNOWN
    notes = []
    if not len(launches):
        notes.append("the trace does not say what launched its kernels: they count for the step in which they run")

    def origin(rows: Rows) -> _Origin:
        launch = _launch_of(file, rows, launches)
        known = launch != UNKNOWN
        launched = np.where(known, file.start_ns[launch], UNKNOWN)
        phase = np.where(known, phases.at(launched, file.lane[launch]), Phase.OTHER).astype(np.int8)
        if not len(launches):
            return _Origin(launched, phase, steps.at(file.start_ns[rows]))
        return _Origin(launched, phase, np.where(known, steps.at(launched), NO_STEP).astype(np.int32))

    compute, talk = kernels[~communicates], kernels[communicates]
    collectives = _collectives(file, talk, origin(talk))
    if not len(talk):
        # NCCL did not work here; DDP on gloo moves an accelerator's gradients by threads of the host.
        collectives = _host_collectives(file, steps, phases)
    computed = _work(file, compute, origin(compute), file.kernel_of(compute))
    return _Work(computed, _work(file, copies, origin(copies)), collectives, tuple(notes))


def _launch_of(file: _File, rows: Rows, launches: Rows) -> Rows:
    """Row of the first launch with the same correlation, or `UNKNOWN`. One launch may queue many kernels: a graph."""
    if not len(launches):
        return np.full(len(rows), UNKNOWN, np.int64)
    order = launches[np.lexsort((file.start_ns[launches], file.correlation[launches]))]
    wanted = file.correlation[rows]
    position = np.searchsorted(file.correlation[order], wanted)
    launch = order[np.minimum(position, len(order) - 1)]
    return np.where((file.correlation[launch] == wanted) & (wanted != 0), launch, UNKNOWN)


def _host_work(file: _File, steps: StepFinder, phases: PhaseFinder) -> _Work:
    in_training = np.isin(file.mark, (Mark.FORWARD, Mark.BACKWARD)) | (file.role == Role.STEP)
    ops = np.flatnonzero(file.is_op & np.isin(file.lane, np.unique(file.lane[in_training])))
    start, end, row = compute_pieces(
        file.start_ns[ops], file.end_ns[ops], file.lane[ops], file.mark[ops] == Mark.COLLECTIVE_CALL
    )
    row = ops[row]
    order = np.argsort(start, kind="stable")
    start, end, row = start[order], end[order], row[order]
    lane = file.lane[row]
    step = steps.at(start)
    kernel = file.kernel_of(row, positions(row, file.name[row], step))
    compute = Work(start, end, file.name[row], phases.at(start, lane), step, lane, kernel, start)
    no_rows = np.empty(0, np.int64)
    copies = _work(file, no_rows, _Origin(no_rows, no_rows.astype(np.int8), no_rows.astype(np.int32)))
    return _Work(compute, copies, _host_collectives(file, steps, phases), ())


def _host_collectives(file: _File, steps: StepFinder, phases: PhaseFinder) -> Collectives:
    """Communication by threads of the host; it belongs where the training thread asked for it."""
    spans, calls = file.rows(Role.HOST_COLLECTIVE), file.marked(Mark.COLLECTIVE_CALL)
    call = match_calls(file.start_ns[calls], file.kind[calls], file.start_ns[spans], file.kind[spans])
    known = call != UNKNOWN
    calls = np.append(calls, UNKNOWN)  # so that the index UNKNOWN finds something, which is then not used
    asked = calls[call]
    launched = np.where(known, file.start_ns[asked], UNKNOWN)
    phase = np.where(known, phases.at(launched, file.lane[asked]), Phase.OTHER).astype(np.int8)
    in_training = np.isin(file.mark, (Mark.FORWARD, Mark.BACKWARD)) | (file.role == Role.STEP)
    by_hook = known & ~np.isin(file.lane[asked], file.lane[in_training])  # a comm hook goes on in the backend's threads
    phase = np.where(by_hook, np.int8(Phase.BACKWARD), phase)
    step = steps.at(np.where(known, launched, file.start_ns[spans]))
    collectives = _collectives(file, spans, _Origin(launched, phase, step))
    sizes_of_calls = np.where(known, _of_details(file, asked, "num_bytes"), UNKNOWN)
    order = np.argsort(file.start_ns[spans], kind="stable")
    sizes = np.where(collectives.num_bytes == UNKNOWN, sizes_of_calls[order], collectives.num_bytes)
    return replace(collectives, num_bytes=sizes, end_ns=_awaited_ends(file, collectives))


def _awaited_ends(file: _File, collectives: Collectives) -> Int64Column:
    """Ends of the host's collectives, those of the backward pass not after the optimizer's start.

    A span ends when its thread runs again after the collective, which on a busy machine is milliseconds late; one that
    is open when the profiler stops ends with the trace. The backward pass waited for it, so it was over by then.
    """
    forwards, optimizers = file.marked(Mark.FORWARD), file.marked(Mark.OPTIMIZER)
    on_training_thread = np.isin(file.lane[optimizers], file.lane[forwards])
    begins = np.append(np.sort(file.start_ns[optimizers[on_training_thread]]), np.iinfo(np.int64).max)
    following = begins[np.searchsorted(begins[:-1], collectives.start_ns)]
    awaited = np.minimum(collectives.end_ns, following)
    return np.where(collectives.phase == Phase.BACKWARD, awaited, collectives.end_ns)


def _work(file: _File, rows: Rows, origin: _Origin, kernel: Int32Column | None = None) -> Work:
    order = np.argsort(file.start_ns[rows], kind="stable")
    kernel = np.full(len(rows), UNKNOWN, np.int32) if kernel is None else kernel[order]
    rows, origin = rows[order], origin.take(order)
    return Work(
        file.start_ns[rows], file.end_ns[rows], file.name[rows], origin.phase, origin.step, file.lane[rows],
        kernel, origin.launched_ns,
    )  # fmt: skip


def _collectives(file: _File, rows: Rows, origin: _Origin) -> Collectives:
    order = np.argsort(file.start_ns[rows], kind="stable")
    rows, origin = rows[order], origin.take(order)
    details = [_details(file, row) for row in rows.tolist()]
    by_name = [CollectiveKind.OTHER if kind == UNKNOWN else kind for kind in file.kind[rows].tolist()]
    kinds = [name if detail.kind is None else detail.kind for name, detail in zip(by_name, details, strict=True)]
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
        lane=file.lane[rows],
        kind=np.array(kinds, np.int8),
        launched_ns=origin.launched_ns,
        num_bytes=np.array([detail.num_bytes for detail in details], np.int64),
        group=np.array(groups, np.int32),
        sequence=np.array([detail.sequence for detail in details], np.int64),
    )


def _details(file: _File, row: int) -> CollectiveDetails:
    index = int(file.detail[row])
    return CollectiveDetails() if index == UNKNOWN else file.details[index]


def _of_details(file: _File, rows: Rows, what: str) -> Int64Column:
    return np.array([getattr(_details(file, row), what) for row in rows.tolist()], np.int64)


def _host_spans(file: _File, steps: StepFinder) -> HostSpans:
    rows = file.rows(Role.MARK)
    rows = rows[np.argsort(file.start_ns[rows], kind="stable")]
    start = file.start_ns[rows]
    return HostSpans(start, file.end_ns[rows], file.mark[rows], file.name[rows], steps.at(start), file.lane[rows])


def _notes_on_collectives(file: _File, collectives: Collectives) -> list[str]:
    """A span that is still open when the profiler stops is written as if it ended then."""
    on_host = set(file.name[file.rows(Role.HOST_COLLECTIVE)].tolist())
    if file.window_end_ns is None or not on_host:
        return []
    num_open = int(np.count_nonzero(collectives.end_ns == file.window_end_ns))
    if not num_open:
        return []
    return [f"{num_open} collective(s) still ran when the profiler stopped: their ends in the trace are too late"]


def _notes_on_device(file: _File, header: Header, on_device: bool) -> list[str]:
    if on_device or not (header.has_device or len(file.rows(Role.LAUNCH))):
        return []
    return ["the trace knows of an accelerator but holds none of its work: times are those of the host"]
