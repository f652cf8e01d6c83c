"""Report DDP's work besides reducing gradients: broadcasts of buffers, and copies of gradients out of buckets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddpprof.engine.finding import Finding, at_most, ddp_change, only_known, size
from ddpprof.engine.frameworks import ddp_argument
from ddpprof.engine.topic import Topic, View
from ddpprof.layout import in_ms
from ddpprof.model import DdpModule, RecordedStep
from ddpprof.statistics import median_known


@dataclass(frozen=True, slots=True)
class BufferSyncs:
    """Buffer broadcasts in a typical step of one rank."""

    num_forwards: int
    """number of forwards with gradients"""
    num_buffer_syncs: int
    """number of forwards before which buffers are broadcast"""
    modules_with_buffer_syncs: tuple[int, ...] | None
    """indices of the DDP modules whose buffers are broadcast; ``None`` if unknown"""


def measure_buffer_syncs(steps: Sequence[RecordedStep]) -> BufferSyncs:
    """Return the numbers of forwards and buffer broadcasts, as medians over training steps."""
    forwards = [[one for one in step.forwards if one.has_gradients] for step in steps if step.forwards]
    synchronised = [[one for one in of_step if one.buffer_sync_ns > 0] for of_step in forwards]
    return BufferSyncs(
        num_forwards=median_known(map(len, forwards)) or 0,
        num_buffer_syncs=median_known(map(len, synchronised)) or 0,
        modules_with_buffer_syncs=tuple(sorted({one.module for of_step in synchronised for one in of_step})),
    )


def buffers_broadcast(syncs: BufferSyncs, view: View) -> Iterator[Finding]:
    """Report buffers, such as BatchNorm's running statistics, that rank 0 sends before each synchronised forward."""
    known = syncs.modules_with_buffer_syncs
    synchronised = [m for index, m in enumerate(view.modules) if known is None or index in known]
    modules = [m for m in synchronised if m.settings.get("broadcast_buffers") and m.num_buffers]
    if view.world_size == 1 or not modules or not view.worth(view.buffer_sync_ns):
        return
    batch_norms = sum(m.num_batch_norms for m in modules)
    number = sum(m.num_buffers for m in modules)
    others = number - sum(map(_num_of_batch_norms, modules))
    what = (
        f"{batch_norms} BatchNorm layer{'s' if batch_norms > 1 else ''}"
        if not others
        else ", ".join(m.name for m in modules)
    )
    buffers = f"1 buffer of {what} is" if number == 1 else f"{number} buffers of {what} are"
    yield Finding(
        "buffers-broadcast",
        f"{buffers} broadcast before {_forwards(syncs)}",
        f"broadcasting {size(sum(m.buffer_bytes for m in modules))} takes {in_ms(view.buffer_sync_ns or 0)} per "
        "step, and every rank waits for rank 0",
        f"{_without_broadcast(view)}. " + _if_they_may_differ(others, number),
        view.buffer_sync_ns,
        change=ddp_change(view.framework, **{_argument(view) or "broadcast_buffers": False}),
        numbers=only_known(
            num_buffers=number, buffer_bytes=sum(m.buffer_bytes for m in modules), buffer_sync_ns=view.buffer_sync_ns
        ),
    )


def _num_of_batch_norms(module: DdpModule) -> int:
    known = module.num_buffers_of_batch_norms
    if known is not None:
        return known
    return module.num_buffers if module.num_batch_norms else 0


def _if_they_may_differ(others: int, number: int) -> str:
    """Return the condition for disabling the broadcast. `others`: number of buffers outside BatchNorm layers."""
    statistics = (
        "Training does not use running statistics, but each rank then keeps its own: evaluate and save on rank 0 only."
    )
    if not others:
        return statistics
    them = "them" if others == number else f"the {others} buffer{'s' if others > 1 else ''} outside BatchNorm"
    limit = f"Do this only if the forward does not change {them}, or if they may differ between ranks."
    return limit if others == number else f"{limit} {statistics}"


def _forwards(syncs: BufferSyncs) -> str:
    if syncs.num_buffer_syncs >= syncs.num_forwards:
        return "every forward"
    return f"{syncs.num_buffer_syncs} of {syncs.num_forwards} forwards in a step"


def _without_broadcast(view: View) -> str:
    """Return how to disable the broadcast before forwards.

    ``broadcast_buffers=False``, the only option before torch 2.13, also disables the broadcast at construction.
    """
    argument, alike = _argument(view), "if all ranks start with the same buffers"
    if argument == "broadcast_buffers":
        return f"{ddp_argument(view.framework, 'broadcast_buffers=False')}, {alike}"
    said = ddp_argument(view.framework, "forward_sync_buffers=False")
    return said if argument else f"{said} (before torch 2.13: broadcast_buffers=False, {alike})"


def _argument(view: View) -> str | None:
    """Return the DDP argument that disables the broadcast; ``None`` if the version of torch is unknown."""
    if view.framework in ("accelerate", "transformers"):
        return "broadcast_buffers"
    found = [_VERSION.match(one.torch) for one in view.records.values()]
    version = next(((int(one[1]), int(one[2])) for one in found if one is not None), None)
    if version is None:
        return None
    return "forward_sync_buffers" if version >= (2, 13) else "broadcast_buffers"


_VERSION = re.compile(r"(\d+)\.(\d+)")


def gradient_copies(modules: Sequence[DdpModule], view: View) -> Iterator[Finding]:
    """Report gradients that are copied from buckets into ``.grad`` instead of being views of the buckets."""
    modules = [m for m in modules if not m.settings.get("gradient_as_bucket_view")]
    predicted = view.predictions.bucket_views
    if not modules or not view.copy_out_ns or not view.worth(view.copy_out_ns, predicted):
        return
    memory = sum(p.num_bytes for m in modules for p in m.parameters)
    yield Finding(
        "gradient-copies",
        "Reduced gradients are copied out of their buckets",
        f"{in_ms(view.copy_out_ns)} per step, and {size(memory)} of memory",
        f"{ddp_argument(view.framework, 'gradient_as_bucket_view=True')}. Do not use it if the code calls "
        "grad.detach_().",
        at_most(view.copy_out_ns, predicted),
        predicted=predicted,
        cause_ns=view.copy_out_ns,
        change=ddp_change(view.framework, gradient_as_bucket_view=True),
        numbers=only_known(copy_out_ns=view.copy_out_ns, gradient_bytes=memory),
    )


BUFFER_SYNCS: Topic[BufferSyncs, BufferSyncs] = Topic(
    "buffer_syncs",
    rules=(buffers_broadcast,),
    of_rank=lambda rank, _steps, _modules: measure_buffer_syncs(rank.training_steps) if rank.record else None,
    rank_type=BufferSyncs,
    of_ranks=lambda ranks: ranks[0],
)
"""broadcasts on the first rank, which are the same on all ranks"""

GRADIENT_COPIES: Topic[None, tuple[DdpModule, ...]] = Topic(
    "gradient_copies", rules=(gradient_copies,), of_run=lambda view: view.modules
)
