"""The input and the output of a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from ddpprof.engine.numbers import Number, Part
from ddpprof.findings.change import Change
from ddpprof.findings.predictions import Predicted, Predictions
from ddpprof.measures.buckets.bucket_summary import BucketRow
from ddpprof.measures.kernels.devices import DeviceLoad
from ddpprof.measures.ranks.arrivals import RankWaiting
from ddpprof.measures.ranks.host_cores import HostCores
from ddpprof.measures.ranks.late_gradients import LateGradient
from ddpprof.measures.ranks.random_numbers import SameRandomNumbers
from ddpprof.measures.ranks.replicas import Drift, TrainedApart
from ddpprof.measures.ranks.same_samples import SameSamples
from ddpprof.measures.ranks.skipped_passes import SkippedPass
from ddpprof.measures.ranks.stragglers import Straggler
from ddpprof.measures.step.accumulation import Accumulation
from ddpprof.model import CollectiveOfSomeRanks, DdpModule, Loader
from ddpprof.model.backends import ON_HOST
from ddpprof.model.whole_run import NonfiniteSteps

_WORTH_SAYING = 0.01
"""least fraction of the step worth a finding"""
_MANY_QUEUED = 0.5
"""number of threads per rank"""

_REPLAYED = (
    "trailing-communication",
    "buckets-too-large",
    "buckets-too-small",
    "first-bucket-late",
    "better-buckets",
    "reduces-every-pass",
)
"""rules whose change has effects that only a replay of the steps shows"""


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding: one thing to change."""

    rule: Annotated[str, Number("name of the rule that made it")]
    title: Annotated[str, Number("what was found")]
    evidence: Annotated[str, Number("numbers that show it")]
    advice: Annotated[str, Number("what to change")]
    gain_ns: Annotated[int | None, Number("most time to gain per step")]
    """most ns per step to gain; ``None`` if the finding is about correctness, or this run cannot tell"""
    is_correctness: Annotated[bool, Number("whether training does something other than it seems to")] = False
    predicted: Annotated[Predicted | None, Part("predicted_")] = None
    """predicted gain, if the recorded steps can be replayed with just this change; `gain_ns` is then its upper end"""
    cause_ns: int | None = None
    """time per step that the finding names, of which no change can give back more; `find` sees to that"""
    is_noise: Annotated[bool, Number("whether it may be chance, so that it is no advice")] = False

    may_be_meant: bool = False
    """True if training may do on purpose what the finding says"""
    subject: Mapping[str, int | str] = field(default_factory=dict, hash=False)
    """what it is about: a ``rank``, ``bucket``, ``parameter``, ``module``, ``step`` or ``host``"""
    change: Change | None = None
    """what to change, for a tool to apply; ``None`` if only the script's author can, or the best value is unknown"""

    @property
    def is_guess(self) -> bool:
        """Whether only a replay could tell what the change gives, and there was none: `gain_ns` is a mere bound."""
        return self.predicted is None and self.rule in _REPLAYED

    @property
    def expected_ns(self) -> int | None:
        return self.gain_ns if self.predicted is None else self.predicted.gain_ns


