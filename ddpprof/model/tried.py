"""``tried.json``: the changes from a run's findings that `ddpprof try` has measured."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Outcome(StrEnum):
    """The result of trying one change."""

    CONFIRMED = "confirmed"
    """the step is shorter by at least as much as promised"""
    SMALLER = "smaller than promised"
    NO_DIFFERENCE = "no difference"
    SLOWER = "slower"
    CANNOT_TELL = "cannot tell"
    """the trials differ by more than the gain; more trials may decide"""
    OTHER_RESULTS = "changes the losses"
    FAILED = "failed"


class Measured(Struct, frozen=True):
    """Measured gain of one change, ns per step; negative if it costs time."""

    gain_ns: int
    low_ns: int | None
    high_ns: int | None
    """upper end of its 95 % interval; ``None`` with fewer than three rounds"""
    outcome: Outcome
    num_rounds: int


class TriedChange(Struct, frozen=True):
    """One change from a run's finding, and its measured gain."""

    rule: str
    code: str
    """the change, as written in the finding"""
    measured: Measured
