"""A run made by hand that can be replayed, in the units of `predictions`."""

from collections.abc import Sequence
from typing import Any

from predictions import MIB, UNIT
from tables import ddp_module, forward, record, recorded, run

from ddpprof.model import DdpModule, Rank, RecordedStep
from ddpprof.report import build_report
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


def known(
    steps: Sequence[RecordedStep] = (light(1), light(2)),
    modules: Sequence[DdpModule] = (MODULE,),
    num_ranks: int = 2,
    **changes: Any,
) -> KnownRun:
    ranks = [Rank(index, None, record(index, modules, steps, **changes)) for index in range(num_ranks)]
    return KnownRun(build_report(run(*ranks)), tuple(modules), {rank.rank: steps for rank in ranks}, {})
