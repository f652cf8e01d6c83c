"""Which buckets make the step shortest? They are tried one by one, as few caps make different buckets.

The report, `whatif` and `tune` all ask `choose_caps`, so that they name one cap for one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from ddpprof.model.bucket_assignment import DEFAULT_CAP_MIB
from ddpprof.predict.caps import AcceptedCaps, BucketCaps, up_to_one_bucket, with_own_ends
from ddpprof.predict.network import Network
from ddpprof.predict.predict import Prediction, gain, predict
from ddpprof.predict.profile import Profile
from ddpprof.predict.setting import Setting

_CAPS_MB = (1, 2, 5, 10, 25, 50, 100, 200, 400)
_EQUAL = 1.001
"""factor within which other buckets are as good as the recorded ones, which are then kept"""
_FLAT = 0.01
"""fraction of the step; of settings predicted this close, none is better"""


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


@dataclass(frozen=True, slots=True)
class ChosenCaps:
    best: SearchedSetting
    equal_mb: tuple[float, float] | None
    """smallest and largest cap of all buckets with which the step is as short, as far as the prediction can tell;
    ``None`` if there is only one"""


def choose_caps(
    profile: Profile,
    base: Setting,
    accepted: AcceptedCaps,
    target: Network | None = None,
    tried: Sequence[SearchedSetting] = (),
) -> ChosenCaps:
    """Choose among the caps that DDP accepts, and no change; lists of caps only for a single module.

    A list must be better than all single caps by more than the prediction's error or 1 % of the step. `tried`: results
    of `try_caps` and others, if there are any.
    """
    recorded = SearchedSetting(base, predict(profile, base, target))
    known = [one for one in tried or try_caps(profile, base, target) if accepted.has(one.setting.buckets)]
    single = [one for one in known if one.setting.buckets is not None and not one.setting.buckets.list_mb]
    of_caps = min(single, key=lambda one: one.prediction.step_ns)
    cap_mb = of_caps.setting.buckets.cap_mb if of_caps.setting.buckets is not None else None
    lists = [one for one in known if one not in single]
    if profile.has_one_module and accepted.lists:
        ends = with_own_ends(cap_mb or DEFAULT_CAP_MIB, len(of_caps.prediction.bucket_bytes))
        lists += [try_buckets(profile, base, one, target) for one in ends]
    best = min([of_caps, *lists], key=lambda one: one.prediction.step_ns)
    if _is_as_good(of_caps, best):
        best = of_caps
    if best.prediction.step_ns * _EQUAL >= recorded.prediction.step_ns:
        return ChosenCaps(recorded, None)
    return ChosenCaps(best, _equal_caps(single, best))


def _is_as_good(one: SearchedSetting, best: SearchedSetting) -> bool:
    lost = gain(one.prediction, best.prediction)
    return lost.gain_ns <= _FLAT * best.prediction.step_ns or lost.low_ns <= 0


def _equal_caps(single: Iterable[SearchedSetting], best: SearchedSetting) -> tuple[float, float] | None:
    """Return the ends of the caps around the best one that are as good; ``None`` if it is a list, or stands alone."""
    if best.setting.buckets is None or best.setting.buckets.list_mb:
        return None
    of_best = float(best.setting.buckets.cap_mb or DEFAULT_CAP_MIB)
    by_cap = {float(buckets.cap_mb): one for one in single if (buckets := one.setting.buckets) and buckets.cap_mb}
    smaller = takewhile(
        lambda cap: _is_as_good(by_cap[cap], best), sorted((c for c in by_cap if c < of_best), reverse=True)
    )
    larger = takewhile(lambda cap: _is_as_good(by_cap[cap], best), sorted(c for c in by_cap if c > of_best))
    equal = [*smaller, of_best, *larger]
    return (min(equal), max(equal)) if len(equal) > 1 else None
