"""Collect the events that the tables need into columns, batch by batch.

As little Python code as possible runs per event. For a large file, each of several processes collects some groups of
batches, and `columns_of` joins their results.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress, repeat
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ddpprof.intervals import held_by_earlier
from ddpprof.load.classify import (
    DEVICE_ROLES,
    Family,
    Identity,
    IdentityColumns,
    Role,
    classify_in,
    is_of_cuda,
    may_queue_work,
    waits_for_device,
)
from ddpprof.load.kineto.columns import (
    NAMED_LANE,
    Collected,
    EventRows,
    IntColumn,
    LaunchRows,
    OpShapeRows,
    concatenated,
    narrow,
    outermost_only,
)
from ddpprof.load.kineto.events import (
    KEPT_FAMILIES,
    AnySpan,
    Arguments,
    Entries,
    LaunchArguments,
    NeededEvents,
    OpArguments,
    SpanType,
    collective_details,
    decode_arguments,
    is_exact,
    needed_events,
    sees_shapes,
)
from ddpprof.load.lenient_json import NeedsExactTimesError, as_int, integers, nanoseconds, nanoseconds_of_texts
from ddpprof.model import UNKNOWN, Int64Column

_MERGE_ROWS = 100_000
"""to save memory, nested ops are dropped when there are this many rows, and again whenever the number of remaining rows
has about tripled
"""

_MOST_NAMES = 100_000
"""maximum number of distinct names, not counting the names of steps; each name takes several hundred bytes"""
_OTHERS = "(name omitted: too many distinct names)"

_MOST_KEYS = 400_000
"""maximum number of cached keys; without a limit, a malicious trace with a different name in every event could fill the
memory
"""

_UNNEEDED, _UNNEEDED_OP = -1, -2
"""values that stand for an unneeded event, and for an unneeded op whose input shapes are kept for the kernels that it
launches
"""

_MAX_DEVICE = 1 << 16
_NULL = b"null"


class Collector:
    """Receives events in batches, and keeps the events that the tables need."""

    def __init__(self) -> None:
        self.kept = Collected()
        self.num_events = 0
        self.has_shapes = False
        """whether any op so far had input shapes"""
        self._group = 0
        self._num_rows = self._num_merged = 0
        self._known_facts = IdentityColumns([])
        self._of_others: dict[Identity, int] = {}
        self._numbers_of_others: set[int] = set()
        self._ids = {
            which: _Remembered(partial(self._identify, which), self._numbers_of_others) for which in KEPT_FAMILIES
        }
        """for each family and name: index into ``identities``, or a negative number if the event is not needed"""
        self._lanes = _Remembered(self._lane)
        self._device_numbers = _Remembered(_device_number)
        self._shapes = _Remembered(self._shape)
        """text of a shape in the file → index of the shape"""
        self._launch_shapes = _Remembered(self._launch_shape)
        self._queues = _Remembered(self._may_queue_work)
        self._waits = _Remembered(waits_for_device)
        self._ids_of_waits = _Remembered(partial(self._identify, Family.LAUNCH), self._numbers_of_others)
        self._on_device = False

    def _may_queue_work(self, call: str) -> bool:
        self.kept.calls_of_cuda.add(is_of_cuda(call))
        return may_queue_work(call)

    def begin(self, group: int) -> None:
        """Begin a group, to which all events added from now on belong. Groups must be added in the file's order."""
        self._group = group

    def add(self, entries: Entries, span: SpanType) -> None:
        """Keep the events that the tables need.

        Raises `TimeOutOfRangeError` and `NeedsExactTimesError`. If an exception is raised, none of these events are
        kept.
        """
        self.has_shapes = self.has_shapes or sees_shapes(entries, span)
        needed = needed_events(entries, span, self._ids, self.kept.identities, self.has_shapes)
        host, device = needed.host, needed.device
        launches = [call for call in needed.launches if self._queues[call.name]]
        waits = [row for row, call in enumerate(launches) if self._waits[call.name]]
        start_ns, end_ns = _times([*host, *device, *launches], is_exact(span))
        if needed.window_end is not None:
            self.kept.window_end = self._group, int(nanoseconds_of_texts([needed.window_end])[0])
        self.num_events += len(entries)
        self.kept.num_events[self._group] += len(entries)
        self.kept.num_launches[self._group] += len(needed.launches)
        of_host, of_device = slice(len(host)), slice(len(host), len(host) + len(device))
        self._see_end(end_ns[len(host) :])
        if host:
            self._add_host(host, start_ns[of_host], end_ns[of_host], np.array(needed.host_ids, np.int32))
        if device:
            self._add_device(device, start_ns[of_device], end_ns[of_device], np.array(needed.device_ids, np.int32))
        if launches:
            self._add_launches(launches, start_ns[of_device.stop :])
        if waits:
            rows = of_device.stop + np.array(waits)
            self._add_waits([launches[row] for row in waits], start_ns[rows], end_ns[rows])
        if needed.ops:
            self._add_shapes(needed)
        if self._num_rows > _MERGE_ROWS + 2 * self._num_merged and not self._on_device:
            self._merge()

    def collected(self) -> Collected:
        """Return the kept events. The collector must not be used afterwards."""
        if not self._on_device:
            self._merge()
        return self.kept

    def _see_end(self, end_ns: Int64Column) -> None:
        self.kept.last_ns = int(end_ns.max(initial=self.kept.last_ns))

    def _add_launches(self, launches: Sequence[AnySpan], start: Int64Column) -> None:
        correlation = integers(list(map(_correlation, _arguments(LaunchArguments, launches))))
        rows = np.flatnonzero(correlation)  # without correlation, the call queued nothing
        lane = self._lanes.all([launches[row].tid for row in rows.tolist()])
        group = self._groups(len(rows))
        self.kept.launches.add(LaunchRows(start[rows], narrow(lane), narrow(correlation[rows]), group))

    def _add_waits(self, calls: Sequence[AnySpan], start_ns: Int64Column, end_ns: Int64Column) -> None:
        """Add a mark for each host call that waits for the accelerator."""
        ids = np.array([self._ids_of_waits[call.name] for call in calls], np.int32)
        unknown, none = np.full(len(calls), UNKNOWN, np.int8), np.zeros(len(calls), np.int8)
        self._add_rows(
            start_ns, end_ns,
            identity=ids, lane=self._lanes.all(map(_tid, calls)), device=unknown, correlation=none,
            detail=np.full(len(calls), UNKNOWN, np.int64), launch_shape=unknown, op=none,
        )  # fmt: skip

    def _add_host(
        self, spans: Sequence[AnySpan], start_ns: Int64Column, end_ns: Int64Column, ids: NDArray[np.int32]
    ) -> None:
        lane = self._lanes.all(map(_tid, spans))
        facts = self._facts()
        kept = ~facts.is_only_op[ids]
        self._see_end(end_ns[kept])
        self.kept.last_op_ns = int(end_ns.max(where=~kept, initial=self.kept.last_op_ns))
        if not self._on_device:
            ops = np.flatnonzero(facts.is_op[ids])
            kept[ops[~held_by_earlier(start_ns[ops], end_ns[ops], lane[ops])]] = True
        rows = np.flatnonzero(kept)
        ids = ids[rows]
        collectives = np.flatnonzero(facts.kind[ids] != UNKNOWN)
        detail = np.full(len(rows), UNKNOWN, np.int64)
        if len(collectives):
            asked = [spans[row] for row in rows[collectives].tolist()]
            detail[collectives] = self._add_details(_arguments(Arguments, asked))
        unknown, none = np.full(len(rows), UNKNOWN, np.int8), np.zeros(len(rows), np.int8)
        self._add_rows(
            start_ns[rows], end_ns[rows],
            identity=ids, lane=lane[rows], device=unknown, correlation=none, detail=detail,
            launch_shape=unknown, op=none,
        )  # fmt: skip

    def _add_device(
        self, spans: Sequence[AnySpan], start_ns: Int64Column, end_ns: Int64Column, ids: NDArray[np.int32]
    ) -> None:
        arguments = _arguments(Arguments, spans)
        lane = self._lanes.all(_known(map(_stream, arguments), map(_tid, spans)))
        facts = self._facts()
        is_kernel, is_comm = facts.role[ids] == Role.KERNEL, facts.kind[ids] != UNKNOWN
        is_comm |= is_kernel & np.array([type(name) is str for name in map(_collective, arguments)])
        detail = np.full(len(spans), UNKNOWN, np.int64)
        detail[is_comm] = self._add_details(compress(arguments, is_comm.tolist()))
        kernels = list(compress(arguments, is_kernel.tolist()))
        correlation = integers(list(map(_correlation, arguments)))
        shape, op = np.full(len(spans), UNKNOWN, np.int64), np.zeros(len(spans), np.int64)
        if kernels:
            pairs = zip(_texts(map(_grid, kernels)), _texts(map(_block, kernels)), strict=True)
            shape[is_kernel] = self._launch_shapes.all(pairs)
            op[is_kernel] = _op_ids(kernels)
            op[op == correlation] = 0  # Kineto found no op, and the number may be another op's ID (kineto #843)
            self.kept.devices.update(self._device_numbers.all(map(_device, kernels)).tolist())
        device = self._device_numbers.all(_known(map(_device, arguments), map(_in_device, arguments)))
        self._add_rows(
            start_ns, end_ns,
            identity=ids, lane=lane, device=device, correlation=correlation, detail=detail, launch_shape=shape, op=op,
        )  # fmt: skip

    def _add_rows(self, start_ns: Int64Column, end_ns: Int64Column, **columns: IntColumn) -> None:
        self.kept.events.add(
            EventRows(
                start_ns=start_ns.copy(),
                duration_ns=narrow(end_ns - start_ns),
                group=self._groups(len(start_ns)),
                **{name: narrow(column) for name, column in columns.items()},
            )
        )
        self._num_rows += len(start_ns)

    def _groups(self, num_rows: int) -> IntColumn:
        return np.full(num_rows, self._group, np.min_scalar_type(-1 - self._group))

    def _add_details(self, arguments: Iterable[Arguments]) -> NDArray[np.int64]:
        details = self.kept.details
        begin = len(details)
        details.extend(map(collective_details, arguments))
        return np.arange(begin, len(details))

    def _add_shapes(self, needed: NeededEvents) -> None:
        is_op = np.append(self._facts().is_op, [True, False])  # the last two are for `_UNNEEDED_OP` and `_UNNEEDED`
        chosen = is_op[np.array(needed.op_ids, np.int32)].tolist()
        ops = _arguments(OpArguments, list(compress(needed.ops, chosen)))
        shape = self._shapes.all(_texts(map(_input_dims, ops)))
        known = shape != UNKNOWN
        group = self._groups(int(np.count_nonzero(known)))
        self.kept.ops_with_shapes.add(OpShapeRows(narrow(_op_ids(ops)[known]), narrow(shape[known]), group))

    def _facts(self) -> IdentityColumns:
        if len(self._known_facts.is_op) < len(self.kept.identities):
            self._known_facts = IdentityColumns(self.kept.identities)
        return self._known_facts

    def _launch_shape(self, pair: tuple[bytes, bytes]) -> int:
        return UNKNOWN if pair[0] == _NULL else self._shape(b" ".join(pair))

    def _shape(self, text: bytes) -> int:
        if text == _NULL:
            return UNKNOWN
        return self.kept.shapes.setdefault(b"".join(text.split()), len(self.kept.shapes))

    def _merge(self) -> None:
        """Merge all chunks into one, and drop ops nested in other ops."""
        rows = outermost_only(concatenated(EventRows, self.kept.events), self._facts())
        self.kept.events.become(rows)
        self._num_rows = self._num_merged = len(rows.start_ns)

    def _identify(self, which: Family, name: str) -> int:
        """Return the index of the identity for a new name, or a negative number if its events are not needed."""
        identity = classify_in(which, name)
        if identity.role in DEVICE_ROLES and not self._on_device:
            self._on_device = True
            self._forget_ops()
        if identity.role is Role.UNUSED or (self._on_device and identity.role is Role.OP):
            return _UNNEEDED_OP if identity.is_op else _UNNEEDED
        if len(self.kept.identities) >= _MOST_NAMES and identity.role is not Role.STEP:
            return self._one_of_others(identity)
        self.kept.identities.append(identity)
        return len(self.kept.identities) - 1

    def _one_of_others(self, identity: Identity) -> int:
        """Return the index of the identity that is shared by all names beyond the limit."""
        shared = replace(identity, name=_OTHERS)
        if shared not in self._of_others:
            self.kept.identities.append(shared)
            self._of_others[shared] = len(self.kept.identities) - 1
            self._numbers_of_others.add(len(self.kept.identities) - 1)
        return self._of_others[shared]

    def _forget_ops(self) -> None:
        """Drop host ops, which make up most events. They count as compute only in a trace without device work."""
        is_only_op = self._facts().is_only_op
        of_ops = self._ids[Family.OP]
        of_ops.update({name: _UNNEEDED_OP for name, number in of_ops.items() if number >= 0 and is_only_op[number]})
        self.kept.events.keep(lambda rows: ~is_only_op[rows.identity])

    def _lane(self, name: object) -> int:
        """Return the number of a stream or thread. Names that are not numbers are numbered from `NAMED_LANE` down."""
        number = as_int(name)
        if number is not None and number > NAMED_LANE:
            return number
        return self.kept.named_lanes.setdefault(str(name), NAMED_LANE - len(self.kept.named_lanes))


