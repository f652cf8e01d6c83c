"""Is the job slower, or was it only a bad run? Every run is one observation: steps of one run say nothing of the next.

    difference = median of all differences between runs of B and runs of A      (Hodges and Lehmann; `measures.shift`)
    interval   = the differences between which Mann and Whitney's U leaves 99.5 %, shared by what is asked together

The interval assumes no distribution, so neither a bad minute nor a small number of runs makes it too narrow; and it is
wide enough to be looked at again when more runs are there. Six runs on each side are the fewest that have one. Of
fewer it is not known how much they differ by chance, only assumed: by a factor of five of the step at most, which is
more than any two equal runs in ``analyses/gate``, on a busy machine, differed by; and by as many milliseconds in any
part of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil

from ddpprof.measures.statistics.shift import shift_between

CONFIDENCE = 0.995
PLAUSIBLE_FACTOR = 5.0
"""by which the steps of two runs of one job differ at most, whatever the machine does beside them"""
MOST_RUNS = 400
"""on each side, that anybody is asked for"""
_SPARE = 1.59
"""An interval as wide as what is to be told apart decides half of the time; one narrower by this factor nearly always:
beside its 2.81 standard errors there is room for 1.645 more, which 95 % of estimates stay within."""


@dataclass(frozen=True, slots=True)
class Difference:
    """B less A, ns per step."""

    shift_ns: float
    low_ns: float
    high_ns: float
    """ends of the interval"""
    is_measured: bool
    """``False``: there are too few runs to know how much runs differ, and the ends are what is plausible"""

    @property
    def is_beyond_noise(self) -> bool | None:
        """``None``: nobody can tell from so few runs."""
        if self.low_ns > 0 or self.high_ns < 0:
            return True
        return False if self.is_measured else None

    def may_exceed(self, limit_ns: float) -> bool | None:
        """Whether B takes longer, by the limit perhaps. ``None``: neither equal runs nor such a growth is excluded."""
        if self.high_ns <= limit_ns:
            return False
        return True if self.low_ns > 0 else None


def plausible_noise_ns(steps_ns: Sequence[float]) -> float:
    """Return by how much equal runs, or any part of their steps, may differ. `steps_ns`: the step of every run."""
    return max(steps_ns) * (1 - 1 / PLAUSIBLE_FACTOR)


def difference_between(a_ns: Sequence[float], b_ns: Sequence[float], noise_ns: float, questions: int = 1) -> Difference:
    """`a_ns`, `b_ns`: what was measured in each run. `noise_ns`: assumed where they do not show how much runs differ.

    `questions`: how many intervals are to hold together, this one included.
    """
    shift = shift_between(a_ns, b_ns, _confidence(questions))
    assert shift is not None
    if shift.low is not None and shift.high is not None:
        return Difference(shift.shift, shift.low, shift.high, is_measured=True)
    low_ns, high_ns = min(b_ns) - max(a_ns) - noise_ns, max(b_ns) - min(a_ns) + noise_ns
    return Difference(shift.shift, low_ns, high_ns, is_measured=False)


def runs_needed(difference: Difference, num_runs: int, limit_ns: float, questions: int = 1) -> int:
    """Return how many runs each side should have to tell no difference from one of `limit_ns`.

    `num_runs`: of the side that has fewer. More than `MOST_RUNS`: the runs are too noisy to be worth it.
    """
    if not difference.is_measured:
        return max(fewest_runs(questions), num_runs + 1)
    half_ns = (difference.high_ns - difference.low_ns) / 2
    wanted = num_runs * (_SPARE * half_ns / limit_ns) ** 2 if limit_ns > 0 else float(MOST_RUNS + 1)
    return max(num_runs + 1, ceil(min(wanted, MOST_RUNS + 1)))


@cache
def fewest_runs(questions: int = 1) -> int:
    """Return how many runs each side must have for an interval."""
    number = 1
    while (shift := shift_between([0.0] * number, [0.0] * number, _confidence(questions))) and shift.low is None:
        number += 1
    return number


def _confidence(questions: int) -> float:
    """Return the confidence of each of several intervals that are to hold together."""
    return 1 - (1 - CONFIDENCE) / questions
