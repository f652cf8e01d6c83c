"""Choice of the events in a batch that the tables may need.

Nearly all events are dropped, so a dropped event must cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ddpprof.load.kineto.classify import Family, Identity, Role
from ddpprof.load.kineto.columns import Remembered
from ddpprof.load.kineto.events import FAMILIES, MOMENT_TYPES, Category, Entries, ExactSpan, Span

AnySpan = Span | ExactSpan
KEPT_FAMILIES = (Family.OP, Family.ANNOTATION, Family.KERNEL, Family.COPY)
_HOST_FAMILIES = (Family.OP, Family.ANNOTATION)
_KEPT = [(category, which) for category, which in FAMILIES.items() if which in KEPT_FAMILIES]

_ROUNDING_US = 0.01
"""bound of the error in sums of float64 times"""

_SHAPES = b'"Input Dims"'
_LOOKED_AT, _MANY = 8, 1000
"""until shapes are found, every eighth event is checked if there are many"""

_MOMENT_TYPES = frozenset(MOMENT_TYPES)


class NeededEvents:
    """Events that the tables may need, in the file's order, with their identities if they have one."""

    def __init__(self) -> None:
        self.host: list[AnySpan] = []
        self.host_ids: list[int] = []
        self.device: list[AnySpan] = []
        self.device_ids: list[int] = []
        self.launches: list[AnySpan] = []
        self.ops: list[AnySpan] = []
        self.op_ids: list[int] = []
        """identities of all host ops, if shapes are recorded"""
        self.window_end: msgspec.Raw | None = None

    def of_family(self, which: Family) -> tuple[list[AnySpan], list[int]]:
        return (self.host, self.host_ids) if which in _HOST_FAMILIES else (self.device, self.device_ids)


def needed_events(
    entries: Entries,
    span: type[AnySpan],
    ids: Mapping[Family, Remembered],
    identities: Sequence[Identity],
    has_shapes: bool,
) -> NeededEvents:
    """Choose the events that the tables may need.

    `ids`: for each family and name the index into `identities`, or a negative number for a name that is not needed.
    """
    needed = NeededEvents()
    host, host_ids, ops, all_op_ids, launches = (
        needed.host, needed.host_ids, needed.ops, needed.op_ids, needed.launches
    )  # fmt: skip
    kept = {category: (ids[which], *needed.of_family(which)) for category, which in _KEPT}
    op, op_of_2021 = Category.OP, Category.OP_OF_2021
    unneeded = (Category.FRAME, Category.OTHER)
    op_ids = ids[Family.OP]
    only_op, is_fast = Role.OP, issubclass(span, Span)
    holder_start, holder_end, holder_tid = 0.0, 0.0, None  # an op that holds those that follow, as most do
    for entry in entries:
        kind = type(entry)
        if kind is not span:
            if kind in _MOMENT_TYPES and entry.name == "Record Window End":
                needed.window_end = entry.ts
            continue
        category = entry.cat
        if category is op or category is op_of_2021:
            identity = op_ids[entry.name]
            if has_shapes:
                ops.append(entry)
                all_op_ids.append(identity)
            if identity < 0:
                continue
            if is_fast and identities[identity].role is only_op:
                start = entry.ts
                end = start + entry.dur + _ROUNDING_US
                if start > holder_start and end < holder_end and entry.tid == holder_tid:
                    continue
                holder_start, holder_end, holder_tid = start, end, entry.tid
            host.append(entry)
            host_ids.append(identity)
        elif category in kept:
            of_family, spans, numbers = kept[category]
            identity = of_family[entry.name]
            if identity >= 0:
                spans.append(entry)
                numbers.append(identity)
        elif category not in unneeded:
            launches.append(entry)
    return needed


def sees_shapes(entries: Entries, span: type[AnySpan]) -> bool:
    """Return whether ops have input shapes; a sample suffices, as nearly every op has them if they are recorded."""
    op, of_2021 = Category.OP, Category.OP_OF_2021
    return any(
        _SHAPES in bytes(entry.args)
        for entry in entries[:: _LOOKED_AT if len(entries) > _MANY else 1]
        if type(entry) is span and (entry.cat is op or entry.cat is of_2021)
    )
