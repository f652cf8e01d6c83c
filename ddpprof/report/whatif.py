"""Predict the step with other settings, find the best buckets, and predict the gains of findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import hypot

from ddpprof.engine.finding import ACCUMULATED, NewBuckets, Predicted, Predictions
from ddpprof.errors import DdpprofError
from ddpprof.model import StepMode
from ddpprof.model.backends import Compression, backend_of
from ddpprof.model.ddp_module import DEFAULT_CAP_MIB, DEFAULT_FIRST_CAP_MIB
from ddpprof.predict import Algorithm, BucketCaps, Setting, sent_share
from ddpprof.predict.candidates import SearchedSetting, choose_caps, try_buckets, try_caps
from ddpprof.predict.network import Network
from ddpprof.predict.predict import Gain, Prediction, gain, num_ranks, predict
from ddpprof.predict.profile import Profile
from ddpprof.predict.replay import NOTHING
from ddpprof.report import Job, Report, ShownInNotebooks
from ddpprof.report.run_profile import LEAST_STEPS, KnownRun, Profiled, Recorded, profile_run, refuse_unknown_hook
from ddpprof.statistics import error_of_median
from ddpprof.topics.ranks.stragglers import OwnTimePart, Straggler
from ddpprof.version import __version__

_MOST_RANKS = 16
_MOST_BUCKETS = 64
_MOST_REPLAYED = 64
"""maximum number of buckets that are replayed in all steps together, to keep reports fast"""


def ranks_to_replay(ranks: Sequence[int], stragglers: Sequence[Straggler]) -> list[int]:
    """Return a selection of ranks, including stragglers, that is enough to estimate when the last rank is ready."""
    late = {one.rank for one in stragglers}
    every = max(1, -(-len(ranks) // _MOST_RANKS))
    return sorted(late.intersection(ranks) | set(ranks[::every]))


def predict_changes(run: KnownRun, stragglers: Sequence[Straggler]) -> Predictions:
    """Predict all changes. Predictions are ``None`` if the run cannot be replayed; `ddpprof whatif` reports why."""
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
    """Return at most `most` lightly recorded steps, evenly spaced, and all other steps."""
    light = sorted({step.number for steps in recorded.values() for step in steps if step.mode is StepMode.LIGHT})
    left_out = set(light) - set(light[:: max(1, -(-len(light) // most))])
    return {rank: [step for step in steps if step.number not in left_out] for rank, steps in recorded.items()}


@dataclass(frozen=True, slots=True)
class _Changes:
    profile: Profile
    now: Prediction
    """prediction for the run without any change"""
    job: Job
    copying_error_ns: float
    has_one_module: bool

    def predictions(self, without_straggler: Predicted | None) -> Predictions:
        training = self.profile.training
        return Predictions(
            best_buckets=self._best_buckets()
            if training.knows_parameters and self.has_one_module and not self.job.is_compiled
            else None,
            default_buckets=self._of(Setting(buckets=BucketCaps(None)))
            if training.knows_parameters and self.has_one_module and training.round_trip_ns is not None
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
        """Return the communication time that `setting` saves per batch.

        A step with `setting` processes `num_batches` times as many batches as a recorded step. It also saves optimizer
        steps, which are not counted as a gain.
        """
        now, after = self.now, predict(self.profile, setting)
        saved_ns = now.parts.communication_ns - after.parts.communication_ns / num_batches
        doubted = zip(now.doubted_ns, after.doubted_ns, strict=True)
        others_ns = [(one - now.step_ns) - (other - after.step_ns) / num_batches for one, other in doubted]
        missed_ns = now.missed_ns * (1 - 1 / num_batches)
        low_ns, high_ns = (hypot(end, missed_ns) for end in (min(0.0, *others_ns), max(0.0, *others_ns)))
        return Predicted(round(saved_ns), round(saved_ns - low_ns), round(saved_ns + high_ns))

    def _accumulation(self) -> Predicted | None:
        """Predict the effect of gradient accumulation; ``None`` if a step already has several backward passes."""
        if self.profile.batches_per_step != 1:
            return None
        return self._per_batch(Setting(accumulation=ACCUMULATED), ACCUMULATED)

    def _double_link(self) -> Predicted | None:
        """Predict the gain from a link with twice the bandwidth; return ``None`` if a hook changes what is sent."""
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
        """Predict the effect of a small first bucket, which does not change where torch.compile splits the graph."""
        cap = self.job.modules[0].bucket_cap_mib
        return self._of(Setting(buckets=BucketCaps(list_mb=(DEFAULT_FIRST_CAP_MIB, cap or DEFAULT_CAP_MIB))))

    def _compression(self) -> Predicted | None:
        """Predict the effect of compression; ``None`` if compression is not known to make the gradients smaller."""
        training = self.profile.training
        hook = backend_of(training.backend).halving
        halves = training.knows_parameters and sent_share(training.gradients, hook, rank=1) < 1
        return self._of(Setting(compression=hook)) if halves and self.profile.comm_hook is None else None


def _copying_error_ns(report: Report) -> float:
    """Return twice the standard error of the median copy-out time in the traces.

    If there are too few steps, return the largest copy-out time instead.
    """
    copied = [step.wrapper.copy_out_ns for rank in report.ranks for step in rank.measured_steps]
    if len(copied) < LEAST_STEPS:
        return float(max(copied, default=0))
    return 2 * error_of_median(copied)


def _without_straggler(run: KnownRun, changes: _Changes, stragglers: Sequence[Straggler]) -> Predicted | None:
    """Predict the step as if the straggler's gradients were ready as early as on the other ranks.

    This is done only for a rank that is late in its backward pass, where communication may hide part of the delay. If
    the delay is elsewhere, or if the forward pass synchronizes the ranks (for example to broadcast buffers), all ranks
    are delayed by the full time.
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
    """Return the predicted gain. `noise_ns`: additional noise, if the two predictions use different measurements."""
    one = gain(was, now)
    low_ns = one.gain_ns - hypot(one.gain_ns - one.low_ns, noise_ns)
    high_ns = one.gain_ns + hypot(one.high_ns - one.gain_ns, noise_ns)
    return Predicted(round(one.gain_ns), round(low_ns), round(high_ns))


