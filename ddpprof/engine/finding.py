"""Findings, which are the output of rules, and the changes that they recommend, as data that a tool can apply."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, NamedTuple

from ddpprof.engine.frameworks import ddp_argument, load_with
from ddpprof.engine.numbers import Number, Part
from ddpprof.model.json_files import Measured, Outcome

DEFAULT_CAP = "bucket_cap_mb=None"
ACCUMULATED = 4
"""the prediction of gradient accumulation assumes one gradient reduction per this many backward passes"""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predicted gain of a single change, in ns per step; negative if the step becomes longer."""

    gain_ns: Annotated[int, Number("predicted gain per step", column="ns")]
    low_ns: Annotated[int, Number("lower end of the 95 % interval of the gain")]
    high_ns: Annotated[int, Number("upper end of the 95 % interval of the gain")]


def within(predicted: Predicted, cause_ns: int | None) -> Predicted:
    """Limit the prediction to `cause_ns`: the maximum time that the change can remove according to the measurements.

    There is no limit if `cause_ns` is ``None``. A prediction may exceed the limit, because it may be based on different
    steps than the measurement.
    """
    if cause_ns is None:
        return predicted
    return Predicted(*(min(ns, cause_ns) for ns in (predicted.gain_ns, predicted.low_ns, predicted.high_ns)))


@dataclass(frozen=True, slots=True)
class NewBuckets:
    """The buckets that DDP builds with a given argument."""

    argument: str
    """argument of DDP's constructor; empty if no buckets were found that are better than the recorded buckets"""
    bucket_bytes: tuple[int, ...]
    """bucket sizes in launch order"""
    predicted: Predicted | None = None
    equal_mb: tuple[float, float] | None = None
    """smallest and largest single cap that give an equally good prediction, if there is more than one such cap"""

    @property
    def is_default(self) -> bool:
        return self.argument == DEFAULT_CAP


def since_torch(argument: str) -> str:
    """Return a note for an argument that older versions of PyTorch do not have, otherwise an empty string."""
    return ", from torch 2.13 on" if argument.startswith("bucket_cap_mb_list") else ""


def equal_caps(equal_mb: tuple[float, float] | None) -> str:
    """Return a note, to be appended to an argument, on the range of caps that the prediction cannot distinguish."""
    if equal_mb is None:
        return ""
    return f" (caps of {equal_mb[0]:g} to {equal_mb[1]:g} MB are equally fast within the error of the prediction)"


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predicted effects of single changes; ``None`` if unknown, or if the run already has the change."""

    best_buckets: NewBuckets | None = None
    """the buckets with the largest predicted gain"""
    default_buckets: Predicted | None = None
    """the buckets that DDP makes by default; given only if the latency of a message is known"""
    aligned_buckets: Predicted | None = None
    """DDP buckets that match the graphs of a compiled model: one bucket of 1 MiB, then buckets with the current cap"""
    compression: Predicted | None = None
    """gradients are sent in half precision: fp16 or bf16, depending on the backend"""
    bucket_views: Predicted | None = None
    without_unused_search: Predicted | None = None
    """DDP does not search for unused parameters, and rebuilds its buckets in the order in which gradients
    become ready
    """
    no_sync: Predicted | None = None
    """in a step with several backward passes, only the last pass reduces gradients"""
    double_batch: Predicted | None = None
    """twice the batch size; the gain is the communication time saved per batch of the current size"""
    accumulation: Predicted | None = None
    """only every `ACCUMULATED`-th backward pass reduces gradients; the gain is the time saved per backward pass"""
    double_link: Predicted | None = None
    """a network with twice the bandwidth"""
    without_straggler: Predicted | None = None
    """the slowest rank becomes as fast as the second slowest"""


_RIGHT = 0.8
"""a rule may be recommended as the first fix if at least this share of its trials confirmed it"""


class Tried(NamedTuple):
    """How often trials confirmed a rule, and by how much its predicted intervals must be widened."""

    num_cases: int
    num_confirmed: int
    widening: float = 1.0
    """factor by which both sides of a predicted interval are widened, so that it contains 95 % of measured gains; at
    least 1
    """


TRACK_RECORD: Mapping[str, Tried] = {
    "buckets-too-large": Tried(15, 15),
    "compiled-graphs": Tried(1, 1),
    "dense-embedding-gradients": Tried(1, 1),
    "idle-for-data": Tried(2, 2),
    "reduces-every-pass": Tried(5, 5),
    "trailing-communication": Tried(25, 25),
}
"""for each rule, its trials that had a clear result, from `analyses/advice/results.json`; rules that are missing have
not been tried
"""


def calibrated(rule: str, predicted: Predicted) -> Predicted:
    """Return the prediction with its interval widened as the trials of the rule require."""
    tried = TRACK_RECORD.get(rule)
    if tried is None or tried.widening == 1:
        return predicted
    gain_ns, low_ns, high_ns = predicted.gain_ns, predicted.low_ns, predicted.high_ns
    return Predicted(
        gain_ns,
        round(gain_ns - tried.widening * (gain_ns - low_ns)),
        round(gain_ns + tried.widening * (high_ns - gain_ns)),
    )


def is_trusted(rule: str) -> bool:
    """Return True if the rule may be recommended first.

    This is the case if no trials of the rule are known, or if at least 80 % of them confirmed its advice.
    """
    tried = TRACK_RECORD.get(rule)
    return tried is None or tried.num_confirmed >= _RIGHT * tried.num_cases


Value = bool | int | float | str | tuple[float, ...] | None


class ChangeKind(StrEnum):
    """Where a change is made."""

    DDP = "ddp"
    """in the arguments of ``DistributedDataParallel``"""
    COMM_HOOK = "comm_hook"
    """by registering a hook of ``default_hooks``"""
    ENVIRONMENT = "environment"
    """by setting environment variables of the ranks"""
    LOADER = "loader"
    """in the arguments of a ``DataLoader``"""
    COMPILATION = "compilation"
    """in how torch.compile is applied to DDP: ``optimize_ddp`` or ``compile_order``, and possibly in arguments of
    ``DistributedDataParallel``
    """
    SWITCH = "switch"
    """by turning ``sync_batch_norm``, ``sparse_embeddings`` or ``detect_anomaly`` on or off in the script"""
    NO_SYNC = "no_sync"
    """in the training loop: only the last of ``num_passes`` backward passes of a step reduces gradients"""


@dataclass(frozen=True, slots=True)
class Change:
    """One change that a user can make or a tool can apply."""

    kind: ChangeKind
    values: Mapping[str, Value] = field(hash=False)
    """value of each argument, variable or hook, by name"""
    code: str
    """code that makes the change; if a framework creates the DDP module, the code uses the framework's options"""
    is_lossy: bool = False
    """True if the change alters what training computes, for example because it rounds gradients"""


