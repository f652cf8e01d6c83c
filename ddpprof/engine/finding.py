"""The output of a rule: a finding, and the change that it recommends, as data that a tool can apply."""

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
"""number of backward passes per reduction in the prediction of more accumulation"""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predicted gain of one change alone, ns per step; negative if it costs time."""

    gain_ns: Annotated[int, Number("predicted gain per step", column="ns")]
    low_ns: Annotated[int, Number("lower end of its 95 % interval")]
    high_ns: Annotated[int, Number("upper end of its 95 % interval")]


def within(predicted: Predicted, cause_ns: int | None) -> Predicted:
    """Return the prediction, limited to the time that the change can remove if that was measured.

    The replay may cover other steps than those in which the time was measured.
    """
    if cause_ns is None:
        return predicted
    return Predicted(*(min(ns, cause_ns) for ns in (predicted.gain_ns, predicted.low_ns, predicted.high_ns)))


@dataclass(frozen=True, slots=True)
class NewBuckets:
    """The buckets that DDP makes with a given argument."""

    argument: str
    """argument of DDP's constructor; empty for the recorded buckets, if no better ones were found"""
    bucket_bytes: tuple[int, ...]
    """bucket sizes in launch order"""
    predicted: Predicted | None = None
    equal_mb: tuple[float, float] | None = None
    """smallest and largest single cap that are equally good, if there are several"""

    @property
    def is_default(self) -> bool:
        return self.argument == DEFAULT_CAP


def since_torch(argument: str) -> str:
    """Return a note for an argument that older torch versions do not have."""
    return ", from torch 2.13 on" if argument.startswith("bucket_cap_mb_list") else ""


def equal_caps(equal_mb: tuple[float, float] | None) -> str:
    """Return, in words to follow an argument, which caps are equally good."""
    return "" if equal_mb is None else f" ({equal_mb[0]:g} to {equal_mb[1]:g} MB are equal)"


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predicted effects of single changes; ``None`` if the run cannot tell, or already has the change."""

    best_buckets: NewBuckets | None = None
    """best buckets found"""
    aligned_buckets: Predicted | None = None
    """buckets of a compiled model that end where its graphs end: the first one at 1 MiB, others at the present cap"""
    compression: Predicted | None = None
    """half-precision gradients, in fp16 or bf16, whichever the backend supports"""
    bucket_views: Predicted | None = None
    without_unused_search: Predicted | None = None
    """no search for unused parameters, and buckets in gradient order"""
    no_sync: Predicted | None = None
    """reduction only in the last of a step's several backward passes"""
    double_batch: Predicted | None = None
    """doubling the batch size; communication time saved per batch of the present size"""
    accumulation: Predicted | None = None
    """reduction in every `ACCUMULATED`-th backward pass; communication time saved per backward pass"""
    double_link: Predicted | None = None
    """a network with twice the bandwidth"""
    without_straggler: Predicted | None = None
    """the slowest rank made as fast as the next one"""


_RIGHT = 0.8
"""minimum share of trials that must confirm a rule for it to be recommended first"""


class Tried(NamedTuple):
    num_cases: int
    num_confirmed: int


TRACK_RECORD: Mapping[str, Tried] = {
    "buckets-too-large": Tried(9, 9),
    "idle-for-data": Tried(1, 1),
    "reduces-every-pass": Tried(2, 2),
    "trailing-communication": Tried(10, 10),
}
"""rule → its trials with a verdict, as in `analyses/advice/results.json`; other rules have not been tried"""


def is_trusted(rule: str) -> bool:
    """Return True if the rule may be recommended first: it is not known to be wrong in more than a fifth of cases."""
    tried = TRACK_RECORD.get(rule)
    return tried is None or tried.num_confirmed >= _RIGHT * tried.num_cases


Value = bool | int | float | str | tuple[float, ...] | None


class ChangeKind(StrEnum):
    """Where a change is made."""

    DDP = "ddp"
    """in the arguments of ``DistributedDataParallel``"""
    COMM_HOOK = "comm_hook"
    """by registering a hook from torch's ``default_hooks``"""
    ENVIRONMENT = "environment"
    """by setting environment variables of the ranks"""
    LOADER = "loader"
    """in the arguments of a ``DataLoader``"""
    COMPILATION = "compilation"
    """in how torch.compile compiles DDP: ``optimize_ddp`` or ``compile_order``"""
    SYNC_BATCH_NORM = "sync_batch_norm"
    """in the model: SyncBatchNorm layers use the statistics of their own rank, as BatchNorm does"""
    NO_SYNC = "no_sync"
    """in the training loop: only the last of ``num_passes`` backward passes reduces gradients"""


@dataclass(frozen=True, slots=True)
class Change:
    """One change that a user can make, and a tool can apply."""

    kind: ChangeKind
    values: Mapping[str, Value] = field(hash=False)
    """name of each argument, variable or hook → its value"""
    code: str
    """code of the change, for the framework that makes the DDP module if there is one"""
    is_lossy: bool = False
    """True if training then computes something else, such as rounded gradients"""


