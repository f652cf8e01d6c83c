"""The output of a rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from ddpprof.engine.change import Change
from ddpprof.engine.numbers import Number, Part
from ddpprof.engine.predictions import Predicted
from ddpprof.engine.track_record import is_trusted
from ddpprof.model.tried import Measured, Outcome

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
