"""Choose the DDP settings that are worth measuring.

settings   combinations of bucket caps (equal, or smaller at the ends), ``gradient_as_bucket_view``, no search for
           unused parameters, and a compression hook
distinct   of the settings that have the same effect in DDP, the one with the shortest code
promising  settings predicted to be faster than the unchanged job. The choice begins with the caps recommended by
           `choose_caps`, then takes the best setting for each number of buckets, because the error of the prediction
           increases with the number of buckets. If all chosen settings share an option, one setting without it is
           included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product, takewhile
from math import log

from ddpprof.model.backends import Compression
from ddpprof.model.ddp_module import DEFAULT_CAP_MIB, Buckets, Caps, final_buckets, same_buckets
from ddpprof.predict import AcceptedCaps, BucketCaps, Setting, as_written, up_to_one_bucket, with_own_ends
from ddpprof.predict.network import Network
from ddpprof.predict.predict import Prediction, gain, predict
from ddpprof.predict.profile import Profile
from ddpprof.predict.replay import Training

_CAPS_MB = (1, 2, 3, 5, 7, 10, 15, 20, 25, 35, 50, 75, 100, 150, 200, 300, 400)
_VIEW = "gradient_as_bucket_view"
_EQUAL = 1e-3
"""two predictions count as equal if they differ by less than this fraction of a step; the setting with the shorter code
then comes first
"""

Arguments = Mapping[str, bool | float | str | list[float] | None]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted duration of a step, in ns."""

    step_ns: float
    low_ns: float
    high_ns: float
    """upper end of the 95 % interval"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting and its predicted step time. If it has neither arguments nor a hook, it is the unchanged job."""

    arguments: Arguments = field(default_factory=dict)
    """arguments of DDP's constructor"""
    comm_hook: str | None = None
    """name of a comm hook in ``default_hooks`` that compresses gradients"""
    forecast: Forecast | None = None
    num_buckets: int | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """Arguments of DDP's constructor as Python code."""
        return tuple(
            f"{name}={as_written(value) if isinstance(value, list) else repr(value)}"
            for name, value in self.arguments.items()
        )

    @property
    def label(self) -> str:
        return ", ".join([*self.words, *([self.comm_hook] if self.comm_hook else [])])


@dataclass(frozen=True, slots=True)
class Knobs:
    """The options that may be changed."""

    view: bool
    without_search: Arguments
    """arguments of DDP that turn off the search for unused parameters; empty if DDP does not search, or if the search
    is necessary
    """
    compression: Compression | None
    accepted: AcceptedCaps
    drops_list: bool
    """True if the script passes ``bucket_cap_mb_list``. It must be dropped when a single cap is tried, because it
    overrides the cap
    """


@dataclass(frozen=True, slots=True)
class _Tried:
    setting: Setting
    candidate: Candidate
    prediction: Prediction

    @property
    def does(self) -> tuple[object, ...]:
        """Key that is the same for all settings with the same effect in DDP."""
        setting = self.setting
        return (
            self.prediction.bucket_bytes,
            setting.gradient_as_bucket_view,
            setting.static_graph,
            setting.compression,
        )

    @property
    def rank(self) -> tuple[float, int, int]:
        equal = round(log(self.prediction.step_ns) / _EQUAL)
        return equal, len(self.candidate.arguments) + bool(self.candidate.comm_hook), len(self.candidate.label)


@dataclass(frozen=True, slots=True)
class Shortlist:
    now: Candidate
    """the unchanged job"""
    chosen: tuple[Candidate, ...]
    others: tuple[Candidate, ...]
    """settings that were considered but not chosen, and whose effects differ from those of the chosen settings"""
    promises: bool
    """True if at least one setting is predicted to be faster; otherwise, `chosen` contains only the settings with the
    best predictions
    """