def _times(spans: Sequence[AnySpan], exact: bool) -> tuple[Int64Column, Int64Column]:
    """Return the starts and ends in ns. Raises `NeedsExactTimesError` and `TimeOutOfRangeError`."""
    durations = np.fromiter(map(_dur, spans), np.float64, len(spans))
    if exact:
        start_ns = nanoseconds_of_texts(list(map(_ts, spans)))
    else:
        start_ns = nanoseconds(np.fromiter(map(_ts, spans), np.float64, len(spans)))
    try:
        duration_ns = nanoseconds(durations)
    except NeedsExactTimesError:
        if not exact:
            raise
        duration_ns = nanoseconds(durations.tolist(), exact=True)
    return start_ns, start_ns + np.maximum(duration_ns, 0)


_ts, _dur, _tid, _args = map(attrgetter, ("ts", "dur", "tid", "args"))
_grid, _block, _input_dims = map(attrgetter, ("grid", "block", "input_dims"))
_stream, _device, _in_device = map(attrgetter, ("stream", "device", "in_device"))
_correlation, _collective, _op, _op_of_2021 = map(attrgetter, ("correlation", "collective", "op", "op_of_2021"))
_NOTHING = Arguments()


def _known(values: Iterable[Any], otherwise: Iterable[Any]) -> Sequence[Any]:
    """Replace values that are ``None`` with the corresponding values of `otherwise`.

    Nearly all files have no such values.
    """
    values = list(values)
    if None not in values:
        return values
    return [other if value is None else value for value, other in zip(values, otherwise, strict=False)]


