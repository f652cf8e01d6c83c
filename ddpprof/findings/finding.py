"""What a rule looks at, and what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddpprof.findings.predictions import Predicted, Predictions
from ddpprof.measures.buckets.bucket_table import BucketSummary
from ddpprof.measures.collectives.script_collectives import OutsideCalls
from ddpprof.measures.kernels.devices import DeviceLoad
from ddpprof.measures.ranks.arrivals import RankWaiting
from ddpprof.measures.ranks.late_gradients import LateGradient
from ddpprof.measures.ranks.memory import RankMemory
from ddpprof.measures.ranks.replicas import Drift
from ddpprof.measures.ranks.same_samples import SameSamples
from ddpprof.measures.ranks.stragglers import Straggler
from ddpprof.measures.step.accumulation import Accumulation
from ddpprof.model import DdpModule, Loader

_WORTH_SAYING = 0.01
"""Findings below this fraction of the step are left out."""
_SURELY_WORTH_SAYING = 0.02
"""What was measured to be more than this is hardly left out in another run of the job."""


_ROUNDS_TO_NOTHING_NS = 5_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to change."""

    rule: str
    title: str
    evidence: str
    advice: str
    gain_ns: int | None
    """per step, at most; ``None`` for what costs correctness or cannot be told from this run"""
    is_correctness: bool = False
    """training does something else than it seems to, whatever the time"""
    predicted: Predicted | None = None
    """where the recorded steps can be replayed with just this change; `gain_ns` is then the upper end"""
    is_noise: bool = False
    """chance may have made it, or the change may cost time: an observation, not advice"""

    @property
    def expected_ns(self) -> int | None:
        return self.gain_ns if self.predicted is None else self.predicted.gain_ns


@dataclass(frozen=True, slots=True)
class Observed:
    """What the rules look at. Times are ns per step: medians over steps, of the rank where they are least."""

    world_size: int | None
    step_ns: int | None
    step_noise_ns: int | None = None
    """half of the 95 % interval of `step_ns`; ``None`` where there are too few steps for one"""
    backend: str | None = None
    modules: tuple[DdpModule, ...] = ()
    buckets: tuple[BucketSummary, ...] = ()
    accumulation: tuple[Accumulation, ...] = ()
    comm_ns: int | None = None
    exposed_ns: int | None = None
    trailing_ns: int | None = None
    data_ns: int | None = None
    buffer_sync_ns: int | None = None
    num_micro_steps: int = 1
    """batches that a step accumulates"""
    num_forwards: int = 1
    """with gradients"""
    num_buffer_syncs: int = 1
    """of these, before which buffers are broadcast"""
    unused_search_ns: int | None = None
    copy_out_ns: int | None = None
    slowdown_lost_ns: int | None = None
    slowdown_ratio: float | None = None
    slowdown_known_share: float | None = None
    slowdown_control: float | None = None
    """how much longer work without communication took than in baseline steps; taken out of the ratio"""
    launch_bound_ns: int | None = None
    stragglers: tuple[Straggler, ...] = ()
    late_gradients: Mapping[int, tuple[LateGradient, ...]] = field(default_factory=dict)
    """rank → the gradients with which it falls behind"""
    outside: tuple[OutsideCalls, ...] = ()
    """collectives beside DDP"""
    device_loads: tuple[DeviceLoad, ...] = ()
    """of the rank whose several devices differ most"""
    memory: tuple[RankMemory, ...] = ()
    waiting: tuple[RankWaiting, ...] = ()
    """without the first step; where a file of another tool says which rank was late"""
    loaders: Mapping[int, tuple[Loader, ...]] = field(default_factory=dict)
    """rank → its data loaders"""
    same_samples: SameSamples | None = None
    drifts: tuple[Drift, ...] = ()
    group_size: int | None = None
    """ranks that average their gradients together; the least of any rank's"""
    device: str | None = None
    """as torch names it: ``"cpu"``, ``"cuda"``"""
    framework: str | None = None
    """whose options make the DDP module; ``None``: the script does"""
    cores_per_rank: float | None = None
    """of the host where they are fewest"""
    num_threads: int | None = None
    """with which a rank computes on its host; the most of any rank"""
    checkpoints: Mapping[int, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    """rank → its host and the paths that it saved"""
    predictions: Predictions = field(default_factory=Predictions)
    beside: tuple[Finding, ...] = ()
    """what side streets find"""
    advice: Mapping[str, str] = field(default_factory=dict)
    """rule → what to do about it on the side street that the job takes"""

    @property
    def shares_cores(self) -> bool:
        """Whether the ranks compute on cores, which the machine gives to other work as well."""
        return self.backend in ("gloo", "mpi", "ucc")

    def is_noise(self, finding: Finding) -> bool:
        """Whether chance may have made a finding.

        A prediction: if it may be a loss, or is less than the noise of the step and may be less than half of what it
        says. A cost that was measured: if it is so near the least that is worth saying that chance decides whether it
        is said.
        """
        gain_ns = finding.expected_ns
        if finding.is_noise or gain_ns is None:
            return finding.is_noise
        if finding.predicted is not None:
            return self.may_be_chance(finding.predicted)
        return gain_ns < max(_ROUNDS_TO_NOTHING_NS, _SURELY_WORTH_SAYING * (self.step_ns or 0))

    def may_be_chance(self, predicted: Predicted) -> bool:
        gain_ns, low_ns = predicted.gain_ns, predicted.low_ns
        if gain_ns < _ROUNDS_TO_NOTHING_NS or low_ns <= 0:
            return True
        return gain_ns < (self.step_noise_ns or 0) and 2 * low_ns < gain_ns

    def worth(self, gain_ns: int | None, predicted: Predicted | None = None) -> bool:
        """`gain_ns`: at most, by what was measured. Where both are known both have to be: one may be wrong."""
        gains = [gain_ns, None if predicted is None else predicted.gain_ns]
        least = min((gain for gain in gains if gain is not None), default=0)
        return least > 0 and bool(self.step_ns) and least >= _WORTH_SAYING * (self.step_ns or 0)


def at_most(gain_ns: int | None, predicted: Predicted | None) -> int | None:
    """By the replay where there is one: measures only bound what a change could give back."""
    return gain_ns if predicted is None else predicted.high_ns


def hoped_for(gain_ns: int | None, predicted: Predicted | None) -> tuple[int | None, Predicted | None]:
    """What a change gives back at most, and its prediction; neither where it is predicted to cost something."""
    if predicted is not None and predicted.gain_ns < 0:
        return None, None
    return at_most(gain_ns, predicted), predicted


def ms(ns: float) -> str:
    return f"{ns / 1e6:.2f} ms"


def size(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:.1f} kB"


def names(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