def shortlist(profile: Profile, knobs: Knobs, most: int) -> Shortlist:
    """Choose at most `most` settings, in addition to the unchanged job."""
    now = _try(profile, Setting(), Candidate())
    distinct = {now.does: now}
    for one in sorted((_try(profile, *made) for made in _settings(profile, knobs)), key=lambda one: one.rank):
        distinct.setdefault(one.does, one)
    others = [one for one in distinct.values() if one is not now]
    promising = [one for one in others if one.prediction.step_ns < now.prediction.step_ns]
    advised = _try(profile, choose_caps(profile, Setting(), knobs.accepted).best.setting, Candidate())
    first = [one for one in promising if one.does == advised.does]
    more = _diverse([one for one in promising if one not in first], most - len(first))
    chosen = [*first, *more] if promising else others[:1]
    left = (one.candidate for one in others if one not in chosen)
    return Shortlist(now.candidate, tuple(one.candidate for one in chosen), tuple(left), bool(promising))


def _diverse(promising: Sequence[_Tried], most: int) -> list[_Tried]:
    """Choose up to `most` different settings. `promising`: settings, best first."""
    best_of: dict[int, _Tried] = {}
    for one in promising:
        best_of.setdefault(len(one.prediction.bucket_bytes), one)
    chosen = list(best_of.values())[:most]
    for one in (one for one in promising if one not in chosen):
        if len(chosen) >= most:
            break
        chosen.append(one)
    unlike = [one for one in promising if not any(_shares_switch(one, other) for other in chosen[:1])]
    if most > 1 and unlike and all(_shares_switch(chosen[0], one) for one in chosen):
        chosen = [*chosen[: most - 1], unlike[0]]
    return sorted(chosen, key=lambda one: one.rank)


def _shares_switch(a: _Tried, b: _Tried) -> bool:
    """Return True if both settings change the same option, not counting bucket sizes."""
    return any(
        (
            a.setting.gradient_as_bucket_view and b.setting.gradient_as_bucket_view,
            a.setting.static_graph and b.setting.static_graph,
            a.setting.compression is not None and b.setting.compression is not None,
        )
    )


def _try(profile: Profile, setting: Setting, candidate: Candidate) -> _Tried:
    made = predict(profile, setting)
    forecast = Forecast(made.step_ns, made.low_ns, made.high_ns)
    return _Tried(setting, replace(candidate, forecast=forecast, num_buckets=len(made.bucket_bytes)), made)


def _settings(profile: Profile, knobs: Knobs) -> Iterator[tuple[Setting, Candidate]]:
    buckets = [None, *_buckets(profile, knobs.accepted)]
    views, searches = (False, True)[: 1 + knobs.view], ({}, knobs.without_search)[: 1 + bool(knobs.without_search)]
    hooks = (None, knobs.compression) if knobs.compression is not None else (None,)
    for view, no_search, hook, caps in product(views, searches, hooks, buckets):
        given = {**_arguments(caps, knobs.drops_list), **({_VIEW: True} if view else {}), **no_search}
        setting = Setting(caps, gradient_as_bucket_view=view, static_graph=bool(no_search), compression=hook)
        yield setting, Candidate(given, None if hook is None else hook.hook)


def _buckets(profile: Profile, accepted: AcceptedCaps) -> Iterator[BucketCaps]:
    for cap_mb in up_to_one_bucket(_CAPS_MB, profile.training.gradient_bytes):
        one_for_all = BucketCaps(cap_mb)
        if accepted.has(one_for_all):
            yield one_for_all
        if accepted.lists and profile.has_one_module:
            yield from with_own_ends(cap_mb, len(predict(profile, Setting(one_for_all)).bucket_bytes))


def _arguments(buckets: BucketCaps | None, drops_list: bool) -> Arguments:
    if buckets is None:
        return {}
    if buckets.list_mb:
        return {"bucket_cap_mb_list": list(buckets.list_mb)}
    return {"bucket_cap_mb": buckets.cap_mb, **({"bucket_cap_mb_list": None} if drops_list else {})}


_SPREAD_MB = (5, 100, 10, 1, 50, 2, 200, 25, 400)


