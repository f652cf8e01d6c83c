"""Detect gradient accumulation that all-reduces in every backward pass instead of only in the last pass.

    A module accumulates gradients if two of its synchronized backward passes have no optimizer step between them, and
    the second pass adds to the gradients of the first. Only the all-reduce of the last pass is needed.

The following does not count as accumulation: two backward passes of a GAN's discriminator with an optimizer step
between them, and passes that an optimizer runs through its closure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from ddpprof.engine.finding import Change, ChangeKind, Finding, hoped_for, only_known, size
from ddpprof.engine.frameworks import reduce_once
from ddpprof.engine.topic import Topic, View
from ddpprof.layout import in_ms
from ddpprof.model import BackwardPass, RecordedStep


@dataclass(frozen=True, slots=True)
class Accumulation:
    """Backward passes in a typical step of a module that accumulates gradients."""

    module: int
    num_passes: int
    """number of synchronized backward passes in a step"""
    num_superfluous: int
    """number of passes whose gradients the next pass adds to and all-reduces again"""
    num_steps: int
    """number of steps examined"""


def measure_accumulation(steps: Sequence[RecordedStep]) -> tuple[Accumulation, ...]:
    """Return the modules that accumulate gradients and all-reduce them more than once in at least half of `steps`."""
    looked_at = [step for step in steps if step.passes]
    found = []
    for module in sorted({one.module for step in looked_at for one in step.passes}):
        passes = [[one for one in step.passes if one.module == module] for step in looked_at]
        superfluous = [sum(_superfluous(step, of)) for step, of in zip(looked_at, passes, strict=True)]
        if usual := round(median(superfluous)):
            found.append(Accumulation(module, round(median(map(len, passes))), usual, len(looked_at)))
    return tuple(found)


def count_micro_steps(steps: Sequence[RecordedStep]) -> int:
    """Return the number of batches whose gradients are accumulated per optimizer step; 1 if there is no accumulation.

    The number includes forwards under ``no_sync`` and backward passes whose gradients the next pass adds to.
    """
    per_step = []
    for step in steps:
        if step.forwards:
            modules = {forward.module for forward in step.forwards}
            per_step.append(max(_accumulated(step, module) for module in modules))
    return 1 + round(median(per_step)) if per_step else 1


def _accumulated(step: RecordedStep, module: int) -> int:
    without_sync = sum(
        forward.has_gradients and not forward.synchronizes for forward in step.forwards if forward.module == module
    )
    return without_sync + sum(_superfluous(step, [one for one in step.passes if one.module == module]))


def _superfluous(step: RecordedStep, passes: Sequence[BackwardPass]) -> Iterator[bool]:
    """For each pass except the last, yield True if the next pass adds to its gradients before the optimizer steps."""
    for one, following in pairwise(passes):
        begun = one.last_ready_ns
        stepped = begun is None or any(begun <= start < following.origin_ns for start, _ in step.optimizers)
        yield following.adds_up and not stepped


def reduces_every_pass(found: Sequence[Accumulation], view: View) -> Iterator[Finding]:
    """Report gradients that accumulate over several backward passes but are all-reduced in each of them."""
    for one in found:
        module = view.module(one.module)
        if module is None:
            continue
        share = one.num_superfluous / one.num_passes
        most_ns = None if view.exposed_ns is None else round(view.exposed_ns * share)
        gain_ns, predicted = hoped_for(most_ns, view.predictions.no_sync)
        if not view.worth(most_ns, predicted):
            continue
        known = [module.bucket_bytes(index) for index in range(len(module.buckets))]
        sizes = [num_bytes for num_bytes in known if num_bytes is not None]
        sent = f"{size(sum(sizes))} in " if len(sizes) == len(known) else ""
        is_static = bool(module.settings.get("static_graph"))
        exposed = (
            "" if view.exposed_ns is None else (f"; {in_ms(view.exposed_ns)} of communication per step is exposed")
        )
        once = reduce_once(view.framework, is_static)
        yield Finding(
            "reduces-every-pass",
            f"Gradients accumulate over {one.num_passes} backward passes, and every pass all-reduces them",
            f"each pass sends {sent}{_num_buckets(len(module.buckets))}, but the optimizer uses only the result of "
            f"the last pass; seen in {one.num_steps} recorded steps{exposed}",
            f"{once} Code that reads gradients between the passes, such as gradient clipping, then uses each rank's "
            f"local gradients.",
            gain_ns,
            predicted=predicted,
            cause_ns=view.exposed_ns,
            change=None if is_static else Change(ChangeKind.NO_SYNC, {"num_passes": one.num_passes}, once),
            numbers=only_known(num_passes=one.num_passes, num_steps=one.num_steps, exposed_ns=view.exposed_ns),
        )


def _num_buckets(number: int) -> str:
    return "1 bucket" if number == 1 else f"{number} buckets"


ACCUMULATION: Topic[tuple[Accumulation, ...], tuple[Accumulation, ...]] = Topic(
    "accumulation",
    rules=(reduces_every_pass,),
    of_rank=lambda rank, _steps, _modules: measure_accumulation(rank.training_steps) if rank.record else None,
    rank_type=tuple[Accumulation, ...],
    of_ranks=lambda ranks: ranks[0],
)
"""accumulation on the first rank; all ranks are assumed to accumulate in the same way"""
