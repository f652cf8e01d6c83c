"""Detect needless gradient work: reductions during accumulation, discarded gradients, and unused forward passes.

    A module accumulates gradients if two of its synchronized backward passes have no optimizer step between them, and
    the second pass adds to the gradients of the first. Only the all-reduce of the last pass is needed.

These cases do not count as accumulation: two backward passes of a GAN's discriminator with an optimizer step between
them, and passes that an optimizer runs by calling its closure.

Gradients are discarded if they are set to ``None`` before an optimizer uses them. This is typical of a GAN: the
backward pass of the generator's loss also computes gradients of the discriminator, and vice versa.

A forward pass is unused if it runs with gradients, but no backward pass of the same step uses its outputs.
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
from ddpprof.model import BackwardPass, DdpModule, RecordedStep
from ddpprof.words import listed


@dataclass(frozen=True, slots=True)
class Accumulation:
    """Backward passes in a typical step of a module that accumulates gradients."""

    module: int
    num_passes: int
    """number of synchronized backward passes through the module in a step"""
    num_superfluous: int
    """number of passes whose all-reduce is not needed, because the next pass adds to the same gradients"""
    num_steps: int
    """number of steps in which passes were counted"""


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
    """Return the number of batches accumulated per optimizer step; 1 if gradients are not accumulated.

    Counts forward passes under ``no_sync``, and backward passes if the next pass adds to their gradients.
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
    """Report gradients that accumulate over several backward passes, but are all-reduced in each of these passes."""
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
            f"local gradients. A forward pass outside no_sync() makes the following backward pass reduce gradients.",
            gain_ns,
            predicted=predicted,
            cause_ns=view.exposed_ns,
            change=None if is_static else Change(ChangeKind.NO_SYNC, {"num_passes": one.num_passes}, once),
            numbers=only_known(num_passes=one.num_passes, num_steps=one.num_steps, exposed_ns=view.exposed_ns),
        )


def _num_buckets(number: int) -> str:
    return "1 bucket" if number == 1 else f"{number} buckets"


_MOST_NAMED = 3
_FEW_PASSES = 3
_MANY = 0.2
"""discarded gradients are reported if they are discarded in at least this share of the backward passes"""


def gradients_discarded(modules: Sequence[DdpModule], view: View) -> Iterator[Finding]:
    """Report modules whose reduced gradients are often discarded, but used in other passes.

    The gain is an upper bound: the whole step is divided among the passes, in proportion to the size of their
    gradients. Modules without a single used pass are not reported, because their optimizer may work with copies of the
    parameters, as in some kinds of mixed-precision training.
    """
    often = [
        one
        for one in modules
        if one.num_used_passes and one.num_discarded_passes >= max(_FEW_PASSES, _MANY * _num_passes(one))
    ]
    if not often or view.step_ns is None:
        return
    all_bytes = sum(_gradient_bytes(one) * _num_passes(one) for one in modules)
    in_vain = sum(_gradient_bytes(one) * one.num_discarded_passes for one in often)
    gain_ns = round(view.step_ns * in_vain / all_bytes)
    if not view.worth(gain_ns):
        return
    names = listed([*dict.fromkeys(one.name for one in often)], _MOST_NAMED)
    passes = "; ".join(f"{one.name}: {one.num_discarded_passes} of {_num_passes(one)} recorded passes" for one in often)
    yield Finding(
        "gradients-discarded",
        f"DDP reduces gradients of {names} that are then discarded",
        f"{passes}; these gradients were set to None before an optimizer used them, as happens in a GAN that computes "
        "the gradients of both networks but updates only one",
        "Do not compute gradients in these passes: run the module under torch.no_grad(), or detach its output. If "
        "gradients must reach the module's inputs, run its forward pass and the backward pass under `with "
        "ddp.no_sync():`, which does not reduce gradients.",
        gain_ns,
        subject={"module": often[0].name},
        numbers=only_known(num_discarded=sum(one.num_discarded_passes for one in often), step_ns=view.step_ns),
    )


def _num_passes(module: DdpModule) -> int:
    return module.num_used_passes + module.num_discarded_passes


def _gradient_bytes(module: DdpModule) -> int:
    return sum(one.num_bytes for one in module.parameters)


@dataclass(frozen=True, slots=True)
class UnusedForwards:
    """Forward passes with gradients in a module's typical step, and those that no backward pass uses (medians)."""

    module: int
    num_forwards: int
    num_unused: int
    unused_ns: int
    """duration of the unused forward passes"""
    num_steps: int


def measure_unused_forwards(steps: Sequence[RecordedStep]) -> tuple[UnusedForwards, ...]:
    """Return the modules with unused forward passes in most of the steps."""
    known = [step for step in steps if any(one.reaches_backward for one in step.forwards)]
    found = []
    for module in sorted({one.module for step in known for one in step.forwards}):
        of_steps = [[one for one in step.forwards if one.module == module and one.has_gradients] for step in known]
        unused = [[one for one in of if one.reaches_backward is False] for of in of_steps]
        if sum(map(bool, unused)) > len(known) / 2:
            found.append(
                UnusedForwards(
                    module,
                    round(median(map(len, of_steps))),
                    round(median(map(len, unused))),
                    round(median(sum(one.end_ns - one.start_ns for one in of) for of in unused)),
                    len(known),
                )
            )
    return tuple(found)


def unused_forwards(found: Sequence[UnusedForwards], view: View) -> Iterator[Finding]:
    """Report forward passes, such as those for metrics, that run with gradients but that no backward pass uses."""
    for one in found:
        module = view.module(one.module)
        if module is None or not view.worth(one.unused_ns):
            continue
        are = "is" if one.num_unused == 1 else "are"
        yield Finding(
            "unused-forwards",
            f"{one.num_unused} of {one.num_forwards} forward passes of {module.name} per step {are} not used by a "
            "backward pass",
            f"in {one.num_steps} recorded steps, the unused passes ran with gradients, and took {in_ms(one.unused_ns)} "
            "per step",
            "If another pass has the same inputs, use its outputs, for example for metrics. Otherwise, run this pass "
            "under torch.no_grad() on ddp.module, and less often.",
            one.unused_ns,
            subject={"module": module.name},
            numbers=only_known(num_forwards=one.num_forwards, num_unused=one.num_unused, unused_ns=one.unused_ns),
        )


UNUSED_FORWARDS: Topic[tuple[UnusedForwards, ...], tuple[UnusedForwards, ...]] = Topic(
    "unused_forwards",
    rules=(unused_forwards,),
    of_rank=lambda rank, _steps, _modules: measure_unused_forwards(rank.training_steps) if rank.record else None,
    rank_type=tuple[UnusedForwards, ...],
    of_ranks=lambda ranks: ranks[0],
)
DISCARDED_GRADIENTS: Topic[None, tuple[DdpModule, ...]] = Topic(
    "discarded_gradients", rules=(gradients_discarded,), of_run=lambda view: view.modules
)
ACCUMULATION: Topic[tuple[Accumulation, ...], tuple[Accumulation, ...]] = Topic(
    "accumulation",
    rules=(reduces_every_pass,),
    of_rank=lambda rank, _steps, _modules: measure_accumulation(rank.training_steps) if rank.record else None,
    rank_type=tuple[Accumulation, ...],
    of_ranks=lambda ranks: ranks[0],
)
"""how the first rank accumulates gradients; the other ranks are assumed to do the same"""
