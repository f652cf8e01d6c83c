"""Which buckets would DDP make under other caps?"""

from __future__ import annotations

from collections.abc import Sequence

from ddpprof.findings.framework_words import ddp_argument, without_ddp_argument
from ddpprof.findings.predictions import NewBuckets, Predictions, equal_caps, since_torch
from ddpprof.measures.buckets.bucket_summary import BucketRow
from ddpprof.model import DdpModule
from ddpprof.model.bucket_assignment import DEFAULT_CAP_MIB, MIB, Caps, buckets_under


def cap_mb(module: DdpModule) -> float:
    return float(DEFAULT_CAP_MIB) if module.bucket_cap_mb is None else module.bucket_cap_mb


def bucket_sizes_under(module: DdpModule, caps_mib: Sequence[float]) -> tuple[int, ...]:
    """Return the bytes of DDP's buckets under other caps, in the order of launch, as in `ddpprof whatif`.

    The last cap holds for all further buckets.
    """
    buckets = buckets_under(module, Caps.of(bucket_cap_mb_list=caps_mib))
    return tuple(sum(module.parameters[index].num_bytes for index in bucket) for bucket in buckets)


def bytes_of(bucket: BucketRow) -> int:
    """Return a bucket's size, which is known of every bucket of a recorded module without sparse gradients."""
    return bucket.num_bytes or 0


def smaller_cap(module: DdpModule, buckets: Sequence[BucketRow]) -> int:
    cap = min(cap_mb(module), max(map(bytes_of, buckets)) / MIB)
    return max(1, round(cap / 4))


def call_for(framework: str | None, new: NewBuckets) -> str:
    """Return how to get those buckets from DDP, as the end of a sentence; without a prediction, how to find a value."""
    if new.is_default:
        return without_ddp_argument(framework, "bucket_cap_mb")
    if new.predicted is None:
        name = new.argument.partition("=")[0]
        return f"{ddp_argument(framework, f'{name}=…')}. This run cannot tell the best value: ddpprof tune measures it"
    return f"{ddp_argument(framework, new.argument)}{since_torch(new.argument)}{equal_caps(new.equal_mb)}"


def advised_buckets(predictions: Predictions, module: DdpModule, buckets: Sequence[BucketRow]) -> NewBuckets:
    """Return the best buckets that the replay finds; without a replay, those of a quarter of the cap."""
    if predictions.best_buckets is not None:
        return predictions.best_buckets
    cap = smaller_cap(module, buckets)
    return NewBuckets(f"bucket_cap_mb={cap}", bucket_sizes_under(module, [cap]))
