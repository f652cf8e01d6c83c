"""Predictions of the recorded step with other settings, and the best buckets found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpprof.errors import DdpprofError
from ddpprof.model.backends import Compression, backend_of
from ddpprof.predict.candidates import SearchedSetting, choose_caps, try_buckets, try_caps
from ddpprof.predict.network import Network
from ddpprof.predict.predict import Gain, Prediction, gain, num_ranks, predict
from ddpprof.predict.profile import Profile
from ddpprof.predict.replay import NOTHING
from ddpprof.predict.setting import Algorithm, BucketCaps, Setting
from ddpprof.report import Job, ShownInNotebooks
from ddpprof.report.run_profile import Profiled, refuse_unknown_hook
from ddpprof.version import __version__

WHATIF_FORMAT = 1


@dataclass(frozen=True, slots=True)
class PredictedSetting:
    label: str
    """setting as written in Python"""
    prediction: Prediction
    gain: Gain
    """gain over the first outcome"""
    cap_mib: float | None = None
    """cap, if all buckets have the same one"""


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """The measured network, before any setting changes it."""

    is_benched: bool
    """True if measured by `ddpprof netbench`; False if derived from the run's buckets"""
    world_size: int
    latency_ns: float
    ns_per_byte: float
    bus_bytes_per_s: float
    """bandwidth that each rank's link carries in a ring: nccl-tests' busbw"""
    taken_ns_per_byte: float
    """cost to the concurrent computation"""
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
    """standard error"""
    replay_error: float
    """error of the replay of the recorded settings, as a fraction of the step"""
    num_steps: int
    network: NetworkReport
    world: str
    """settings other than buckets, as the user wrote them"""
    outcomes: tuple[PredictedSetting, ...]
    """the recorded buckets with these settings, followed by the requested ones"""
    without_world_ns: float | None
    """step time replayed without `world`; ``None`` if there is no `world`"""
    work_ratio: float
    """number of samples per rank and step, divided by the number without `world`"""
    best: PredictedSetting | None
    """best buckets that DDP's options can produce; ``None`` if the run lacks its parameters"""
    assumes: tuple[str, ...]
    without_world_comm_ns: float | None = None
    """cost of communication in the step replayed without `world`; ``None`` if there is no `world`"""
    equal_mb: tuple[float, float] | None = None
    """smallest and largest cap that are as good as the best one, if there are several"""


@dataclass(frozen=True, slots=True)
class Asked:
    world: Setting
    """settings of the job and the network: everything except buckets"""
    world_label: str
    buckets: tuple[BucketCaps, ...] = ()
    """buckets to compare; if empty, a series of caps is compared"""


def build_whatif(job: Job, profiled: Profiled, asked: Asked, step_ns: int | None = None) -> WhatIf:
    """Make the predictions. Raises `DdpprofError` if the run does not have the data for them.

    `step_ns`: the step of the run's report; all predictions then start from it, because gains do not depend on it.
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
        raise DdpprofError("traces do not show the sizes of gradients: record with ddpprof trace to try other caps.")
    gradients = (gradient for one in profile.passes for gradient in one.training.gradients)
    if world.compression is Compression.POWERSGD and not all(one.shape or one.kind for one in gradients):
        raise DdpprofError("PowerSGD needs the shapes of parameters, which this run lacks: record it again.")
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
    if profile.knows_alone:
        return []
    measures_it = " (ddpprof trace --baseline-steps 5 measures it)" if len(profile.passes) == 1 else ""
    return [f"communication takes as much CPU time as in netbench{measures_it}"]


def _assumes(profile: Profile, world: Setting, network: Network, is_compiled: bool) -> Sequence[str]:
    at_once = network.link.at_once
    all_reduces = "one all-reduce at a time" if at_once == 1 else f"{at_once} all-reduces at once"
    said = ["gradients become ready as fast as in the run", all_reduces]
    if is_compiled:
        said[0] += (
            " (other buckets may change that, since torch.compile splits the model at bucket boundaries: use "
            "ddpprof tune to measure them)"
        )
    if num_ranks(world, profile.training, network) != network.world_size:
        said.append(f"all links are equally fast, with {world.algorithm} all-reduce")
        said.append("no rank is slower than the ranks of the run")
    if world.batch_scale != 1:
        said.append("computation time grows with the batch size")
    if profile.training.on_cpu:
        said += _of_the_processor(profile, network)
    return said
