"""Which buckets make the step shortest? They are tried one by one, as few caps make different buckets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ddpprof.model.bucket_assignment import DEFAULT_CAP_MIB
from ddpprof.predict.caps import AcceptedCaps, BucketCaps, up_to_one_bucket, with_own_ends
from ddpprof.predict.network import Network
from ddpprof.predict.predict import Prediction, predict
from ddpprof.predict.profile import Profile
from ddpprof.predict.setting import Setting

_CAPS_MB = (1, 2, 5, 10, 25, 50, 100, 200, 400)
_EQUAL = 1.001
"""factor within which two settings are equally good; the one that changes less is then taken"""


@dataclass(frozen=True, slots=True)
class SearchedSetting:
    setting: Setting
    prediction: Prediction


def try_caps(profile: Profile, base: Setting, target: Network | None = None) -> tuple[SearchedSetting, ...]:
    """Try DDP's default, and every cap up to the one that makes a single bucket; `base` has the other settings."""
    caps_mb = [None, *up_to_one_bucket(_CAPS_MB, profile.training.gradient_bytes)]
    return tuple(try_buckets(profile, base, BucketCaps(cap_mb), target) for cap_mb in caps_mb)


def try_buckets(profile: Profile, base: Setting, buckets: BucketCaps, target: Network | None = None) -> SearchedSetting:
    setting = replace(base, buckets=buckets)
    return SearchedSetting(setting, predict(profile, setting, target))


def best_caps(
    profile: Profile,
    base: Setting,
    accepted: AcceptedCaps,
    target: Network | None = None,
    tried: Sequence[SearchedSetting] = (),
) -> SearchedSetting:
    """Return the best bucket settings that DDP accepts, including none; lists of caps only for a single module.

    `tried`: results of `try_caps` and others, if there are any.
    """
    best = SearchedSetting(base, predict(profile, base, target))
    known = [one for one in tried or try_caps(profile, base, target) if accepted.has(one.setting.buckets)]
    of_caps = min(known, key=lambda one: one.prediction.step_ns)
    cap_mb = of_caps.setting.buckets.cap_mb if of_caps.setting.buckets is not None else None
    ends: Iterable[BucketCaps] = ()
    if profile.has_one_module and accepted.lists:
        ends = with_own_ends(cap_mb or DEFAULT_CAP_MIB, len(of_caps.prediction.bucket_bytes))
    for candidate in (of_caps, *(try_buckets(profile, base, one, target) for one in ends)):
        if candidate.prediction.step_ns * _EQUAL < best.prediction.step_ns:
            best = candidate
    return best