def spread(training: Training, knobs: Knobs, most: int) -> Shortlist:
    """Choose settings if there are no predictions: caps that give different buckets, and every other option alone."""
    order = [index for bucket in training.buckets for index in bucket]
    now = Candidate(num_buckets=len(training.buckets))
    made: dict[Buckets, Candidate] = {}
    for cap_mb in _SPREAD_MB:
        buckets = final_buckets(training.gradients, Caps.of(cap_mb), order, rebuilt=training.is_rebuilt)
        if knobs.accepted.has(BucketCaps(cap_mb)) and not same_buckets(buckets, training.buckets):
            candidate = Candidate(_arguments(BucketCaps(cap_mb), knobs.drops_list), num_buckets=len(buckets))
            made.setdefault(buckets, candidate)
    caps = list(made.values())
    switches = [replace(now, arguments=knobs.without_search)] if knobs.without_search else []
    switches += [replace(now, arguments={_VIEW: True})] if knobs.view else []
    switches += [replace(now, comm_hook=knobs.compression.hook)] if knobs.compression is not None else []
    tried = [*caps[: max(1, most - len(switches))], *switches]
    left = (one for one in (*caps, *switches) if one not in tried[:most])
    return Shortlist(now, tuple(tried[:most]), tuple(left), promises=False)


_FEW_CAPS_MB = (1, 2, 5, 10, 25, 50, 100, 200, 400)
_EQUALLY_GOOD = 1.001
"""the recorded buckets are kept if a step takes at most this many times as long with them as with the best buckets"""
_FLAT = 0.01
"""settings count as equally good if their predictions differ by less than this fraction of the step"""


@dataclass(frozen=True, slots=True)
class SearchedSetting:
    setting: Setting
    prediction: Prediction


def try_caps(profile: Profile, base: Setting, target: Network | None = None) -> tuple[SearchedSetting, ...]:
    """Predict the step time with DDP's default, and with every cap up to the first cap that gives one bucket.

    `base`: the other settings.
    """
    caps_mb = [None, *up_to_one_bucket(_FEW_CAPS_MB, profile.training.gradient_bytes)]
    return tuple(try_buckets(profile, base, BucketCaps(cap_mb), target) for cap_mb in caps_mb)


def try_buckets(profile: Profile, base: Setting, buckets: BucketCaps, target: Network | None = None) -> SearchedSetting:
    setting = replace(base, buckets=buckets)
    return SearchedSetting(setting, predict(profile, setting, target))


@dataclass(frozen=True, slots=True)
class ChosenCaps:
    best: SearchedSetting
    equal_mb: tuple[float, float] | None
    """smallest and largest single cap that the prediction cannot distinguish from the best cap; ``None`` if there is
    only one such cap
    """


def choose_caps(
    profile: Profile,
    base: Setting,
    accepted: AcceptedCaps,
    target: Network | None = None,
    tried: Sequence[SearchedSetting] = (),
) -> ChosenCaps:
    """Choose the best caps that DDP accepts, or no change. Lists of caps are considered only for a single module.

    A list is chosen only if it is better than all single caps by more than 1 % of the step and by more than the error
    of the prediction. If, within this error, the best setting may make the step longer, the setting with the largest
    certain gain is chosen instead. If no gain is certain, the best setting is kept. `tried`: predictions that are
    already known, for example from `try_caps`.
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
    if best.prediction.step_ns * _EQUALLY_GOOD >= recorded.prediction.step_ns:
        return ChosenCaps(recorded, None)
    if _least_gain_ns(recorded, best) <= 0:
        surest = max([*single, *lists], key=lambda one: _least_gain_ns(recorded, one))
        best = surest if _least_gain_ns(recorded, surest) > 0 else best
    return ChosenCaps(best, _equal_caps(single, best))


def _least_gain_ns(recorded: SearchedSetting, one: SearchedSetting) -> float:
    """Return the lower end of the interval of the predicted gain, in ns."""
    return gain(recorded.prediction, one.prediction).low_ns


def _is_as_good(one: SearchedSetting, best: SearchedSetting) -> bool:
    lost = gain(one.prediction, best.prediction)
    return lost.gain_ns <= _FLAT * best.prediction.step_ns or lost.low_ns <= 0


def _equal_caps(single: Iterable[SearchedSetting], best: SearchedSetting) -> tuple[float, float] | None:
    """Return the range of caps that are as good as the best cap; ``None`` if no other cap is as good."""
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
