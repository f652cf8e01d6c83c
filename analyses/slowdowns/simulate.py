"""Simulate jobs whose steps stay as long as they are, and jobs that become slower, for the detector of slowdowns.

python analyses/slowdowns/simulate.py          writes recordings/simulation.json, in a few minutes
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import RECORDINGS

from ddpprof.monitor.level_shifts import LevelShift, LevelShifts

HERE = Path(__file__).resolve().parent
STEP_NS = 60e6
FED = 1000
"""steps at once"""
JOB, NUM_JOBS = 20_000, 8
"""steps of a steady job, and jobs of each kind of noise"""
SIZES = (0.10, 0.12, 0.15, 0.20, 0.30, 0.50)
NORMAL, SLOW, PLANTS, PLANTED_JOBS = 300, 120, 20, 2
WITHIN = 30


def lognormal(draw: np.random.Generator, n: int) -> Any:
    """Return steps that differ by 2 %, one independent of the other."""
    return draw.normal(0, 0.02, n)


def noisy(draw: np.random.Generator, n: int) -> Any:
    return draw.normal(0, 0.05, n)


def heavy_tails(draw: np.random.Generator, n: int) -> Any:
    """Return differences with Student's distribution, three degrees of freedom."""
    return 0.02 * draw.standard_t(3, n)


def remembering(draw: np.random.Generator, n: int) -> Any:
    """Return steps of which each keeps 0.9 of what the one before differed by: 1.5 %, and 2 % of its own."""
    return _remembered(draw, n, 0.9, 0.015) + draw.normal(0, 0.02, n)


def alternating(draw: np.random.Generator, n: int) -> Any:
    """Return steps of which every second one is 20 % longer."""
    return np.where(np.arange(n) % 2, 0.18, 0.0) + draw.normal(0, 0.02, n)


def spikes(draw: np.random.Generator, n: int) -> Any:
    """Return steps of which 3 % take up to five times as long."""
    return draw.normal(0, 0.02, n) + np.where(draw.random(n) < 0.03, draw.uniform(0, 1.6, n), 0.0)


def bursts(draw: np.random.Generator, n: int) -> Any:
    """Return steps of which every 200 or so, three to ten in a row are 30 % longer."""
    values = draw.normal(0, 0.02, n)
    begin = 100
    while begin < n:
        values[begin : begin + draw.integers(3, 11)] += 0.26
        begin += 20 + int(draw.exponential(180))
    return values


def drifting(draw: np.random.Generator, n: int) -> Any:
    """Return steps that become 4 % longer and shorter again, over 10,000 steps."""
    return 0.04 * np.sin(2 * np.pi * np.arange(n) / 10_000) + draw.normal(0, 0.02, n)


def restless(draw: np.random.Generator, n: int) -> Any:
    """Return steps as of ranks that share few cores: each differs by 30 %, and 30 to 150 in a row by 25 %."""
    values, begin = draw.normal(0, 0.3, n), 0
    while begin < n:
        end = begin + int(draw.integers(30, 151))
        values[begin:end] += draw.normal(0, 0.25)
        begin = end
    return values


def _remembered(draw: np.random.Generator, n: int, share: float, deviation: float) -> Any:
    own = draw.normal(0, deviation * np.sqrt(1 - share**2), n)
    values = np.empty(n)
    last = 0.0
    for index in range(n):
        last = values[index] = share * last + own[index]
    return values


NOISES: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "independent, 2 %": lognormal,
    "independent, 5 %": noisy,
    "heavy tails": heavy_tails,
    "remembering": remembering,
    "every second step 20 % longer": alternating,
    "spikes": spikes,
    "bursts of up to 10 steps": bursts,
    "drift": drifting,
    "restless": restless,
}
TOO_NOISY = ("restless",)
"""kinds of noise in which nobody would see the slowdowns that are planted"""


def found_in(logs: Any, flagged: Any = None, fed: int = FED) -> list[tuple[int, LevelShift]]:
    """Return the slowdowns that are found in a job, and after how many steps each was."""
    detector, found = LevelShifts(), list[int]()
    lengths = np.round(STEP_NS * np.exp(logs)).astype(np.int64)
    usual = np.ones(len(logs), bool) if flagged is None else ~flagged
    for begin in range(0, len(logs), fed):
        part = slice(begin, begin + fed)
        detector.feed(np.arange(begin, begin + len(lengths[part])), lengths[part], usual[part])
        found += [min(begin + fed, len(logs))] * (len(detector.shifts) - len(found))
    return list(zip(found, detector.shifts, strict=True))


def steady(noise: str, seed: int) -> list[bool]:
    """Return of each false alarm in a steady job whether it stayed. The job saves and evaluates in every 250th step."""
    draw = np.random.default_rng(seed)
    logs = NOISES[noise](draw, JOB)
    flagged = np.arange(JOB) % 250 == 249
    logs[flagged] += 1.5
    return [shift.was_slow for _, shift in found_in(logs, flagged)]


def planted(noise: str, size: float, seed: int) -> list[tuple[int | None, float | None, bool]]:
    """Return of each plant: steps until it was found, error of its size in percentage points, and whether it ended."""
    draw = np.random.default_rng(seed)
    period = NORMAL + SLOW
    logs = NOISES[noise](draw, PLANTS * period + NORMAL)
    begins = [NORMAL + number * period for number in range(PLANTS)]
    for begin in begins:
        logs[begin : begin + SLOW] += np.log1p(size)
    found = found_in(logs, fed=1)
    told: list[tuple[int | None, float | None, bool]] = []
    for begin in begins:
        mine = [(at, one) for at, one in found if begin - 15 <= one.first_step < begin + SLOW]
        if not mine:
            told.append((None, None, False))
            continue
        at, one = mine[0]
        ended = one.last_step is not None and abs(one.last_step - (begin + SLOW)) <= WITHIN
        told.append((at - begin, abs(100 * (one.after_ns / one.before_ns - 1 - size)), ended))
    return told


def main() -> None:
    results: dict[str, Any] = {"steps_per_job": JOB, "false_alarms": {}, "plants": {}}
    for noise in NOISES:
        began = time.monotonic()
        stayed = [one for seed in range(NUM_JOBS) for one in steady(noise, seed)]
        results["false_alarms"][noise] = {
            "steps": JOB * NUM_JOBS,
            "alarms": sum(stayed),
            "withdrawn": len(stayed) - sum(stayed),
        }
        results["plants"][noise] = []
        for size in () if noise in TOO_NOISY else SIZES:
            told = [one for seed in range(PLANTED_JOBS) for one in planted(noise, size, 1000 + seed)]
            errors = sorted(error for _, error, _ in told if error is not None)
            results["plants"][noise].append(
                {
                    "size": size,
                    "plants": len(told),
                    "found_in_time": sum(after is not None and after <= WITHIN for after, _, _ in told),
                    "within_3_points": sum(error <= 3 for error in errors),
                    "ended": sum(ended for _, _, ended in told),
                }
            )
        print(noise, results["false_alarms"][noise], f"{time.monotonic() - began:.0f} s", flush=True)
        for row in results["plants"][noise]:
            print("  ", row, flush=True)
    (HERE / RECORDINGS).mkdir(exist_ok=True)
    (HERE / RECORDINGS / "simulation.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
