r"""Find copies of data to the accelerator that delay computation.

    exposed copy = |copies from the host to the device \ computation \ communication|, median over steps

A copy from pageable memory also makes the host wait until the data has been copied into a buffer of the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ddpprof.engine.finding import Finding, only_known
from ddpprof.engine.topic import Topic, View
from ddpprof.intervals import intersect, union_of
from ddpprof.layout import in_ms
from ddpprof.model import Rank
from ddpprof.model.backends import PAGEABLE, TO_DEVICE
from ddpprof.topics.steps.breakdown import split_step

_MUCH = 0.02
"""copies are reported if exposed copies take at least this share of the step"""


@dataclass(frozen=True, slots=True)
class RankCopies:
    """Copies from the host to one rank's accelerator per step; medians over steps."""

    rank: int
    num_steps: int
    num_copies: float
    exposed_ns: int
    pageable_ns: int
    """part of `exposed_ns` in which data is copied from pageable memory"""


def measure_copies(rank: Rank, steps: Sequence[int]) -> RankCopies | None:
    """Measure the steps with these indices; return ``None`` without an accelerator, or if nothing is copied to it."""
    trace = rank.trace
    if trace is None or trace.device == "cpu":
        return None
    to_device = [name for name, text in enumerate(trace.names) if TO_DEVICE.search(text)]
    pageable = [name for name in to_device if PAGEABLE in trace.names[name]]
    is_to_device, is_pageable = (np.isin(trace.copies.name, names) for names in (to_device, pageable))
    numbers = [int(np.count_nonzero(is_to_device & (trace.copies.step == step))) for step in steps]
    if not any(numbers):
        return None
    exposed = [split.copies for step in steps if (split := split_step(trace, step)) is not None]

    def exposed_ns(rows: NDArray[np.bool_]) -> int:
        copied = union_of(trace.copies, rows)
        return round(median(intersect(spans, copied).total_ns for spans in exposed))

    return RankCopies(
        rank.rank, len(exposed), float(median(numbers)), exposed_ns(is_to_device), exposed_ns(is_pageable)
    )


def exposed_copies(ranks: Sequence[RankCopies], view: View) -> Iterator[Finding]:
    """Report copies to the accelerator that take much of the step on every rank, with no computation."""
    least = min(ranks, key=lambda one: one.exposed_ns)
    if not view.step_ns or least.exposed_ns < _MUCH * view.step_ns:
        return
    is_pageable = 2 * least.pageable_ns > least.exposed_ns
    yield Finding(
        "exposed-copies",
        f"Copying data to the accelerator takes {in_ms(least.exposed_ns)} per step, during which nothing is computed",
        f"{least.num_copies:g} copies per step"
        + (f", {in_ms(least.pageable_ns)} from memory that is not pinned" if least.pageable_ns else "")
        + f", measured in {least.num_steps} steps of rank {least.rank}",
        _PIN if is_pageable else _OVERLAP,
        least.exposed_ns,
        numbers=only_known(exposed_ns=least.exposed_ns, pageable_ns=least.pageable_ns, num_copies=least.num_copies),
    )


_OVERLAP = (
    "Copy the next batch while the current one is processed: pin its memory, call batch.to(device, non_blocking=True) "
    "on another stream (torch.cuda.stream(…)), and make the current stream wait for that stream before the batch is "
    "used. Copy fewer bytes, for example images as uint8."
)
_PIN = (
    "Pin the batches with DataLoader(…, pin_memory=True), and copy them with batch.to(device, non_blocking=True). A "
    "copy from memory that is not pinned is slower, and makes the host wait."
)

COPIES: Topic[RankCopies, tuple[RankCopies, ...]] = Topic(
    "copies",
    rules=(exposed_copies,),
    of_rank=lambda rank, steps, _modules: measure_copies(rank, steps),
    rank_type=RankCopies,
    of_ranks=tuple,
)
