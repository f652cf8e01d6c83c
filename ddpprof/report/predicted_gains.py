"""How much would each change recommended by a finding save on its own? The results equal those of `ddpprof whatif`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot

from ddpprof.engine.predictions import ACCUMULATED, NewBuckets, Predicted, Predictions
from ddpprof.errors import DdpprofError
from ddpprof.model import StepMode
from ddpprof.model.backends import backend_of
from ddpprof.model.bucket_assignment import DEFAULT_CAP_MIB, DEFAULT_FIRST_CAP_MIB
from ddpprof.predict.candidates import choose_caps
from ddpprof.predict.predict import Prediction, gain, predict
from ddpprof.predict.profile import Profile
from ddpprof.predict.setting import BucketCaps, Setting, sent_share
from ddpprof.report.run_profile import LEAST_STEPS, KnownRun, Recorded, profile_run
from ddpprof.report.tree import Job, Report
from ddpprof.statistics.medians import error_of_median
from ddpprof.topics.ranks.stragglers import OwnTimePart, Straggler

_MOST_RANKS = 16
_MOST_BUCKETS = 64
_MOST_REPLAYED = 64
"""maximum number of buckets in all steps together, to keep reports fast"""


def ranks_to_replay(ranks: Sequence[int], stragglers: Sequence[Straggler]) -> list[int]:
    """Return enough ranks of a large job to know when gradients come on the last rank."""
    late = {one.rank for one in stragglers}
    every = max(1, -(-len(ranks) // _MOST_RANKS))
    return sorted(late.intersection(ranks) | set(ranks[::every]))


def predict_changes(run: KnownRun, stragglers: Sequence[Straggler]) -> Predictions:
    """Predict all changes; ``None`` for each if the run cannot be replayed. `ddpprof whatif` then says why."""
    num_buckets = sum(len(module.buckets) for module in run.modules)
    if (run.report.job.num_averaging or 1) < 2 or num_buckets > _MOST_BUCKETS:
        return Predictions()
    run = replace(run, recorded=_some_steps(run.recorded, max(LEAST_STEPS, _MOST_REPLAYED // max(1, num_buckets))))
    profile = _profile(run)
    if profile is None:
        return Predictions()
    job = run.report.job
    changes = _Changes(profile, predict(profile, Setting()), job, _copying_error_ns(run.report), len(run.modules) == 1)
    return changes.predictions(_without_straggler(run, changes, stragglers))


def _some_steps(recorded: Recorded, most: int) -> Recorded:
    """Return an even selection of the lightly recorded steps, and all other steps."""
    light = sorted({step.number for steps in recorded.values() for step in steps if step.mode is StepMode.LIGHT})
    left_out = set(light) - set(light[:: max(1, -(-len(light) // most))])
    return {rank: [step for step in steps if step.number not in left_out] for rank, steps in recorded.items()}


@dataclass(frozen=True, slots=True)
class _Changes:
    profile: Profile
    now: Prediction
    """prediction without any change"""
    job: Job
    copying_error_ns: float
    has_one_module: bool

    def predictions(self, without_straggler: Predicted | None) -> Predictions:
        training = self.profile.training
        return Predictions(
            best_buckets=self._best_buckets()
            if training.knows_parameters and self.has_one_module and not self.job.is_compiled
            else None,
            aligned_buckets=self._aligned_buckets()
            if training.knows_parameters and self.has_one_module and self.job.is_compiled and self.job.takes_cap_lists
            else None,
            compression=self._compression(),
            bucket_views=self._bucket_views()
            if training.knows_parameters and not training.gradient_as_bucket_view
            else None,
            without_unused_search=self._of(Setting(static_graph=True))
            if self.has_one_module and not training.is_rebuilt
            else None,
            no_sync=self._no_sync(),
            double_batch=self._per_batch(Setting(batch_scale=2), 2),
            accumulation=self._accumulation(),
            double_link=self._double_link(),
            without_straggler=without_straggler,
        )

    def _per_batch(self, setting: Setting, num_batches: int) -> Predicted:
        """Return the communication that `setting`, whose step does the work of `num_batches`, saves per recorded step.

        Such a step also skips optimizer steps, which is not counted as a gain.
        """
        now, after = self.now, predict(self.profile, setting)
        saved_ns = now.parts.communication_ns - after.parts.communication_ns / num_batches
        doubted = zip(now.doubted_ns, after.doubted_ns, strict=True)
        others_ns = [(one - now.step_ns) - (other - after.step_ns) / num_batches for one, other in doubted]
        missed_ns = now.missed_ns * (1 - 1 / num_batches)
        low_ns, high_ns = (hypot(end, missed_ns) for end in (min(0.0, *others_ns), max(0.0, *others_ns)))
        return Predicted(round(saved_ns), round(saved_ns - low_ns), round(saved_ns + high_ns))

    def _accumulation(self) -> Predicted | None:
        """Return the effect of accumulation; ``None`` if a step already has several backward passes."""
        if self.profile.batches_per_step != 1:
            return None
        return self._per_batch(Setting(accumulation=ACCUMULATED), ACCUMULATED)

    def _double_link(self) -> Predicted | None:
        """Return the effect of a faster link; ``None`` if a hook decides what is sent."""
        if self.profile.comm_hook is not None:
            return None
        link = self.profile.network.link
        faster = replace(link, alone=link.alone.scaled(1, 1 / 2), busy=link.busy.scaled(1, 1 / 2))
        return _predicted(self.now, predict(self.profile, Setting(), replace(self.profile.network, link=faster)))

    def _no_sync(self) -> Predicted | None:
        num_batches = self.profile.batches_per_step
        if num_batches is None or self.profile.passes[0].num_reduced == 1:
            return None
        return self._of(Setting(accumulation=num_batches))

    def _of(self, setting: Setting) -> Predicted:
        return _predicted(self.now, predict(self.profile, setting))

    def _bucket_views(self) -> Predicted:
        views = predict(self.profile, Setting(gradient_as_bucket_view=True))
        return _predicted(self.now, views, self.copying_error_ns)

    def _best_buckets(self) -> NewBuckets:
        chosen = choose_caps(self.profile, Setting(), self.job.accepted_caps)
        best = chosen.best
        buckets, sizes = best.setting.buckets, best.prediction.bucket_bytes
        if buckets is None:
            return NewBuckets("", sizes)
        return NewBuckets(buckets.argument, sizes, _predicted(self.now, best.prediction), chosen.equal_mb)

    def _aligned_buckets(self) -> Predicted:
        """Return the effect of a small first bucket. It does not move the points at which torch.compile cuts."""
        cap = self.job.modules[0].bucket_cap_mib
        return self._of(Setting(buckets=BucketCaps(list_mb=(DEFAULT_FIRST_CAP_MIB, cap or DEFAULT_CAP_MIB))))

    def _compression(self) -> Predicted | None:
        """Return the effect of compression; ``None`` unless gradients are known to become smaller."""
        training = self.profile.training
        hook = backend_of(training.backend).halving
        halves = training.knows_parameters and sent_share(training.gradients, hook, rank=1) < 1
        return self._of(Setting(compression=hook)) if halves and self.profile.comm_hook is None else None


def _copying_error_ns(report: Report) -> float:
    """Return the error of the median in the traces: twice its standard error, or the largest value of few steps."""
    copied = [step.wrapper.copy_out_ns for rank in report.ranks for step in rank.measured_steps]
    if len(copied) < LEAST_STEPS:
        return float(max(copied, default=0))
    return 2 * error_of_median(copied)


def _without_straggler(run: KnownRun, changes: _Changes, stragglers: Sequence[Straggler]) -> Predicted | None:
    """Predict the step as if the straggler's gradients were ready with the others', over the same network.

    This applies only to a rank that is late in its backward pass, because the others' communication may hide that. Time
    that a rank loses elsewhere delays all ranks equally, as does a forward that synchronises, for example to broadcast
    buffers.
    """
    if not stragglers or stragglers[0].part is not OwnTimePart.BACKWARD:
        return None
    profile, others = changes.profile, _profile(run, without=[stragglers[0].rank])
    if others is None:
        return None
    try:
        like_others = predict(profile.without_others(others), Setting())
    except DdpprofError:
        return None
    return _predicted(changes.now, like_others, noise_ns=2 * profile.step_error_ns)


def _profile(run: KnownRun, without: Sequence[int] = ()) -> Profile | None:
    try:
        return profile_run(run.without(without) if without else run).profile
    except DdpprofError:
        return None


def _predicted(was: Prediction, now: Prediction, noise_ns: float = 0.0) -> Predicted:
    """Return the gain. `noise_ns`: noise of the measurement, if it is not the same in both."""
    one = gain(was, now)
    low_ns = one.gain_ns - hypot(one.gain_ns - one.low_ns, noise_ns)
    high_ns = one.gain_ns + hypot(one.high_ns - one.gain_ns, noise_ns)
    return Predicted(round(one.gain_ns), round(low_ns), round(high_ns))
