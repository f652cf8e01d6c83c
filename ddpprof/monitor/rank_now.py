"""What does one rank do at this moment, and how does it stand?

A rank's own time is its step without its waiting for other ranks, the median of its last steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ddpprof.model.pulse import Activity, Ended, PulseSteps, activity_word
from ddpprof.model.tables import UNKNOWN, Int64Column, rows_of
from ddpprof.model.whole_run import NonfiniteSteps
from ddpprof.monitor.pulse_files import PulseHead, is_gone, is_silent, last_sign_ns
from ddpprof.monitor.whole_run import nonfinite_steps

_LATE_SIGN_NS = 2 * 10**9
"""age of a sign, which comes every second, beyond which it is worth checking whether the process still exists"""


class Standing(StrEnum):
    """How a rank stands."""

    TRAINING = "training"
    WAITS = "waits"
    """it has been in its backward pass for longer than it computes there, and waits for the other ranks"""
    NO_SIGN = "no sign"
    """not even ddpprof's own thread runs: the process is stopped, or something holds the interpreter's lock"""
    GONE = "gone"
    """the process is dead and has noted no end"""
    ENDED = "ended"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    UNWATCHED = "unwatched"
    """ddpprof stopped noting, while training went on"""

    @property
    def is_over(self) -> bool:
        """Return whether the rank will report nothing more."""
        return self not in (Standing.TRAINING, Standing.WAITS, Standing.NO_SIGN)

    @property
    def is_trouble(self) -> bool:
        """Return whether the rank holds the others up, whatever they do."""
        return self in (Standing.NO_SIGN, Standing.GONE, Standing.FAILED)


_ENDS: Mapping[int, Standing] = {
    Ended.FINISHED: Standing.ENDED,
    Ended.FAILED: Standing.FAILED,
    Ended.INTERRUPTED: Standing.INTERRUPTED,
    Ended.UNWATCHED: Standing.UNWATCHED,
}


@dataclass(frozen=True, slots=True)
class RankNow:
    """One rank at this moment. Lengths are medians of its last steps; ages count until now."""

    rank: int
    host: str
    step: int
    activity: str
    activity_age_ns: int
    step_ns: int | None
    own_ns: int | None
    """``None`` if the waiting is unknown, as on accelerators"""
    data_ns: int | None
    wait_ns: int | None
    """``None`` if unknown, as on accelerators"""
    memory_bytes: int | None
    standing: Standing
    sign_age_ns: int
    num_passes: int
    stack: str | None
    nonfinite: NonfiniteSteps | None = None
    """its steps whose loss was NaN or infinite"""


def rank_now(rank: int, head: PulseHead, now_ns: int) -> RankNow:
    state, usual = head.state, _usual(head.steps)
    known = _with_waiting(usual)
    standing = _standing(head, usual, now_ns)
    until_ns = state.last_ns if standing.is_over else now_ns
    return RankNow(
        rank=rank,
        host=head.identity.host,
        step=state.step,
        activity=activity_word(state.activity) or "unknown",
        activity_age_ns=max(until_ns - state.since_ns, 0),
        step_ns=_median(usual.length_ns),
        own_ns=_median(known.own_ns),
        data_ns=_median(usual.data_ns),
        wait_ns=_median(known.wait_ns),
        memory_bytes=head.memory_bytes,
        standing=standing,
        sign_age_ns=max(now_ns - last_sign_ns(head.identity, state), 0),
        num_passes=state.num_passes,
        stack=head.stack,
        nonfinite=nonfinite_steps(state),
    )


def _usual(steps: PulseSteps) -> PulseSteps:
    """Return the steps in which nothing special happened, or all of them if there are none."""
    usual = rows_of(steps, steps.flags == 0)
    return usual if len(usual) else steps


def _with_waiting(steps: PulseSteps) -> PulseSteps:
    """Return the steps whose waiting is known, which with many gradients is not every one."""
    return rows_of(steps, steps.wait_ns != UNKNOWN)


def _median(values: Int64Column) -> int | None:
    return int(np.median(values)) if len(values) else None


def _standing(head: PulseHead, usual: PulseSteps, now_ns: int) -> Standing:
    if head.state.ended in _ENDS:
        return _ENDS[head.state.ended]
    if now_ns - last_sign_ns(head.identity, head.state) > _LATE_SIGN_NS and is_gone(head.identity):
        return Standing.GONE
    if is_silent(head.identity, head.state, now_ns):
        return Standing.NO_SIGN
    return Standing.WAITS if _waits(head, usual, now_ns) else Standing.TRAINING


def _waits(head: PulseHead, usual: PulseSteps, now_ns: int) -> bool:
    """Return whether the rank has been in its backward pass for longer than it usually computes in it."""
    known = _with_waiting(usual)
    if head.state.activity != Activity.BACKWARD or not len(known):
        return False
    return now_ns - head.state.since_ns > float(np.median(known.backward_ns - known.wait_ns))
