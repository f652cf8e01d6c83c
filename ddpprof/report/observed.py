"""What the rules of `findings` look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddpprof.events import DdpModule, RecordedStep, Run
from ddpprof.findings import Observed
from ddpprof.measures.bucket_table import BucketSummary
from ddpprof.measures.devices import imbalance_ns
from ddpprof.measures.medians import median_known
from ddpprof.measures.memory import RankMemory
from ddpprof.measures.outside import OutsideCalls
from ddpprof.measures.rpc import RankRpc
from ddpprof.report.ranks import training_steps
from ddpprof.report.tree import AcrossRanks, DataParallelReport, RankReport, SlowdownReport, StepReport


def observe(
    run: Run,
    modules: tuple[DdpModule, ...],
    backend: str | None,
    ranks: Sequence[RankReport],
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
        medians = [median_known(value(step) for step in rank.measured_steps) for rank in ranks if rank.measured_steps]
        return min((m for m in medians if m is not None), default=None)

    records = [rank.record for rank in run.ranks if rank.record]

    def least_recorded(value: Callable[[RecordedStep], int | None]) -> int | None:
        medians = [median_known(value(step) for step in training_steps(record) if step.forwards) for record in records]
        return min((m for m in medians if m is not None), default=None)

    light = [median_known(s.duration_ns for s in rank.light_steps) for rank in ranks]
    data = least(lambda s: s.parts.data_ns if s.parts else None)
    return Observed(
        world_size=run.world_size,
        backend=backend,
        step_ns=least(lambda s: s.parts.step_ns if s.parts else s.duration_ns)
        or min((d for d in light if d is not None), default=None),
        modules=modules,
        buckets=buckets,
        comm_ns=least(lambda s: s.comm_ns),
        exposed_ns=least(lambda s: s.exposed_ns),
        trailing_ns=least(lambda s: s.trailing_ns),
        data_ns=data if data is not None else least_recorded(lambda s: s.data_ns),
        buffer_sync_ns=least_recorded(lambda s: sum(f.buffer_sync_ns for f in s.forwards)),
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
        device_loads=max((rank.devices for rank in ranks), key=imbalance_ns, default=()),
        loaders={record.rank: record.loaders for record in records},
        checkpoints={record.rank: (record.host, record.checkpoints) for record in records},
    )
