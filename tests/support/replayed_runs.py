"""A run made by hand that can be replayed, in the units of `predictions`."""

from collections.abc import Sequence
from typing import Any

from msgspec import structs
from predictions import MIB, UNIT
from tables import ddp_module, forward, record, recorded, run

from ddpprof.model import BackwardPass, BucketTimes, DdpModule, Rank, RecordedStep
from ddpprof.report.build import build_report
from ddpprof.report.run_profile import KnownRun

MODULE = ddp_module((2 * MIB, 2 * MIB), [[1], [0]], bucket_cap_mb=2.0)


def light(number: int, late: int = 0, num_buckets: int = 2, **changes: Any) -> RecordedStep:
    """Of 20: gradients at 14 and 12, buckets of two MiB until 16 and 14, at a ns per byte; the optimizer from 16.

    One bucket is sent from 14 to 18, and all behind it 2 later.
    """
    start, after = number * 100 * UNIT, late if num_buckets > 1 else late + 2

    def at(time: int) -> int:
        return start + time * UNIT

    ends = [(12 + late, 14 + late), (14 + late, 16 + late)] if num_buckets > 1 else [(14 + late, 18 + late)]
    given: dict[str, Any] = {
        "forwards": (forward(start, start, at(9), at(10)),), "ready": {0: (at(14 + late), at(12 + late))},
        "buckets": [(0, index, at(launch), at(end)) for index, (launch, end) in enumerate(ends)],
        "optimizers": ((at(16 + after), at(18 + after)),), "mode": "light", **changes,
    }  # fmt: skip
    return recorded(number, start, at(20 + after), **given)


def in_turn(number: int) -> RecordedStep:
    """Return a step of 40: it does what `light` does, and then the same through a second module."""
    first, second = light(number), _shifted(light(number), 20 * UNIT, module=1)
    return structs.replace(
        first,
        end_ns=second.end_ns,
        forwards=(*first.forwards, *second.forwards),
        passes=(*first.passes, *second.passes),
        optimizers=(*first.optimizers, *second.optimizers),
    )


def _shifted(step: RecordedStep, by_ns: int, module: int) -> RecordedStep:
    def later(ns: int | None) -> int | None:
        return None if ns is None else ns + by_ns

    (ran,), (one,) = step.forwards, step.passes
    buckets = [BucketTimes(b.index, later(b.launched_ns), later(b.finished_ns)) for b in one.buckets]
    start, inner, inner_end, end = (
        ns + by_ns for ns in (ran.start_ns, ran.inner_start_ns, ran.inner_end_ns, ran.end_ns)
    )
    return structs.replace(
        step,
        end_ns=step.end_ns + by_ns,
        forwards=(forward(start, inner, inner_end, end, module=module),),
        passes=(BackwardPass(module, one.origin_ns + by_ns, tuple(map(later, one.ready_ns)), tuple(buckets)),),
        optimizers=tuple((begin + by_ns, done + by_ns) for begin, done in step.optimizers),
    )


def known(
    steps: Sequence[RecordedStep] = (light(1), light(2)),
    modules: Sequence[DdpModule] = (MODULE,),
    num_ranks: int = 2,
    **changes: Any,
) -> KnownRun:
    ranks = [Rank(index, None, record(index, modules, steps, **changes)) for index in range(num_ranks)]
    return KnownRun(build_report(run(*ranks)), tuple(modules), {rank.rank: steps for rank in ranks}, {})
