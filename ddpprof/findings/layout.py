"""Which buckets would DDP make under other caps?"""

from __future__ import annotations

from collections.abc import Sequence

from ddpprof.events import DdpModule
from ddpprof.findings.framework_words import ddp_argument, without_ddp_argument
from ddpprof.findings.predictions import NewBuckets, Predictions, since_torch
from ddpprof.measures.bucket_table import BucketSummary

MIB = 2**20
DEFAULT_CAP_MB = 25
"""torch's ``_DEFAULT_BUCKET_CAP_MB``"""


def cap_mb(module: DdpModule) -> float:
    cap = module.settings.get("bucket_cap_mb")
    return float(cap) if isinstance(cap, int | float) else float(DEFAULT_CAP_MB)


def is_rebuilt(module: DdpModule) -> bool:
    """Whether DDP fills its buckets anew, in the order in which gradients came in the first backward pass."""
    return bool(module.settings.get("static_graph")) or not module.settings.get("find_unused_parameters")


def buckets_under(module: DdpModule, caps_mib: Sequence[float]) -> list[int]:
    """Bytes of the buckets that DDP would make, in launch order; the last cap holds for all that follow.

    As torch's ``compute_bucket_assignment_by_size``: a bucket is closed once it has *reached* its cap, and no parameter
    is ever divided. Without a rebuild DDP goes by the order of definition, and then turns the buckets around.
    """
    rebuilt = is_rebuilt(module)
    order = [p for bucket in module.buckets for p in bucket] if rebuilt else range(len(module.parameters))
    sizes = [0]
    for parameter in order:
        cap = caps_mib[min(len(sizes), len(caps_mib)) - 1]
        if sizes[-1] >= cap * MIB:
            sizes.append(0)
        sizes[-1] += module.parameters[parameter].num_bytes
    return sizes if rebuilt else sizes[::-1]


def smaller_cap(module: DdpModule, buckets: Sequence[BucketSummary]) -> int:
    cap = min(cap_mb(module), max(b.num_bytes for b in buckets) / MIB)
    return max(1, round(cap / 4))


def call_for(framework: str | None, new: NewBuckets) -> str:
    """Return how to make DDP's buckets those, as part of a sentence."""
    if new.is_default:
        return f"{without_ddp_argument(framework, 'bucket_cap_mb')},"
    since = since_torch(new.argument)
    return f"{ddp_argument(framework, new.argument)}{f'{since},' if since else ''}"


def advised_buckets(predictions: Predictions, module: DdpModule, buckets: Sequence[BucketSummary]) -> NewBuckets:
    """The best that the replay finds; without one, by a quarter of the cap."""
    if predictions.best_buckets is not None:
        return predictions.best_buckets
    cap = smaller_cap(module, buckets)
    return NewBuckets(f"bucket_cap_mb={cap}", tuple(buckets_under(module, [cap])))