def ddp_change(framework: str | None, **arguments: Value) -> Change:
    """Return a change of DDP's constructor arguments."""
    written = [f"{name}={list(value) if isinstance(value, tuple) else value!r}" for name, value in arguments.items()]
    return Change(ChangeKind.DDP, arguments, ddp_argument(framework, *written))


def bucket_change(framework: str | None, new: NewBuckets) -> Change | None:
    """Return the change that would produce the given buckets; ``None`` if the best value is unknown."""
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
    """Return a change of how torch.compile compiles DDP, to one of these values."""
    if compile_order is not None:
        return Change(ChangeKind.COMPILATION, {"compile_order": compile_order}, _ORDERS[compile_order])
    code = f'torch._dynamo.config.optimize_ddp = "{optimize_ddp}", before DDP is constructed'
    return Change(ChangeKind.COMPILATION, {"optimize_ddp": optimize_ddp}, code)


def sync_batch_norm_change() -> Change:
    """Return the change from SyncBatchNorm to BatchNorm, whose statistics are those of one rank's batch."""
    code = "leave out torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)"
    return Change(ChangeKind.SYNC_BATCH_NORM, {"sync_batch_norm": False}, code, is_lossy=True)


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
"""rules whose change has effects that only a replay of the steps can show"""


_IN_VAIN = (Outcome.NO_DIFFERENCE, Outcome.SLOWER, Outcome.OTHER_RESULTS)


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding: one thing to change, and how much time it saves."""

    rule: Annotated[str, Number("name of the rule that made it")]
    title: Annotated[str, Number("what was found")]
    evidence: Annotated[str, Number("numbers that show it")]
    advice: Annotated[str, Number("what to change")]
    gain_ns: Annotated[int | None, Number("most time to gain per step")]
    """maximum gain, ns per step; ``None`` if the finding is about correctness, or if this run cannot tell"""
    is_correctness: Annotated[bool, Number("whether training does something other than it seems to")] = False
    predicted: Annotated[Predicted | None, Part("predicted_")] = None
    """predicted gain, if the recorded steps can be replayed with only this change; `gain_ns` is then its upper end"""
    cause_ns: int | None = None
    """time per step that the finding is about; no change can save more, and `find` limits the gain to it"""
    is_noise: Annotated[bool, Number("whether it may be due to chance; it then has no advice")] = False

    is_worth_trying: Annotated[bool, Number("whether it may save much although the run cannot predict how much")] = (
        False
    )
    """True if `is_noise`, but its predicted gain is large: the interval includes 0 as the network is hardly known"""

    comes_first: bool = False
    """True if this must be fixed before any gain counts: training is broken, or measurements are distorted"""
    may_be_meant: bool = False
    """True if the training may do this on purpose"""
    subject: Mapping[str, int | str] = field(default_factory=dict, hash=False)
    """subject of the finding: a ``rank``, ``bucket``, ``parameter``, ``module``, ``step`` or ``host``"""
    numbers: Mapping[str, int | float] = field(default_factory=dict, hash=False)
    """numbers in title and evidence; their names include their units, such as ``trailing_ns``"""
    measured: Measured | None = None
    """what `ddpprof try` measured for the change; ``None`` if it has not been tried"""
    change: Change | None = None
    """change that a tool can apply; ``None`` if only the script's author can make it, or the best value is unknown"""

    @property
    def has_advice(self) -> bool:
        """Whether it is shown with its advice: it is beyond noise, or worth trying."""
        return not self.is_noise or self.is_worth_trying

    @property
    def is_guess(self) -> bool:
        """Whether only a replay could tell the gain of the change, and there was none.

        `gain_ns` is then only an upper bound.
        """
        return self.predicted is None and self.rule in _REPLAYED

    @property
    def is_trusted(self) -> bool:
        """Whether it may be recommended first: it was measured to help, or its rule is not known to be often wrong."""
        return self.measured is not None or is_trusted(self.rule)

    @property
    def is_lossy(self) -> bool:
        """Whether its change rounds gradients, so that training gives other results."""
        return self.change is not None and self.change.is_lossy

    @property
    def gives_nothing(self) -> bool:
        """Whether its change was tried, and does not shorten the step, or changes the results of training."""
        return self.measured is not None and self.measured.outcome in _IN_VAIN

    @property
    def expected_ns(self) -> int | None:
        return self.gain_ns if self.predicted is None else self.predicted.gain_ns


def at_most(gain_ns: int | None, predicted: Predicted | None) -> int | None:
    """Return the upper end of the replay's prediction or, without a prediction, the measured bound."""
    return gain_ns if predicted is None else predicted.high_ns


def hoped_for(gain_ns: int | None, predicted: Predicted | None) -> tuple[int | None, Predicted | None]:
    """Return the maximum gain of a change, and its prediction; ``None`` for both if it is predicted to cost time."""
    if predicted is not None and predicted.gain_ns < 0:
        return None, None
    return at_most(gain_ns, predicted), predicted


def in_ms(ns: float) -> str:
    return f"{ns / 1e6:z.2f} ms"


def size(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:.1f} kB"


def only_known(**numbers: float | None) -> dict[str, int | float]:
    """Return the numbers that are known."""
    return {name: value for name, value in numbers.items() if value is not None}