def ddp_change(framework: str | None, **arguments: Value) -> Change:
    """Return the change that sets these constructor arguments of DDP."""
    written = [f"{name}={list(value) if isinstance(value, tuple) else value!r}" for name, value in arguments.items()]
    return Change(ChangeKind.DDP, arguments, ddp_argument(framework, *written))


def bucket_change(framework: str | None, new: NewBuckets) -> Change | None:
    """Return the change that produces the given buckets, or ``None`` if the best value is unknown."""
    if not new.argument or (new.predicted is None and not new.is_default):
        return None
    name, _, text = new.argument.partition("=")
    value = ast.literal_eval(text)
    return ddp_change(framework, **{name: tuple(value) if isinstance(value, list) else value})


def environment_change(**variables: str) -> Change:
    return Change(ChangeKind.ENVIRONMENT, variables, " ".join(f"{name}={value}" for name, value in variables.items()))


def loader_change(framework: str | None, num_workers: int, persistent: bool) -> Change:
    values: dict[str, Value] = {"num_workers": num_workers, **({"persistent_workers": True} if persistent else {})}
    return Change(ChangeKind.LOADER, values, load_with(framework, num_workers, persistent))


def compilation_change(optimize_ddp: str | None = None, compile_order: str | None = None) -> Change:
    """Return the change that sets `OptimizeDdp` or `CompileOrder` to the given value."""
    if compile_order is not None:
        return Change(ChangeKind.COMPILATION, {"compile_order": compile_order}, _ORDERS[compile_order])
    code = f'torch._dynamo.config.optimize_ddp = "{optimize_ddp}", before DDP is constructed'
    return Change(ChangeKind.COMPILATION, {"optimize_ddp": optimize_ddp}, code)


def sync_batch_norm_change() -> Change:
    """Return the change that replaces SyncBatchNorm by BatchNorm, which computes statistics over one rank's batch."""
    code = "leave out torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)"
    return Change(ChangeKind.SWITCH, {"sync_batch_norm": False}, code, is_lossy=True)


def sparse_embeddings_change() -> Change:
    """Return the change that makes all embeddings compute sparse gradients."""
    code = "torch.nn.Embedding(…, sparse=True)"
    return Change(ChangeKind.SWITCH, {"sparse_embeddings": True}, code)


_ORDERS = {
    "ddp_first": "torch.compile(DistributedDataParallel(model))",
    "model_first": "DistributedDataParallel(torch.compile(model))",
}


_REPLAYED = (
    "trailing-communication",
    "buckets-too-large",
    "buckets-too-small",
    "first-bucket-late",
    "better-buckets",
    "reduces-every-pass",
)
"""rules whose gain can be predicted only by replaying the steps"""