def _texts(raws: Iterable[msgspec.Raw]) -> Sequence[bytes]:
    """Return the text of each value.

    All values are joined and split at zero bytes, which JSON cannot contain. This is faster than converting each value.
    """
    raws = list(raws)
    return b"\0".join(raws).split(b"\0") if raws else []


def _op_ids(arguments: Sequence[Any]) -> Int64Column:
    """Return the IDs of the ops or, for kernels, of the ops that launched them."""
    ids = integers(list(map(_op, arguments)))
    return ids if ids.all() else np.where(ids == 0, integers(list(map(_op_of_2021, arguments))), ids)


def _arguments(kind: type[Any], spans: Sequence[AnySpan]) -> Sequence[Any]:
    """Return the arguments of each event, decoded as `kind`, or as `Arguments` if they were decoded with the event."""
    if spans and isinstance(spans[0].args, msgspec.Raw):
        return decode_arguments(kind, list(map(_args, spans)))
    return _known(map(_args, spans), repeat(_NOTHING))


def _device_number(name: object) -> int:
    number = as_int(name)
    return number if number is not None and 0 <= number <= _MAX_DEVICE else UNKNOWN


class _Remembered(dict[Any, int]):
    """A cache of the numbers that a function returns for keys."""

    def __init__(self, find: Callable[[Any], int], shared: Container[int] = ()) -> None:
        """Create an empty cache for the results of `find`. `shared`: results that many keys have in common.

        Once there are too many keys, results in `shared` and negative results, which stand for unknown values, are no
        longer cached.
        """
        super().__init__()
        self._find = find
        self._shared = shared

    def __missing__(self, key: Any) -> int:
        number = self._find(key)
        if len(self) < _MOST_KEYS or not (number < 0 or number in self._shared):
            self[key] = number
        return number

    def all(self, keys: Iterable[Any]) -> NDArray[np.int64]:
        keys = list(keys)
        try:
            return np.fromiter(map(self.__getitem__, keys), np.int64, len(keys))
        except TypeError:  # a list or an object where a number should be
            return np.array([self._find(key) for key in keys], np.int64)
