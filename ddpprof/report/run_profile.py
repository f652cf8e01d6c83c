"""Build the `Profile` of a run. Predictions are based on this profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from ddpprof.errors import DdpprofError
from ddpprof.model import DdpModule, RecordedStep, StepMode
from ddpprof.model.backends import sends_unchanged
from ddpprof.model.ddp_module import DEFAULT_CAP_MIB, Caps, Gradient, buckets_under, gradient_of, same_buckets
from ddpprof.predict.network import Network, network_of_steps
from ddpprof.predict.observed_steps import (
    HostTimes,
    ObservedStep,
    backward_alone_ns,
    observe_gradients,
    observe_passes,
    observe_steps,
)
from ddpprof.predict.profile import ObservedPasses, Profile, profile_of
from ddpprof.predict.replay import NOTHING, Cost, Link, Training, joint
from ddpprof.report import Report
from ddpprof.topics.buckets.steps import fits
from ddpprof.topics.buckets.traced import TracedPasses, usual_passes, usual_sizes
from ddpprof.topics.steps.measure import TIMED_MODES

LEAST_STEPS = 2

_FEW_STEPS = 0.1
"""backward passes through a set of DDP modules are ignored if they occur in at most this share of the steps"""
_SAME_LINK = 0.15
"""two networks are considered the same if they differ by at most this fraction"""

Recorded = Mapping[int, Sequence[RecordedStep]]
"""rank → its recorded steps"""


@dataclass(frozen=True, slots=True)
class Profiled:
    profile: Profile
    target: Network | None
    """network to predict for; ``None`` if it is the network of the run"""


@dataclass(frozen=True, slots=True)
class Benches:
    """Networks measured with `ddpprof netbench`."""

    to_train_on: Network | None = None
    """network to predict for; if it is as fast as the network of the run, both are treated as the same network"""
    of_run: Network | None = None


NO_BENCHES = Benches()


@dataclass(frozen=True, slots=True)
class KnownRun:
    """The data of a run that predictions need."""

    report: Report
    modules: tuple[DdpModule, ...]
    recorded: Recorded
    passes: Mapping[int, TracedPasses]
    """rank → its backward passes, from its trace"""

    def without(self, ranks: Collection[int]) -> KnownRun:
        """Return the run without these ranks.

        Raises `DdpprofError` if the run does not have these ranks, or has no other ranks.
        """
        recorded = {rank: steps for rank, steps in self.recorded.items() if rank not in ranks}
        passes = {rank: found for rank, found in self.passes.items() if rank not in ranks}
        missing = set(ranks) - self.recorded.keys() - self.passes.keys()
        if missing or not (recorded or passes):
            which = f"has no rank {min(missing)}" if missing else "has no other rank"
            raise DdpprofError(f"the run {which} to exclude.")
        return replace(self, recorded=recorded, passes=passes)

    def of_known_modules(self) -> KnownRun:
        recorded = {rank: [step for step in steps if fits(self.modules, step)] for rank, steps in self.recorded.items()}
        return replace(self, recorded=recorded)


def profile_run(run: KnownRun, benches: Benches = NO_BENCHES, without: Collection[int] = ()) -> Profiled:
    """Build the profile of a run from the bucket times in its record.

    If there are none, the profile is built from the traces.

    `without`: ranks that are assumed to compute like the other ranks. Raises `DdpprofError` if the run does
    not have enough data; the message says what to record.
    """
    run = run.of_known_modules()
    of_all = _profile_run(run, benches)
    if not without:
        return of_all
    kept = _profile_run(run.without(without), benches)
    return replace(of_all, profile=of_all.profile.without_others(kept.profile))


def _profile_run(run: KnownRun, benches: Benches) -> Profiled:
    if run.modules and run.recorded and run.report.job.device == "cpu":
        return _of_record(run, benches)
    return _of_traces(run, benches)


def _of_traces(run: KnownRun, benches: Benches) -> Profiled:
    if len(run.modules) > 1:
        raise DdpprofError("a step with several DDP modules can be replayed only if it was recorded on CPU.")
    steps = observe_passes(run.passes)
    sizes = [] if not steps else usual_sizes(usual_passes(run.passes))
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(sizes):
        raise DdpprofError(
            "the traces show no step with gradient all-reduces of known size after a forward pass of DDP. Record the "
            f"job again with: {run.report.job.trace_command()}"
        )
    if run.report.job.num_averaging is None:
        raise DdpprofError("the traces do not show how many ranks trained.")
    training = _of_whole_buckets(run.report, known)
    of_gradients: tuple[ObservedStep, ...] = ()
    if len(run.modules) == 1:
        of_module, host = training_of(run.report, run.modules[0]), _profiled_by_number(run.recorded)
        of_gradients = observe_gradients(run.passes, host, of_module.buckets)
        training = of_module if of_gradients else training
    steps = of_gradients or steps
    _refuse_sparse(training)
    _refuse_unknown_hooks(training, benches)
    own, target = _networks(network_of_steps(steps, training), benches, training)
    taken = _slowed_ns_per_byte(run.report, training)
    if own.link.taken == NOTHING:
        own = replace(own, link=replace(own.link, taken=Cost(0.0, taken)))
    observed = ObservedPasses(training, steps, _usual_number(steps, {step.step for step in steps}))
    profile = profile_of([observed], _whole_steps_ns(steps), own, copied_ns=0.0)
    return Profiled(profile, _taking_as_much(target, profile))


def _whole_steps_ns(parts: Sequence[ObservedStep]) -> list[float]:
    """Return the duration of each step in ns: the sum over its parts, each with one backward pass."""
    lengths: dict[int, float] = {}
    for part in parts:
        lengths[part.step] = lengths.get(part.step, 0.0) + part.measured_ns
    return list(lengths.values())


def _of_whole_buckets(report: Report, sizes: Sequence[int]) -> Training:
    return Training(
        gradients=tuple(map(Gradient, sizes)),
        buckets=tuple((index,) for index in range(len(sizes))),
        caps=Caps.of(),
        world_size=report.job.num_averaging or 1,
        backend=report.job.backend or "",
        on_cpu=report.job.device == "cpu",
        crosses_hosts=len(report.job.hosts) > 1,
        round_trip_ns=report.job.round_trip_ns,
        knows_parameters=False,
    )


def _profiled_by_number(recorded: Recorded) -> HostTimes:
    return {
        rank: {step.number: step for step in steps if step.mode is StepMode.PROFILED}
        for rank, steps in recorded.items()
    }


def _slowed_ns_per_byte(report: Report, training: Training) -> float:
    """Return how much concurrent communication slows computation, in ns per byte sent; 0 if unknown.

    The cost is derived from the durations of kernels with and without concurrent communication.
    """
    slowdown = report.overlap_slowdown
    if slowdown is None or not slowdown.lost_ns or slowdown.lost_ns < 0 or not slowdown.known_share:
        return 0.0
    steps = [step for rank in report.ranks for step in rank.measured_steps if step.comm_ns]
    hidden = median(step.overlap_ns / step.comm_ns for step in steps) if steps else 0.0
    return slowdown.lost_ns / slowdown.known_share / (training.gradient_bytes * hidden) if hidden else 0.0


def _of_record(run: KnownRun, benches: Benches) -> Profiled:
    report, modules, recorded = run.report, run.modules, run.recorded
    num_buckets = [len(module.buckets) for module in modules]
    steps = observe_steps(recorded, num_buckets, one_clock=len(report.job.hosts) == 1)
    kinds = _by_modules(report, modules, steps)
    if not steps and _num_steps_of_several_passes(recorded) >= LEAST_STEPS:
        raise DdpprofError(
            "a prediction needs a forward pass between two backward passes that reduce gradients. This run has "
            "backward passes without a forward pass in between, as in a GAN that uses the output of its generator "
            "twice. If each of several losses has a backward pass of its own, call backward() once, on their sum."
        )
    if not any(step.mode is StepMode.LIGHT for of_rank in recorded.values() for step in of_rank):
        raise DdpprofError(
            "the run has only profiled steps, as recorded by ddpprof capture. A prediction needs lightly recorded "
            f"steps, which show when each gradient was ready. Record them with: {report.job.trace_command()}"
        )
    if len(steps) < LEAST_STEPS or not kinds:
        raise DdpprofError(
            f"{len(steps)} steps show when gradients were ready, but a prediction needs {LEAST_STEPS} "
            "lightly recorded steps with a forward pass for each synchronized backward pass. Record again with: "
            f"{report.job.trace_command()}, and train for more steps."
        )
    for kind in kinds:
        _refuse_sparse(kind.training)
        _refuse_unknown_hooks(kind.training, benches)
    largest = max(kinds, key=lambda kind: kind.training.gradient_bytes)
    own, target = _networks(network_of_steps(largest.passes, largest.training), benches, largest.training)
    alone_ns = backward_alone_ns(recorded) if len(kinds) == 1 else None
    is_crowded = report.job.spare_cores is not None and report.job.spare_cores <= 0
    if is_crowded and alone_ns is None and own.link.taken == NOTHING and largest.training.backend == "gloo":
        own = own.with_guessed_cost(report.job.ranks_per_core or 1)
    wrappers = [step.wrapper for rank in report.ranks for step in rank.measured_steps]
    copied_ns = _median(one.copy_out_ns for one in wrappers)
    searched_ns = _median(one.unused_search_ns for one in wrappers) or 0.0
    profile = profile_of(kinds, _measured_ns(recorded), own, copied_ns, alone_ns, searched_ns)
    return Profiled(profile, _taking_as_much(target, profile))


def _by_modules(report: Report, modules: Sequence[DdpModule], passes: Sequence[ObservedStep]) -> list[ObservedPasses]:
    """Group the passes by the modules that they go through. Passes that occur in only a few steps are excluded.

    Raises `DdpprofError` if different steps train different modules.
    """
    of_modules: dict[tuple[int, ...], list[ObservedStep]] = {}
    for one in passes:
        of_modules.setdefault(one.modules, []).append(one)
    numbers, found = {one.step for one in passes}, []
    for key, of_key in of_modules.items():
        share = len({one.step for one in of_key}) / len(numbers)
        if share > 1 - _FEW_STEPS:
            training = joint([training_of(report, modules[index], index) for index in key])
            found.append(ObservedPasses(training, of_key, _usual_number(of_key, numbers)))
        elif share > _FEW_STEPS:
            raise DdpprofError("steps train different DDP modules, so there is no typical step to replay.")
    return found


def _usual_number(passes: Sequence[ObservedStep], steps: Collection[int]) -> int:
    """Return the median number of `passes` per step. `steps`: numbers of all observed steps."""
    number_in = Counter(one.step for one in passes)
    return round(median(number_in[step] for step in steps))


def _taking_as_much(target: Network | None, profile: Profile) -> Network | None:
    """Return `target`. If the slowdown of computation on `target` is unknown, use that of this run, which depends
    little on the link.
    """
    if target is None or target.link.taken != NOTHING:
        return target
    return _with_taken_of(profile.network, target)


def _refuse_sparse(training: Training) -> None:
    if any(gradient.is_sparse for gradient in training.gradients):
        raise DdpprofError("some gradients are sparse, and the run does not show how many of their bytes were sent.")


def _refuse_unknown_hooks(training: Training, benches: Benches) -> None:
    for given, option in ((benches.to_train_on, "--network"), (benches.of_run, "--run-network")):
        if given is not None:
            refuse_unknown_hook(training, option)


def refuse_unknown_hook(training: Training, option: str) -> None:
    """Raise `DdpprofError` if a communication hook changes what is sent.

    `option`: the option that cannot be used in that case.
    """
    if not sends_unchanged(training.comm_hook):
        raise DdpprofError(
            f"the run does not show how much data {training.comm_hook} sends, so {option} cannot be used."
        )


def _networks(own: Network | None, benches: Benches, training: Training) -> tuple[Network, Network | None]:
    """Return the network of the run, and the network to predict for if it differs."""
    bench, of_run = benches.to_train_on, benches.of_run
    if of_run is not None and of_run.world_size != training.world_size:
        raise DdpprofError(
            f"the network given with --run-network was measured with {of_run.world_size} ranks, but the run has "
            f"{training.world_size}."
        )
    if of_run is not None:
        return of_run, None if bench is None or _is_same(bench, of_run) else bench
    if training.world_size < 2:
        if bench is None:
            raise DdpprofError(
                "the run has only one rank, so it sends nothing. Measure a network with ddpprof netbench, and pass the "
                "resulting file: --network FILE."
            )
        return replace(bench, link=Link(NOTHING, at_once=bench.link.at_once), world_size=1), bench
    if own is None:
        if bench is None:
            raise DdpprofError(
                "the run does not show when its buckets were ready (on an accelerator, only traces show that). "
                "Measure the network with ddpprof netbench -o FILE.json, and pass it as --network FILE.json"
            )
        if bench.world_size != training.world_size:
            raise DdpprofError(
                f"the network of --network was measured with {bench.world_size} ranks, but the run has "
                f"{training.world_size}, and its own network is unknown."
            )
        return bench, None
    if bench is None:
        return own, None
    if _is_same(bench, own):
        return bench, None
    return _with_taken_of(bench, own), bench


def _with_taken_of(known: Network, other: Network) -> Network:
    return replace(other, link=replace(other.link, taken=known.link.taken_at(other.link.alone.ns_per_byte)))


def _is_same(bench: Network, known: Network) -> bool:
    """Return True if a measured network is the same as the known network of the run.

    If the known network was derived from buckets, its latency is unknown, and only a large bucket can be compared.
    """
    measured, seen = bench.link.alone, known.link.alone
    differences = [abs(measured.ns_per_byte / seen.ns_per_byte - 1)]
    if known.is_benched:
        differences.append(abs(measured.ns(known.least_bytes) / seen.ns(known.least_bytes) - 1))
    else:
        differences.append(measured.ns(known.most_bytes) / seen.ns(known.most_bytes) - 1)
    return bench.world_size == known.world_size and max(differences) < _SAME_LINK


def training_of(report: Report, module: DdpModule, index: int = 0) -> Training:
    """Return the `Training` for backward passes through one module. `index`: index of the module in the run."""
    settings = module.settings
    return Training(
        gradients=tuple(map(gradient_of, module.parameters)),
        buckets=module.buckets,
        caps=_caps(module),
        world_size=report.job.num_averaging or 1,
        backend=report.job.backend or "",
        on_cpu=report.job.device == "cpu",
        crosses_hosts=len(report.job.hosts) > 1,
        round_trip_ns=report.job.round_trip_ns,
        find_unused_parameters=bool(settings.get("find_unused_parameters")),
        static_graph=bool(settings.get("static_graph")),
        gradient_as_bucket_view=bool(settings.get("gradient_as_bucket_view")),
        comm_hook=module.comm_hook,
        modules=(index,),
    )


def _caps(module: DdpModule) -> Caps:
    """Return the caps that the script passed to DDP.

    A recorded cap of 25 MiB is the default if the recorded buckets match it, including the small first bucket.
    """
    caps_mb = module.settings.get("bucket_cap_mb_list")
    of_cap = Caps.of(module.bucket_cap_mb, caps_mb if isinstance(caps_mb, list) else ())
    if of_cap != Caps.of(DEFAULT_CAP_MIB):
        return of_cap
    return Caps.of() if same_buckets(buckets_under(module, Caps.of()), module.buckets) else of_cap


def _measured_ns(recorded: Recorded) -> list[float]:
    """Return the durations of the steps that were not profiled, in ns, as means over the ranks."""
    by_number: dict[int, list[int]] = {}
    for step in (step for steps in recorded.values() for step in steps if step.mode in TIMED_MODES):
        by_number.setdefault(step.number, []).append(step.end_ns - step.start_ns)
    return [fmean(times) for _, times in sorted(by_number.items())]


def _num_steps_of_several_passes(recorded: Recorded) -> int:
    """Return the number of lightly recorded steps with several backward passes, on the rank with the fewest."""
    numbers = (sum(step.mode is StepMode.LIGHT and len(step.passes) > 1 for step in of) for of in recorded.values())
    return min(numbers, default=0)


def _median(values: Iterable[int]) -> float | None:
    """Return the median of the values other than 0, which stands for unknown; ``None`` if there are no such values."""
    known = [value for value in values if value]
    return float(median(known)) if known else None