WHATIF_FORMAT = 1


@dataclass(frozen=True, slots=True)
class PredictedSetting:
    label: str
    """the setting, as Python code"""
    prediction: Prediction
    gain: Gain
    """gain relative to the first prediction in `WhatIf.outcomes`"""
    cap_mib: float | None = None
    """cap in MiB, if all buckets have the same cap"""


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """The network as measured, without changes made by a setting."""

    is_benched: bool
    """True if the network was measured by `ddpprof netbench`; False if derived from the buckets of the run"""
    world_size: int
    latency_ns: float
    ns_per_byte: float
    bus_bytes_per_s: float
    """bus bandwidth of a ring all-reduce, as defined by nccl-tests (busbw)"""
    taken_ns_per_byte: float
    """computation time that is lost per byte of concurrent communication, in ns"""
    relative_error: float
    least_bytes: float
    most_bytes: float
    num_sizes: int


@dataclass(frozen=True, slots=True)
class WhatIf(ShownInNotebooks):
    format: int
    ddpprof: str
    job: Job
    measured_step_ns: float
    measured_error_ns: float
    """standard error of `measured_step_ns`, in ns"""
    replay_error: float
    """error when the replay uses the recorded settings, as a fraction of the step"""
    num_steps: int
    network: NetworkReport
    world: str
    """settings given by the user that do not concern buckets, such as a faster network"""
    outcomes: tuple[PredictedSetting, ...]
    """predictions with the settings in `world`: first for the recorded buckets, then for the requested buckets"""
    without_world_ns: float | None
    """predicted step time without the settings in `world`; ``None`` if `world` is empty"""
    work_ratio: float
    """number of samples per rank and step with the settings in `world`, divided by the number without them"""
    best: PredictedSetting | None
    """best buckets that DDP's options allow; ``None`` if the parameters are unknown"""
    assumes: tuple[str, ...]
    without_world_comm_ns: float | None = None
    """predicted communication time per step without the settings in `world`; ``None`` if `world` is empty"""
    equal_mb: tuple[float, float] | None = None
    """smallest and largest cap whose predictions are as good as the best cap's, if there is more than one such cap"""


@dataclass(frozen=True, slots=True)
class Asked:
    world: Setting
    """settings of the job and of the network, which do not concern buckets"""
    world_label: str
    buckets: tuple[BucketCaps, ...] = ()
    """buckets to compare; if empty, a series of caps is compared"""


def build_whatif(job: Job, profiled: Profiled, asked: Asked, step_ns: int | None = None) -> WhatIf:
    """Predict the requested settings. Raises `DdpprofError` if the run does not have enough data.

    `step_ns`: step time from the report. If it is given, predictions start from this step time, so that they agree with
    the report. It does not affect gains.
    """
    profile, target = profiled.profile, profiled.target
    if step_ns is not None:
        profile = replace(profile, step_ns=float(step_ns))
    _refuse_what_is_unknown(profile, asked)
    network = target or profile.network
    first = predict(profile, asked.world, target)
    tried: tuple[SearchedSetting, ...] = ()
    if profile.training.knows_parameters:
        tried = try_caps(profile, asked.world, target)
    rows = tuple(try_buckets(profile, asked.world, one, target) for one in asked.buckets) or tried
    recorded = PredictedSetting(
        "buckets as recorded" if asked.world_label else "as recorded", first, gain(first, first)
    )
    chosen = None
    if profile.training.knows_parameters:
        chosen = choose_caps(profile, asked.world, job.accepted_caps, target, (*tried, *rows))
    return WhatIf(
        format=WHATIF_FORMAT,
        ddpprof=__version__,
        job=job,
        measured_step_ns=profile.step_ns,
        measured_error_ns=profile.step_error_ns,
        replay_error=profile.replay_error,
        num_steps=profile.num_steps,
        network=_network_report(network),
        world=asked.world_label,
        outcomes=(recorded, *(_outcome(one, first) for one in rows)),
        without_world_ns=predict(profile, Setting()).step_ns if asked.world_label else None,
        without_world_comm_ns=predict(profile, Setting()).parts.communication_ns if asked.world_label else None,
        work_ratio=_work_ratio(profile, asked.world),
        best=_outcome(chosen.best, first) if chosen is not None else None,
        assumes=tuple(_assumes(profile, asked.world, network, job.is_compiled)),
        equal_mb=chosen.equal_mb if chosen is not None else None,
    )


