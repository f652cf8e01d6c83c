"""What the rules of `findings` look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ddpprof.events import DdpModule, Run
from ddpprof.findings import Observed
from ddpprof.measures.bucket_table import BucketSummary
from ddpprof.measures.devices import imbalance_ns
from ddpprof.measures.medians import median_known
from ddpprof.measures.memory import RankMemory
from ddpprof.measures.outside import OutsideCalls
from ddpprof.measures.rpc import RankRpc
from ddpprof.report.rank_summary import RankSummary
from ddpprof.report.tree import AcrossRanks, DataParallelReport, SlowdownReport, StepReport


def observe(
    run: Run,
    modules: tuple[DdpModule, ...],
    backend: str | None,
    ranks: Sequence[RankSummary],
    buckets: tuple[BucketSummary, ...],
    slowdown: SlowdownReport | None,
    across: AcrossRanks,
    outside: tuple[OutsideCalls, ...] | None,
    data_parallel: DataParallelReport | None,
    memory: tuple[RankMemory, ...],
    rpc: tuple[RankRpc, ...],
) -> Observed:
    def least(value: Callable[[StepReport], int | None]) -> int | None:
        """Median over steps, of the rank where it is least: the others' surplus is waiting for a slower rank."""
        return _least(median_known(value(step) for step in one.measured_steps) for one in reports if one.measured_steps)

    reports = [rank.report for rank in ranks]
    records = {rank.rank: rank.record for rank in ranks if rank.record is not None}
    light_ns = _least(median_known(step.duration_ns for step in one.light_steps) for one in reports)
    data = least(lambda s: s.parts.data_ns if s.parts else None)
    return Observed(
        world_size=run.world_size,
        backend=backend,
        step_ns=least(lambda s: s.parts.step_ns if s.parts else s.duration_ns) or light_ns,
        modules=modules,
        buckets=buckets,
        comm_ns=least(lambda s: s.comm_ns),
        exposed_ns=least(lambda s: s.exposed_ns),
        trailing_ns=least(lambda s: s.trailing_ns),
        data_ns=data if data is not None else _least(record.data_ns for record in records.values()),
        buffer_sync_ns=_least(record.buffer_sync_ns for record in records.values()),
        unused_search_ns=least(lambda s: s.wrapper.unused_search_ns or None),  # 0: the trace does not have it
        copy_out_ns=least(lambda s: s.wrapper.copy_out_ns),
        slowdown_lost_ns=slowdown.lost_ns if slowdown else None,
        slowdown_ratio=slowdown.ratio if slowdown else None,
        slowdown_known_share=slowdown.known_share if slowdown else None,
        slowdown_control=slowdown.control if slowdown else None,
        launch_bound_ns=least(lambda s: s.idle.launch_bound_ns if s.idle else None),
        stragglers=across.stragglers.stragglers if across.stragglers else (),
        late_gradients={late.rank: late.gradients for late in across.late_gradients},
        outside=outside or (),
        memory=memory,
        rpc=rpc,
        data_parallel=data_parallel.step if data_parallel else None,
        data_parallel_devices=tuple(len(m.device_ids) for m in data_parallel.modules) if data_parallel else (),
        device_loads=max((one.devices for one in reports), key=imbalance_ns, default=()),
        loaders={rank: record.loaders for rank, record in records.items()},
        checkpoints={rank: (record.host, record.checkpoints) for rank, record in records.items()},
    )


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)
