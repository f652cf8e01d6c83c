"""``tried.json``: which changes of a run's findings `ddpprof try` has measured."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Outcome(StrEnum):
    """What a trial of one change showed."""

    CONFIRMED = "confirmed"
    """the step is shorter, by as much as was promised, or more"""
    SMALLER = "smaller than promised"
    NO_DIFFERENCE = "no difference"
    SLOWER = "slower"
    CANNOT_TELL = "cannot tell"
    """the trials differ by more than the gain; more of them may tell"""
    OTHER_RESULTS = "changes the losses"
    FAILED = "failed"


class Measured(Struct, frozen=True):
    """Measured gain of one change, ns per step; negative if it costs time."""

    gain_ns: int
    low_ns: int | None
    high_ns: int | None
    """ends of its 95 % interval; ``None`` with fewer than three rounds"""
    outcome: Outcome
    num_rounds: int


class TriedChange(Struct, frozen=True):
    """One change of a run's finding, and what it gave."""

    rule: str
    code: str
    """as the finding writes the change"""
    measured: Measured