def _work_ratio(profile: Profile, world: Setting) -> float:
    batches = 1.0 if world.accumulation is None else world.accumulation / (profile.batches_per_step or 1)
    return batches * world.batch_scale


def _outcome(one: SearchedSetting, first: Prediction) -> PredictedSetting:
    buckets = one.setting.buckets
    label, cap_mib = (buckets.argument, buckets.cap_mb) if buckets is not None else ("", None)
    return PredictedSetting(label, one.prediction, gain(first, one.prediction), cap_mib)


def _refuse_what_is_unknown(profile: Profile, asked: Asked) -> None:
    training, world = profile.training, asked.world
    if asked.buckets and not training.knows_parameters:
        raise DdpprofError(
            "traces do not show the sizes of gradients. To predict other caps, record the job with ddpprof trace."
        )
    gradients = (gradient for one in profile.passes for gradient in one.training.gradients)
    if world.compression is Compression.POWERSGD and not all(one.shape or one.kind for one in gradients):
        raise DdpprofError("PowerSGD needs the shapes of parameters, which this run does not have. Record it again.")
    if world.compression is not None and profile.comm_hook is not None:
        raise DdpprofError(f"the run already has a communication hook: {profile.comm_hook}.")
    if world.accumulation is not None and profile.batches_per_step is None:
        raise DdpprofError(
            "a step has backward passes through different DDP modules, so it is unclear which of them "
            "--accumulation should repeat."
        )
    if world.compression is Compression.BF16 and backend_of(training.backend).takes_cpu_tensors:
        raise DdpprofError(
            f"DDP does not support bf16_compress_hook on {training.backend}. Use fp16, which sends "
            "the same number of bytes."
        )
    if world.bytes_per_s is not None:
        for one in profile.passes:
            refuse_unknown_hook(one.training, "--bandwidth")


def _network_report(network: Network) -> NetworkReport:
    ranks = network.world_size
    carried = Algorithm.RING.bytes_per_byte(ranks) if ranks > 1 else 1.0
    return NetworkReport(
        is_benched=network.is_benched,
        world_size=ranks,
        latency_ns=network.link.alone.ns(0),
        ns_per_byte=network.link.alone.ns_per_byte,
        bus_bytes_per_s=carried * 1e9 / network.link.alone.ns_per_byte,
        taken_ns_per_byte=network.link.taken.ns_per_byte,
        relative_error=network.relative_error,
        least_bytes=network.least_bytes,
        most_bytes=network.most_bytes,
        num_sizes=network.num_sizes,
    )


def _of_the_processor(profile: Profile, network: Network) -> Sequence[str]:
    if network.link.taken == NOTHING:
        return ["communication takes no CPU time"]
    if network.guesses_taken:
        return [
            f"communication takes {network.link.taken.ns_per_byte:.2g} ns of CPU time per byte, as is typical of gloo"
        ]
    if profile.knows_alone:
        return []
    measures_it = " (ddpprof trace --baseline-steps 5 measures it)" if len(profile.passes) == 1 else ""
    return [f"communication takes as much CPU time as in netbench{measures_it}"]


def _assumes(profile: Profile, world: Setting, network: Network, is_compiled: bool) -> Sequence[str]:
    at_once = network.link.at_once
    all_reduces = "one all-reduce at a time" if at_once == 1 else f"{at_once} all-reduces at a time"
    said = ["gradients become ready as fast as in the run", all_reduces]
    if is_compiled:
        said[0] += (
            " (with other buckets, this may change, because torch.compile splits the model at bucket boundaries; use "
            "ddpprof tune to measure other buckets)"
        )
    if num_ranks(world, profile.training, network) != network.world_size:
        said.append(f"all links are equally fast, with {world.algorithm} all-reduce")
        said.append("no added rank is slower than the recorded ranks")
    if world.batch_scale != 1:
        said.append("computation time grows with the batch size")
    if profile.training.on_cpu:
        said += _of_the_processor(profile, network)
    return said
