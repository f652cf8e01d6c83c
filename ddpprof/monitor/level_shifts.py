"""Detect, while the job runs, the step at which step times begin to increase, and by how much.

    value       log of the step time, mean of two consecutive steps, because in some jobs every second step is longer
    level       median of the last 512 values of normal steps, or of the last 192 if that median is smaller
    window      mean of the middle half of the last 32 values
    slowdown   window - level > threshold = max(log 1.05, 5 × noise of windows), but at most log 2

The noise of windows is learned from the last 1024 values, with each slowdown's own increase subtracted, so that it
includes the correlation between neighboring values. Values are measured relative to the median of the 512 values around
them, because a job that became permanently faster is not noisier than before. Windows with two levels more than 10 %
apart are ignored, because they probably contain a slowdown too short to be detected. A slowdown is withdrawn if its own
step times turn out to vary by as much as they increased. A slowdown among the first 512 values is also withdrawn if
later step times vary by that much. Steps that are longer for a known reason (`StepFlag`) are left out.

The medians of each of the last three groups of 9 values must also exceed the level by half the threshold and by 4 %, so
that a short burst is not reported. The first step of a slowdown is where the cumulative sum of deviations from the mean
of both levels is smallest (CUSUM). A slowdown ends when the step time is less than 3 % above normal. If the step time
changes again during a slowdown, that slowdown ends and a new one begins.

With `OF_MEANS`, each value is the mean of eight steps. Instead of the noise of windows, the growth must exceed that of
the largest 5 % of the normal values, because a window of 96 steps is long enough to average most noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, inf, log, sqrt

import numpy as np
import numpy.typing as npt

from ddpprof.model.tables import Int64Column

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_OF_NORMAL = 1.4826
"""ratio of standard deviation to median absolute deviation in a normal distribution"""
_OF_MEDIAN = 1.2533
"""ratio of the standard error of a median to the standard error of a mean"""
_THREE_OF_FOUR = 1.1503
"""three quarters of normally distributed values are within this many standard deviations of the mean"""
_FOLLOWED = 1.1
"""correction factor: subtracting the median of the values around a window removes part of the variation between
windows
"""


def noise_of_windows(values: Floats, window: int, around: int, share_steps: bool, two_levels: float) -> float:
    """Return the standard deviation of window means while the level is steady.

    This is the observed standard deviation or, if larger, the standard deviation expected from the spread of single
    values. Each value is taken relative to the median of its `around` neighbors, so that a lasting change does not
    count as noise. Windows with halves that differ by `two_levels` or more are left out. `share_steps`: whether two
    consecutive values have a step in common.
    """
    values = values - _levels_around(values, around, window)
    alone = _OF_NORMAL * _OF_MEDIAN * _median_deviation(values) / sqrt(window / 2 if share_steps else window)
    few = 1 + window / len(values)
    seen = 0.0
    if len(values) >= window:
        windows = np.lib.stride_tricks.sliding_window_view(values, window)[:: max(1, window // 4)]
        half = window // 2
        apart = np.abs(np.median(windows[:, :half], axis=1) - np.median(windows[:, half:], axis=1))
        seen = _FOLLOWED * _spread(middle_half(windows[apart < two_levels]))
    return max(alone, seen) * few


def _excess(values: Floats, around: int, every: int) -> float:
    """Return how far the largest values lie above the median of the `around` values near them."""
    return float(np.quantile(values - _levels_around(values, around, every), 1 - _RARE))


def _levels_around(values: Floats, width: int, every: int) -> Floats:
    """Return the median of the `width` values around each value, computed once per `every` values."""
    half = width // 2
    medians = [np.median(values[max(0, at - half) : at + half]) for at in range(0, len(values), every)]
    return np.repeat(medians, every)[: len(values)]


def _spread(middles: Floats) -> float:
    if not len(middles):
        return 0.0
    deviations = np.abs(middles - np.median(middles))
    return max(_OF_NORMAL * float(np.median(deviations)), float(np.quantile(deviations, 0.75)) / _THREE_OF_FOUR)


def _median_deviation(values: Floats) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def middle_half(windows: Floats) -> Floats:
    """Return the mean of the middle half of each row."""
    width = windows.shape[1]
    means: Floats = np.sort(windows, axis=1)[:, width // 4 : width - width // 4].mean(axis=1)
    return means


def _without_outer_tenths(values: Floats) -> float:
    """Return the mean of the values without the smallest and the largest tenth."""
    outer = len(values) // 10
    return float(np.sort(values)[outer : len(values) - outer].mean())


def change_point(values: Floats, old: float, new: float) -> int:
    """Return the index of the first value at the new level."""
    half = abs(new - old) / 2
    towards_new = np.clip((values - (old + new) / 2) * np.sign(new - old), -half, half)
    sums = np.concatenate(([0.0], np.cumsum(towards_new)))
    return min(int(np.argmin(sums)), len(values) - 1)


LEAST_GROWTH = 0.05
"""the step time must grow by at least this fraction to count as a slowdown"""
LEAST_SHIFT = log(1 + LEAST_GROWTH)
LASTING = log(1.04)
"""log of the factor by which the step time must grow in each of the last `_PARTS` parts of a window to count as a
slowdown
"""
OVER = log(1.03)
"""log of a factor; a slowdown has ended if step times are below the normal step time multiplied by this factor"""
TWO_LEVELS = log(1.10)
"""log of a factor; during a slowdown, a change of the step time by this factor begins another slowdown"""
MOST_SHIFT = log(2)
"""log of a factor; growth by this factor always counts as a slowdown, even if the step times before it were
very noisy
"""
NOISES = 5.0
_RARE = 0.05
"""means of steps are expected to exceed the normal level by as much as this fraction of the normal values does"""
_PARTS = 3


@dataclass(frozen=True, slots=True)
class LevelShift:
    """A period in which steps took longer than normal."""

    first_step: int
    last_step: int | None
    """number of the last slow step; ``None`` if the slowdown has not ended"""
    before_ns: int
    """normal step time, in ns"""
    after_ns: int
    num_steps: int
    """number of steps in the slowdown; `after_ns` is the median or mean of their step times"""
    is_noise: bool = False
    """True if later steps showed that step times normally vary by this much, and that this is not a slowdown"""

    @property
    def lost_ns(self) -> int:
        """Total additional time of all steps in the period, in ns; 0 if the slowdown was withdrawn."""
        return (self.after_ns - self.before_ns) * self.num_steps if self.was_slow else 0

    @property
    def was_slow(self) -> bool:
        """Whether the period has not ended, or the median of all its steps shows that it was a slowdown."""
        if self.is_noise:
            return False
        return self.last_step is None or self.after_ns >= (1 + LEAST_GROWTH) * self.before_ns

    def holds(self, number: Int64Column) -> Flags:
        """Return a mask over steps: True for steps that belong to the period. `number`: the step numbers."""
        begun: Flags = number >= self.first_step
        return begun if self.last_step is None else begun & (number <= self.last_step)


@dataclass(frozen=True, slots=True)
class Windows:
    """Window sizes, counted in values."""

    window: int = 32
    part: int = 9
    """number of values in each of the last `_PARTS` parts of a window; in a slowdown, every part must be above the
    normal level
    """
    least_normal: int = 48
    """slowdowns are detected once there are at least this many normal values"""
    most_normal: int = 512
    """the normal step time is computed from at most this many of the most recent normal values"""
    most_noise: int = 1024
    """the noise is computed from at most this many of the most recent values"""
    recent: int = 192
    """the step time just before a slowdown is computed from this many of the most recent normal values. If these values
    are below the normal level, for example after a busy period, the normal level is lowered, too
    """
    refresh: int = 32
    """the normal level and the noise are computed again each time that this many values have been added"""
    most_slow: int = 2048
    """the step time in a slowdown is computed from at most this many of its most recent values"""
    averages_pairs: bool = True
    steps_per_value: int = 1
    """each value is computed from the mean of this many steps"""


OF_STEPS = Windows()
OF_MEANS = Windows(
    window=12,
    part=4,
    least_normal=12,
    most_normal=128,
    most_noise=256,
    recent=48,
    refresh=4,
    most_slow=512,
    averages_pairs=False,
    steps_per_value=8,
)
"""window sizes if each value is the mean of eight steps, to find slowdowns in which only some steps are longer"""
OF_SUMMARIES = Windows(
    window=4,
    part=1,
    least_normal=8,
    most_normal=64,
    most_noise=128,
    recent=16,
    refresh=1,
    averages_pairs=False,
)
"""window sizes if each value is the median of many steps"""


class LevelShifts:
    """Detector of slowdowns. Pass each step to `feed` once, in order."""

    def __init__(self, windows: Windows = OF_STEPS) -> None:
        self.shifts: list[LevelShift] = []
        """slowdowns in the order of their steps; all except possibly the last one have ended"""
        self._counts = windows
        self._normal = _Values()
        self._steady: Floats = _NOTHING
        """values from which the noise is computed: normal values, and values in slowdowns after subtracting the
        growth
        """
        self._pending = _Values()
        """values since the last change of level; those before the last window are known to be at the current level"""
        self._rest = _Values()
        """lengths of steps that are too few for a value"""
        self._last_log: float | None = None
        self._level: float | None = None
        self._noise, self._knows_noise = 0.0, False
        self._slow: _Slow | None = None
        self._since_refresh = 0

    def normal_before(self, shift: LevelShift, number: Int64Column) -> Flags:
        """Return a mask of the steps before a slowdown that belong to no earlier slowdown. `number`: step numbers."""
        normal: Flags = number < shift.first_step
        for other in self.shifts:
            normal &= ~other.holds(number)
        return normal

    def feed(self, number: Int64Column, length_ns: Int64Column, is_usual: Flags) -> None:
        """Process more steps. `is_usual`: for each step, whether there is no known reason why it may be longer."""
        usual = is_usual & (length_ns > 0)
        numbers, values = self._means(number[usual], length_ns[usual].astype(np.float64))
        if not len(values):
            return
        values = np.log(values)
        if self._counts.averages_pairs:
            last = values[0] if self._last_log is None else self._last_log
            self._last_log = float(values[-1])
            values = (values + np.concatenate(([last], values[:-1]))) / 2
        while len(values):
            count = min(len(values), self._counts.refresh - self._since_refresh)
            self._take(numbers[:count], values[:count])
            numbers, values = numbers[count:], values[count:]

    def _means(self, numbers: Int64Column, lengths: Floats) -> tuple[Int64Column, Floats]:
        """Return the mean length of each group of steps that is complete, and the number of its first step."""
        each = self._counts.steps_per_value
        self._rest.extend(numbers, lengths)
        numbers, lengths = self._rest.take_first(len(self._rest) // each * each)
        return numbers[::each], lengths.reshape(-1, each).mean(axis=1)

    def _take(self, numbers: Int64Column, values: Floats) -> None:
        """Process values, at most up to the next time at which level and noise are computed again."""
        num_before = len(self._pending)
        self._pending.extend(numbers, values)
        self._since_refresh += len(values)
        at = self._first_change(num_before)
        while at is not None:
            self._change(at)
            at = self._first_change(0)
        if self._since_refresh >= self._counts.refresh:
            self._since_refresh = 0
            self._refresh()

    def _first_change(self, begin: int) -> int | None:
        """Return the smallest number of pending values, above `begin`, after which a change is detected."""
        window = self._counts.window
        first = max(begin + 1, window)
        if self._level is None or first > len(self._pending):
            return None
        windows = np.lib.stride_tricks.sliding_window_view(self._pending.values[first - window :], window)
        if self._slow is None:
            changed = self._is_above(windows, self._level, self._threshold)
        else:
            lasts = np.median(windows[:, -(window // 2) :], axis=1)
            changed = np.maximum(middle_half(windows), lasts) < self._slow.base + OVER
            if len(self._slow.values) >= self._counts.least_normal:
                level, threshold = self._slow.level(_NOTHING), max(TWO_LEVELS, self._threshold)
                changed |= self._is_above(windows, level, threshold) | self._is_above(-windows, -level, threshold)
        return first + int(np.argmax(changed)) if changed.any() else None

    @property
    def _threshold(self) -> float:
        return min(max(LEAST_SHIFT, NOISES * self._noise), MOST_SHIFT)

    def _is_above(self, windows: Floats, level: float, threshold: float) -> Flags:
        """Return, for each window, whether it exceeds the level by the threshold for longer than a short burst."""
        part = self._counts.part
        ends = [windows.shape[1] - number * part for number in range(_PARTS)]
        parts = [np.median(windows[:, end - part : end], axis=1) for end in ends]
        above: Flags = (middle_half(windows) > level + threshold) & (
            np.min(parts, axis=0) > level + max(LASTING, threshold / 2)
        )
        return above

    def _change(self, at: int) -> None:
        """Process a change that is detected after the first `at` pending values."""
        new = float(np.median(self._pending.values[at - self._counts.window // 2 : at]))
        begin = max(1, change_point(self._pending.values[:at], self._level_before(at), new))
        step = int(self._pending.numbers[begin])
        known = self._pending.take_first(begin)
        if self._slow is None:
            self._take_as_normal(*known)
            base = self._normal.median_of_last(self._counts.recent)
        else:
            base = self._slow.base
            self._slow.values.extend(*known, most=self._counts.most_slow)
            self.shifts[-1] = self._slow.shift(_NOTHING, step - 1)
            self._steady = self._with(self._slow.without_growth)
            self._learn()
        if self._slow is not None and new < base + OVER:
            self._slow = None
        else:
            self._slow = _Slow(step, base, _Values(), self._counts.steps_per_value)
            self.shifts.append(self._slow.shift(self._pending.values, None))

    def _level_before(self, at: int) -> float:
        """Return the level before the change that is detected after the first `at` pending values."""
        assert self._level is not None
        if self._slow is None:
            return self._level
        return self._slow.level(self._pending.values[: at - self._counts.window // 2])

    def _refresh(self) -> None:
        """Accept the values before the last window as final, and compute level and noise again."""
        counts = self._counts
        known = self._pending.take_first(max(0, len(self._pending) - counts.window))
        if self._slow is not None:
            self._slow.values.extend(*known, most=counts.most_slow)
            self.shifts[-1] = self._slow.shift(self._pending.values, None)
            self._judge_again(self._slow)
            return
        self._take_as_normal(*known)
        self._learn()

    def _take_as_normal(self, numbers: Int64Column, values: Floats) -> None:
        self._normal.extend(numbers, values, most=self._counts.most_normal)
        self._steady = self._with(values)

    def _with(self, values: Floats) -> Floats:
        """Return the most recent steady values, followed by `values`."""
        steady: Floats = np.concatenate((self._steady, values))[-self._counts.most_noise :]
        return steady

    def _learn(self) -> None:
        """Compute the level from the normal values, and the noise from the steady values."""
        counts = self._counts
        if len(self._normal) < counts.least_normal:
            return
        self._level = min(self._normal.median_of_last(counts.most_normal), self._normal.median_of_last(counts.recent))
        self._noise = self._noise_of(self._steady)
        if not self._knows_noise and len(self._steady) >= counts.most_normal:
            self._knows_noise = True
            self._withdraw(0, exp(self._threshold))

    def _noise_of(self, values: Floats) -> float:
        if self._counts.steps_per_value > 1:
            return _excess(values, self._counts.most_normal, self._counts.window) / NOISES
        return noise_of_windows(
            values, self._counts.window, self._counts.most_normal, self._counts.averages_pairs, TWO_LEVELS
        )

    def _judge_again(self, slow: _Slow) -> None:
        """Withdraw a short slowdown if its own step times vary by as much as they increased."""
        if not 0 < len(slow.values) <= self._counts.most_normal:
            return
        self._noise = self._noise_of(self._with(slow.without_growth))
        if slow.level(_NOTHING) - slow.base < self._threshold:
            self.shifts[-1] = slow.shift(_NOTHING, int(slow.values.numbers[-1]))
            self._withdraw(len(self.shifts) - 1)
            self._take_as_normal(slow.values.numbers, slow.values.values)
            self._slow = None
            self._learn()

    def _withdraw(self, first: int, least_growth: float = inf) -> None:
        """Withdraw slowdowns from index `first` on if their step time grew by less than the factor `least_growth`."""
        for number, shift in enumerate(self.shifts[first:], first):
            if shift.after_ns < least_growth * shift.before_ns:
                self.shifts[number] = replace(shift, is_noise=True)


_NOTHING: Floats = np.empty(0)


class _Values:
    """Values together with the numbers of their steps."""

    def __init__(self) -> None:
        self.numbers: Int64Column = np.empty(0, np.int64)
        self.values: Floats = _NOTHING

    def __len__(self) -> int:
        return len(self.values)

    def extend(self, numbers: Int64Column, values: Floats, most: int | None = None) -> None:
        """Add values, and keep only the last `most` values."""
        first = 0 if most is None else max(0, len(self) + len(values) - most)
        self.numbers = np.concatenate((self.numbers, numbers))[first:]
        self.values = np.concatenate((self.values, values))[first:]

    def take_first(self, count: int) -> tuple[Int64Column, Floats]:
        """Remove the first values and return them with their step numbers."""
        taken = self.numbers[:count], self.values[:count]
        self.numbers, self.values = self.numbers[count:], self.values[count:]
        return taken

    def median_of_last(self, count: int) -> float:
        return float(np.median(self.values[-count:]))


@dataclass(frozen=True, slots=True)
class _Slow:
    """A slowdown that has not ended."""

    first_step: int
    base: float
    """log of the normal step time before the slowdown"""
    values: _Values
    """values of the slowdown, without the pending values"""
    steps_per_value: int = 1

    def level(self, pending: Floats) -> float:
        """Return the median of the slowdown's values or, if they are means, their mean without the outer tenths.

        The first value is ignored, because it includes the step before.
        """
        values = np.concatenate((self.values.values, pending))
        values = values[1:] if len(values) > 1 else values
        return float(np.median(values)) if self.steps_per_value == 1 else _without_outer_tenths(values)

    @property
    def without_growth(self) -> Floats:
        """Values of the slowdown, minus the increase in step time."""
        values = self.values.values
        return values - (self.level(_NOTHING) - self.base) if len(values) else values

    def shift(self, pending: Floats, last_step: int | None) -> LevelShift:
        return LevelShift(
            first_step=self.first_step,
            last_step=last_step,
            before_ns=round(exp(self.base)),
            after_ns=round(exp(self.level(pending))),
            num_steps=(len(self.values) + len(pending)) * self.steps_per_value,
        )