_IN_VAIN = (Outcome.NO_DIFFERENCE, Outcome.SLOWER, Outcome.OTHER_RESULTS, Outcome.FAILED)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: a problem, the change that solves it, and the time that the change saves."""

    rule: Annotated[str, Number("rule that produced the finding")]
    title: Annotated[str, Number("what was found")]
    evidence: Annotated[str, Number("measured numbers")]
    advice: Annotated[str, Number("what to change")]
    gain_ns: Annotated[int | None, Number("maximum gain per step")]
    """largest possible gain, in ns per step; ``None`` if the finding is about correctness, or if the gain is unknown"""
    is_correctness: Annotated[bool, Number("whether the finding is about the correctness of training")] = False
    predicted: Annotated[Predicted | None, Part("predicted_")] = None
    """predicted gain; set only if the recorded steps can be replayed with this change. `gain_ns` is then the upper end
    of the predicted interval
    """
    cause_ns: int | None = None
    """time per step that the problem costs; `find` limits the gain to this time, because no change can save more"""
    is_noise: Annotated[bool, Number("whether the finding may be due to chance")] = False

    is_worth_trying: Annotated[bool, Number("whether the gain is uncertain but may be large")] = False
    """True if the finding counts as noise although its gain may be large: the interval of the predicted gain is wide,
    because little is known about the network
    """

    longer_recording: str | None = None
    """options of ``ddpprof trace`` for a recording long enough to show whether the finding is due to chance"""
    comes_first: bool = False
    """True if this finding must be fixed before all others, because training is broken or measurements are distorted"""
    may_be_meant: bool = False
    """True if the reported behavior may be intended"""
    is_left_out_of_trials: bool = False
    """True if `ddpprof try` cannot measure the gain because it comes from how files are saved, and trials save none"""
    is_in_few_steps: bool = False
    """True if the problem costs time in only a few, long steps; `ddpprof try` then compares means over many steps"""
    subject: Mapping[str, int | str] = field(default_factory=dict, hash=False)
    """what the finding is about: a ``rank``, ``bucket``, ``parameter``, ``module``, ``step``, ``host`` or ``line``"""
    numbers: Mapping[str, int | float] = field(default_factory=dict, hash=False)
    """numbers that occur in the title and the evidence; each name includes the unit, such as ``trailing_ns``"""
    measured: Measured | None = None
    """gain of the change as measured by `ddpprof try`; ``None`` if it has not been tried"""
    change: Change | None = None
    """change that a tool can apply; ``None`` if the script must be edited by hand, or if the best value is unknown"""

    @property
    def code(self) -> str:
        """Code of the change; empty if only the script's author can make it."""
        return "" if self.change is None else self.change.code

    @property
    def has_advice(self) -> bool:
        """Whether the advice is shown: the finding is not noise, or the change is worth trying."""
        return not self.is_noise or self.is_worth_trying

    @property
    def has_unknown_gain(self) -> bool:
        """Whether the finding is about time, but only `ddpprof try` can show how much time its change saves."""
        return self.expected_ns is None and self.change is not None and not self.is_correctness

    @property
    def is_guess(self) -> bool:
        """Whether `gain_ns` is only an upper bound, because a replay could not predict the gain."""
        return self.predicted is None and self.rule in _REPLAYED

    @property
    def is_trusted(self) -> bool:
        """Whether the finding may be recommended first: its gain was measured, or its rule is trusted."""
        return self.is_decided or is_trusted(self.rule)

    @property
    def is_lossy(self) -> bool:
        """Whether the change rounds gradients, which changes the results of training."""
        return self.change is not None and self.change.is_lossy

    @property
    def is_decided(self) -> bool:
        """Whether the change was tried in enough trials for a verdict."""
        return self.measured is not None and self.measured.outcome is not Outcome.CANNOT_TELL

    @property
    def gives_nothing(self) -> bool:
        """Whether trials showed that the change does not make the step shorter, changes the losses, or fails."""
        return self.measured is not None and self.measured.outcome in _IN_VAIN

    @property
    def expected_ns(self) -> int | None:
        return self.gain_ns if self.predicted is None else self.predicted.gain_ns


def at_most(gain_ns: int | None, predicted: Predicted | None) -> int | None:
    """Return the upper end of the predicted gain or, without a prediction, the measured bound."""
    return gain_ns if predicted is None else predicted.high_ns


def hoped_for(gain_ns: int | None, predicted: Predicted | None) -> tuple[int | None, Predicted | None]:
    """Return the maximum gain and the prediction, or (``None``, ``None``) if the step is predicted to become longer."""
    if predicted is not None and predicted.gain_ns < 0:
        return None, None
    return at_most(gain_ns, predicted), predicted


def size(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:.1f} kB"


def only_known(**numbers: float | None) -> dict[str, int | float]:
    """Return the numbers that are not ``None``."""
    return {name: value for name, value in numbers.items() if value is not None}