@dataclass(frozen=True, slots=True)
class Observed:
    """The input of the rules. Times are ns per step: means over the usual steps, of the rank where each is smallest."""

    world_size: int | None
    step_ns: int | None
    step_noise_ns: int | None = None
    """half of the 95 % interval of `step_ns`; ``None`` if there are too few steps for one"""
    backend: str | None = None
    modules: tuple[DdpModule, ...] = ()
    buckets: tuple[BucketRow, ...] = ()
    accumulation: tuple[Accumulation, ...] = ()
    comm_ns: int | None = None
    exposed_ns: int | None = None
    trailing_ns: int | None = None
    data_ns: int | None = None
    buffer_sync_ns: int | None = None
    num_micro_steps: int = 1
    """number of batches that a step accumulates"""
    num_forwards: int = 1
    """number of forwards with gradients"""
    num_buffer_syncs: int = 1
    """number of these before which buffers are broadcast"""
    modules_with_buffer_syncs: tuple[int, ...] | None = None
    """modules whose buffers these are; ``None`` if unknown"""
    unused_search_ns: int | None = None
    copy_out_ns: int | None = None
    slowdown_lost_ns: int | None = None
    slowdown_ratio: float | None = None
    slowdown_known_share: float | None = None
    slowdown_control: float | None = None
    """factor by which work without communication took longer than in baseline steps; already removed from the ratio"""
    launch_bound_ns: int | None = None
    stragglers: tuple[Straggler, ...] = ()
    steps_tell_stragglers: bool = False
    """whether there are enough recorded steps to tell whether a rank is late"""
    late_gradients: Mapping[int, tuple[LateGradient, ...]] = field(default_factory=dict)
    """rank → the gradients at which it falls behind"""
    device_loads: tuple[DeviceLoad, ...] = ()
    """loads of the rank whose several devices differ most"""
    waiting: tuple[RankWaiting, ...] = ()
    """waiting per rank without the first step, if a file of another tool says which rank was late"""
    loaders: Mapping[int, tuple[Loader, ...]] = field(default_factory=dict)
    """rank → its data loaders"""
    same_samples: SameSamples | None = None
    same_random_numbers: SameRandomNumbers | None = None
    same_worker_seeds: Loader | None = None
    """a loader whose workers draw the same random numbers on all ranks"""
    drifts: tuple[Drift, ...] = ()
    trained_apart: tuple[TrainedApart, ...] = ()
    trains_beside_ddp: bool = False
    """whether optimizers train parameters whose gradients DDP does not average, so that the script may have to"""
    joins: bool = False
    """whether ranks may have different numbers of batches, as within DDP's ``join()``"""
    timeout_s: float | None = None
    """time after which a process group gives a collective up; the longest of any rank"""
    group_size: int | None = None
    """number of ranks that average their gradients together; the least of any rank"""
    device: str | None = None
    """torch's name for it: ``"cpu"`` or ``"cuda"``"""
    is_compiled: bool = False
    """whether torch.compile has compiled the model, which it cuts where buckets end"""
    has_cuda: bool = True
    """whether an accelerator, if there is one, runs CUDA or HIP"""
    takes_cap_lists: bool = True
    """whether a user can give each bucket a cap, to any effect"""
    framework: str | None = None
    """framework whose options make the DDP module; ``None`` if the script makes it"""
    hosts: tuple[HostCores, ...] = ()
    """hosts whose cores are known, with the ranks that are known"""
    cores_per_rank: float | None = None
    """number of cores per rank on the host with the fewest"""
    queued_threads: float | None = None
    """number of a rank's threads that are runnable but not running, on average over the ranks and the whole run"""
    num_threads: int | None = None
    """number of threads with which a rank computes on its host; the most of any rank"""
    checkpoints: Mapping[int, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    """rank → its host and the paths that it wrote"""
    of_some_ranks: tuple[CollectiveOfSomeRanks, ...] = ()
    unfrozen: tuple[str, ...] = ()
    """parameters that DDP does not average, as they were frozen when it was constructed, and that were trained since"""
    skipped: SkippedPass | None = None
    """the rank that skipped a backward pass, if there is one"""
    nonfinite: Mapping[int, NonfiniteSteps | None] = field(default_factory=dict)
    """rank → its steps whose loss was NaN or infinite; of all ranks that noted their whole training"""
    own_ns: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """rank → median time per step that it needed by itself, in each of ten stretches of the whole run"""
    watched_ns: int = 0
    """length of the whole run, of which `own_ns` tells"""
    watched_steps: int = 0
    """number of its steps"""
    predictions: Predictions = field(default_factory=Predictions)
    beside: tuple[Finding, ...] = ()
    """what topics find"""
    advice: Mapping[str, str] = field(default_factory=dict)
    """rule → what to do about it, as another topic knows better"""

    @property
    def shares_cores(self) -> bool:
        """Return whether the ranks compute on CPU cores, which the machine also gives to other work."""
        return self.backend in ON_HOST

    @property
    def threads_wait(self) -> bool:
        """Return whether threads of the ranks were seen to wait for a free core much of the time."""
        return (self.queued_threads or 0) >= _MANY_QUEUED

    def module(self, index: int) -> DdpModule | None:
        """Return a module; ``None`` if a killed rank left steps of it, but no description."""
        return self.modules[index] if 0 <= index < len(self.modules) else None

    def worth(self, gain_ns: int | None, predicted: Predicted | None = None) -> bool:
        """Return whether the gain is worth a finding. `gain_ns` is a measured bound; both gains must be big enough."""
        gains = [gain_ns, None if predicted is None else predicted.gain_ns]
        least = min((gain for gain in gains if gain is not None), default=0)
        return least > 0 and bool(self.step_ns) and least >= _WORTH_SAYING * (self.step_ns or 0)


def at_most(gain_ns: int | None, predicted: Predicted | None) -> int | None:
    """Return the upper end of the replay's prediction, or else the measured bound."""
    return gain_ns if predicted is None else predicted.high_ns


def hoped_for(gain_ns: int | None, predicted: Predicted | None) -> tuple[int | None, Predicted | None]:
    """Return the most that a change gives back, and its prediction; neither if it is predicted to cost time."""
    if predicted is not None and predicted.gain_ns < 0:
        return None, None
    return at_most(gain_ns, predicted), predicted


def in_ms(ns: float) -> str:
    return f"{ns / 1e6:z.2f} ms"


def size(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:.1f} kB"
