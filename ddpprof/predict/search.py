"""Which buckets make the step shortest? Tried one by one: there are few caps that make different buckets.

One cap for all buckets; a cap for the first or the last bucket beside it, since the first decides when communication
begins and the last what is left when computation is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from ddpprof.predict.assignment import Caps
from ddpprof.predict.network import Network
from ddpprof.predict.predict import Prediction, predict
from ddpprof.predict.profile import Profile
from ddpprof.predict.setting import Setting

MB = 1 << 20
DEFAULT_MB = 25.0
"""of all buckets but the first"""
CAPS_MB = (1, 2, 5, 10, 25, 50, 100, 200, 400)
_ENDS_MB = (0.25, 1, 4)
_EQUAL = 1.001
"""Of two settings as good as each other the one that changes less is taken."""


@dataclass(frozen=True, slots=True)
class Tried:
    setting: Setting
    prediction: Prediction


def try_caps(profile: Profile, base: Setting, target: Network | None = None) -> tuple[Tried, ...]:
    """Every cap in `CAPS_MB` up to the one that makes a single bucket; `base` says all else."""
    return tuple(_try(profile, base, target, one) for one in _one_cap_for_all(profile.training.gradient_bytes))


def best_caps(profile: Profile, base: Setting, target: Network | None = None, tried: Sequence[Tried] = ()) -> Tried:
    """Of what DDP's constructor can be told about buckets, and of leaving it alone.

    `tried`: by `try_caps`, where that has been done.
    """
    best = Tried(base, predict(profile, base, target))
    of_caps = min(tried or try_caps(profile, base, target), key=lambda one: one.prediction.step_ns)
    ends = (_try(profile, base, target, one) for one in _with_own_ends(profile, of_caps.setting))
    for candidate in (of_caps, *ends):
        if candidate.prediction.step_ns * _EQUAL < best.prediction.step_ns:
            best = candidate
    return best


def one_cap(cap_mb: float | None) -> Setting:
    """For all buckets; ``None``: DDP's own, which has a small first one."""
    return Setting(Caps.of(cap_mb), f"bucket_cap_mb={cap_mb}" if cap_mb is None else f"bucket_cap_mb={cap_mb:g}")


def caps_list(caps_mb: Sequence[float]) -> Setting:
    words = ", ".join(f"{cap:g}" for cap in caps_mb)
    return Setting(Caps.of(bucket_cap_mb_list=caps_mb), f"bucket_cap_mb_list=[{words}]")


def _one_cap_for_all(gradient_bytes: int) -> Iterator[Setting]:
    yield one_cap(None)
    for cap_mb in CAPS_MB:
        yield one_cap(cap_mb)
        if cap_mb * MB >= gradient_bytes:
            return


def _with_own_ends(profile: Profile, best: Setting) -> Iterator[Setting]:
    cap_mb = (best.caps or Caps.of()).others_bytes / MB
    num_buckets = max(1, ceil(profile.training.gradient_bytes / MB / cap_mb))
    for end_mb in (end for end in _ENDS_MB if end < cap_mb):
        yield caps_list([end_mb, cap_mb])
        if num_buckets <= _MOST_LISTED:
            yield caps_list([*[cap_mb] * (num_buckets - 1), end_mb])


_MOST_LISTED = 16


def _try(profile: Profile, base: Setting, target: Network | None, buckets: Setting) -> Tried:
    setting = replace(base, caps=buckets.caps, caps_argument=buckets.caps_argument)
    return Tried(setting, predict(profile, setting, target))
