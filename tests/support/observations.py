"""Observations for the rules of findings, made by hand."""

from dataclasses import fields, replace
from typing import Any

from tables import ddp_module

from ddpprof.engine.finding import Finding
from ddpprof.engine.topic import View
from ddpprof.model import DdpModule, Loader
from ddpprof.report.topics import find_all
from ddpprof.topics.accumulation import ACCUMULATION
from ddpprof.topics.buckets.rules import BUCKETS
from ddpprof.topics.buckets.steps import BucketRow
from ddpprof.topics.data import DATA, RANDOM_NUMBERS, DataLoading
from ddpprof.topics.devices import DEVICES, DataParallelStep
from ddpprof.topics.hangs import HANGS, HangRisks
from ddpprof.topics.idle import IDLE, OPTIMIZERS
from ddpprof.topics.losses import LOSSES
from ddpprof.topics.overlap_slowdown import OVERLAP_SLOWDOWN, OverlapSlowdownReport
from ddpprof.topics.process_settings import HOST_THREADS, HostThreads
from ddpprof.topics.ranks.rules import LATENESS, Lateness
from ddpprof.topics.replicas import CHECKPOINTS, REPLICAS, Replicas
from ddpprof.topics.unused_parameters import UNUSED_PARAMETERS
from ddpprof.topics.wrapper import BUFFER_SYNCS, GRADIENT_COPIES, BufferSyncs

MIB, MS = 2**20, 1_000_000


STEP_NS = 100 * MS


"""so that findings below 1 ms are not worth saying"""


def bucket(module: DdpModule, index: int, **changes: Any) -> BucketRow:
    parameters = module.buckets[index]
    given: dict[str, Any] = dict.fromkeys(
        ("first_ready_ns", "ready_ns", "launched_ns", "started_ns", "finished_ns", "transfer_ns", "slowest_parameter",
         "slowest_parameter_delay_ns", "late_rank", "late_by_ns")
    )  # fmt: skip
    given |= {
        "module": 0, "index": index, "num_bytes": sum(module.parameters[p].num_bytes for p in parameters),
        "num_parameters": len(parameters), "first_parameter": f"p{parameters[0]}",
        "last_parameter": f"p{parameters[-1]}", **changes,
    }  # fmt: skip
    return BucketRow(**given)


_OF_DATACLASSES = (
    (LATENESS, Lateness),
    (HOST_THREADS, HostThreads),
    (REPLICAS, Replicas),
    (DATA, DataLoading),
    (HANGS, HangRisks),
)
_OF_VALUES = {
    "accumulation": ACCUMULATION,
    "checkpoints": CHECKPOINTS,
    "device_loads": DEVICES,
    "nonfinite": LOSSES,
    "same_random_numbers": RANDOM_NUMBERS,
    "slowdown": OVERLAP_SLOWDOWN,
}
_ONCE = BufferSyncs(num_forwards=1, num_buffer_syncs=1, modules_with_buffer_syncs=None)


def observed(module: DdpModule | None = None, buckets: Any = (), **changes: Any) -> View:
    """Make a view with fields of `View`, and with what topics show by the names of its fields.

    `buckets` are facts about each of the module's buckets.
    """
    modules = (module,) if module else ()
    shown: dict[str, Any] = {_OF_VALUES[name].name: changes.pop(name) for name in _OF_VALUES & changes.keys()}
    for topic, kind in _OF_DATACLASSES:
        shown[topic.name] = kind(**{one.name: changes.pop(one.name) for one in fields(kind) if one.name in changes})
    syncs = {one.name: changes.pop(one.name) for one in fields(BufferSyncs) if one.name in changes}
    if module:
        shown[BUCKETS.name] = tuple(bucket(module, i, **known) for i, known in enumerate(buckets))
    shown[BUFFER_SYNCS.name] = replace(_ONCE, **syncs)
    view = View(**{"world_size": 2, "step_ns": STEP_NS, "modules": modules, **changes})
    derived = {
        one.name: one.of_run(view) for one in (UNUSED_PARAMETERS, GRADIENT_COPIES, IDLE, OPTIMIZERS) if one.of_run
    }
    return replace(view, shown={**shown, **derived})


def slowdown(lost_ns: int, ratio: float | None, known_share: float | None, **changes: Any) -> OverlapSlowdownReport:
    return OverlapSlowdownReport(
        None, ratio, lost_ns, covered_ns=lost_ns, known_share=known_share, knows_input_shapes=True, num_steps=4,
        kernels=(), **changes,
    )  # fmt: skip


def beside(name: str, shown: Any, **changes: Any) -> tuple[Finding, ...]:
    """Return the findings for what the topic of that name shows."""
    view = observed(**changes)
    return find_all(replace(view, shown={**view.shown, name: shown}))


def only(view: View) -> Finding:
    (finding,) = find_all(view)
    return finding


def of_mib(*buckets: list[float], **settings: Any) -> DdpModule:
    """Make a module whose buckets have parameters of these sizes in MiB, in launch order."""
    flat = [round(size * MIB) for sizes in buckets for size in sizes]
    indices = iter(range(len(flat)))
    return ddp_module(flat, [[next(indices) for _ in sizes] for sizes in buckets], **settings)


def loader(**changes: Any) -> Loader:
    return Loader(**{
        "sampler": "RandomSampler", "dataset_size": 100, "batch_size": 4, "num_workers": 2, "num_iterations": 3,
        "epochs_set": None, "shuffles": True, "num_batches": 9, "num_fed": 9, **changes,
    })  # fmt: skip


HELD = of_mib([1, 1], [2], [2])
LATE = [
    {"ready_ns": 40 * MS, "launched_ns": 40 * MS, "slowest_parameter": "p1", "slowest_parameter_delay_ns": 20 * MS},
    {"ready_ns": 25 * MS, "launched_ns": 41 * MS},
    {"ready_ns": 50 * MS, "launched_ns": 50 * MS},
]
BUFFERS = {"num_buffers": 6, "buffer_bytes": 400, "num_batch_norms": 2}
MOVED = DataParallelStep(1, 3 * MS, 2 * MS, 2 * MS, 3 * MS, 7 * MS)
