"""Is the job slower, or was it only a bad run? Each run is one observation: steps of one run do not predict the next
run.

    difference = median of all differences between runs of B and A   (Hodges and Lehmann; `statistics.shift`)
    interval   = the differences between which Mann and Whitney's U leaves 99.5 %, shared by questions asked together

The interval assumes no distribution, so neither a bad minute nor a small number of runs makes it too narrow. It is wide
enough to stay valid if it is computed again with more runs. It needs at least six runs on each side. With fewer, the
chance difference is unknown, and a limit is assumed: a factor of five in the step, and as many milliseconds in any part
of the step. This is more than the difference of any two equal runs in ``analyses/gate`` on a busy machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil

from ddpprof.statistics.shift import shift_between

CONFIDENCE = 0.995
PLAUSIBLE_FACTOR = 5.0
"""largest plausible factor between the steps of two runs of one job, whatever else the machine does"""
MOST_RUNS = 600
"""maximum number of runs on each side that a user is asked to record"""
_SPARE = 1.59
"""how much narrower than the difference the interval should be. An interval as wide as the difference detects it half
of the time; this factor, (2.81 + 1.645) / 2.81, raises that to 95 %
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """B minus A, ns per step."""

    shift_ns: float
    low_ns: float
    high_ns: float
    """upper end of the interval"""
    is_measured: bool
    """``False`` if there are too few runs to know how much runs differ; the interval then is the plausible range"""

    @property
    def is_beyond_noise(self) -> bool | None:
        """Whether the difference is beyond noise; ``None`` if there are too few runs to decide."""
        if self.low_ns > 0 or self.high_ns < 0:
            return True
        return False if self.is_measured else None

    def may_exceed(self, limit_ns: float) -> bool | None:
        """Return whether B takes longer than A by more than the limit; ``None`` if both answers are possible."""
        if self.high_ns <= limit_ns:
            return False
        return True if self.low_ns > 0 else None


def plausible_noise_ns(steps_ns: Sequence[float]) -> float:
    """Return by how much equal runs, or any part of their steps, may differ, ns. `steps_ns`: the step of every run."""
    return max(steps_ns) * (1 - 1 / PLAUSIBLE_FACTOR)


def difference_between(a_ns: Sequence[float], b_ns: Sequence[float], noise_ns: float, questions: int = 1) -> Difference:
    """Compare a measurement from each run of A and of B.

    `noise_ns`: assumed noise, used if the runs do not show how much they differ. `questions`: number of intervals that
    must hold together, including this one.
    """
    shift = shift_between(a_ns, b_ns, _confidence(questions))
    assert shift is not None
    if shift.low is not None and shift.high is not None:
        return Difference(shift.shift, shift.low, shift.high, is_measured=True)
    low_ns, high_ns = min(b_ns) - max(a_ns) - noise_ns, max(b_ns) - min(a_ns) + noise_ns
    return Difference(shift.shift, low_ns, high_ns, is_measured=False)


def runs_needed(difference: Difference, num_runs: int, limit_ns: float, questions: int = 1) -> int:
    """Return how many runs each side needs to distinguish a difference of `limit_ns` from no difference.

    `num_runs`: number of runs on the smaller side. A result above `MOST_RUNS` means that the runs are too noisy.
    """
    if not difference.is_measured:
        return max(fewest_runs(questions), num_runs + 1)
    half_ns = (difference.high_ns - difference.low_ns) / 2
    wanted = num_runs * (_SPARE * half_ns / limit_ns) ** 2 if limit_ns > 0 else float(MOST_RUNS + 1)
    return max(num_runs + 1, ceil(min(wanted, MOST_RUNS + 1)))


@cache
def fewest_runs(questions: int = 1) -> int:
    """Return the minimum number of runs per side for an interval."""
    number = 1
    while (shift := shift_between([0.0] * number, [0.0] * number, _confidence(questions))) and shift.low is None:
        number += 1
    return number


def _confidence(questions: int) -> float:
    """Return the confidence of each of several intervals that must hold together."""
    return 1 - (1 - CONFIDENCE) / questions
