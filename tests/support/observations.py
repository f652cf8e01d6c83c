"""Observations for the rules of findings, made by hand."""

from typing import Any

from tables import ddp_module

from ddpprof.findings import Finding, Observed, find
from ddpprof.measures.buckets.bucket_summary import BucketRow
from ddpprof.model import DdpModule, Loader
from ddpprof.report.topics import observe_topics
from ddpprof.topics.data_parallel import DataParallelStep

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


def observed(module: DdpModule | None = None, buckets: Any = (), **changes: Any) -> Observed:
    """Make observations; `buckets` are facts about each of the module's buckets."""
    modules = (module,) if module else ()
    rows = tuple(bucket(module, i, **known) for i, known in enumerate(buckets)) if module else ()
    return Observed(**{"world_size": 2, "step_ns": STEP_NS, "modules": modules, "buckets": rows, **changes})


def beside(field: str, found: Any, **changes: Any) -> tuple[Finding, ...]:
    """Return the findings for a topic's measures; `field` is their field of the report."""
    return find(observe_topics(observed(**changes), {field: found}))


def only(o: Observed) -> Finding:
    (finding,) = find(o)
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
MOVED = DataParallelStep(1, 0, 3 * MS, 2 * MS, 2 * MS, 3 * MS, 7 * MS)
