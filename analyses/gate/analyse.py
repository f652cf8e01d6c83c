"""How often is an equal job called slower, and a slower one not, where runs are noisy?

    one run of each    every pair of runs of the equal job: is the second called different?
    as asked           ``--fail-on 'step>5%'``: six runs of each, then as many as the comparison asks for, until it can
                       tell or asks for more than 600. Runs are drawn with replacement from those of one load
    recorded only      the same without replacement, as far as the recorded runs go
    would tell         runs of each whose interval would be narrow enough, by the spread of those recorded

python analyses/gate/analyse.py
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from math import ceil
from pathlib import Path
from statistics import NormalDist, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, publish

import ddpprof
from ddpprof import between_runs

LIMIT, SLOW_DOWN = 0.05, 0.05
MEASURES = ("step", "fastest step")
COMPARISONS = 500
"""number of comparisons of each kind"""

Side = Callable[[int], Sequence[float] | None]
"""The first so many runs of a job, or ``None`` where there are no more."""


def measure(recordings: Path) -> dict[str, Any]:
    made = json.loads((recordings / "runs.json").read_text(encoding="utf-8"))
    loads = list(dict.fromkeys(run["load"] for run in made["runs"]))
    return {
        "true_slow_down": [round(ratio - 1, 4) for ratio in made["true_ratios"]],
        "largest_factor": _largest_factor([run["step_us"] for run in made["runs"] if run["kind"] == "same"]),
        "loads": [_of_load(load, [run for run in made["runs"] if run["load"] == load]) for load in loads],
    }


def _largest_factor(runs: Sequence[Sequence[float]]) -> float:
    """Return by how much equal runs differ, under any load."""
    steps = [median(run) for run in runs]
    return round(max(steps) / min(steps), 2)


def _of_load(load: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    steps = {kind: [run["step_us"] for run in runs if run["kind"] == kind] for kind in ("same", "slower")}
    pairs = list(combinations(steps["same"], 2))
    return {
        "load": load,
        "runs": {kind: len(of_kind) for kind, of_kind in steps.items()},
        "pairs": len(pairs),
        "different_by_steps": sum(_differ_by_steps(one, other) for one, other in pairs),
        "different_by_runs": sum(_differ(median(one), median(other)) for one, other in pairs),
        **{
            name: _of_measure([usual(run) for run in steps["same"]], [usual(run) for run in steps["slower"]])
            for name, usual in (("step", median), ("fastest step", min))
        },
    }


def _of_measure(same: Sequence[float], slower: Sequence[float]) -> dict[str, Any]:
    slower_by_5 = [(1 + SLOW_DOWN) * step for step in same]
    draw = random.Random(0)
    return {
        "spread": round(_spread(same), 4),
        "slower_by": round(median(slower) / median(same) - 1, 4),
        "largest_factor": round(max(same) / min(same), 3),
        "would_tell": _would_tell(same),
        "equal": _judged([(_drawn(same, draw), _drawn(same, draw)) for _ in range(COMPARISONS)]),
        "by_5_percent": _judged([(_drawn(same, draw), _drawn(slower_by_5, draw)) for _ in range(COMPARISONS)]),
        "slower": _judged([(_drawn(same, draw), _drawn(slower, draw)) for _ in range(COMPARISONS)]),
        "equal_recorded_only": _judged([_halves(same, draw) for _ in range(COMPARISONS)]),
        "slower_recorded_only": _judged([(_shuffled(same, draw), _shuffled(slower, draw)) for _ in range(COMPARISONS)]),
    }


def _would_tell(runs: Sequence[float]) -> int:
    """Return 2 ((z(99.75 %) + z(95 %)) sd / 5 %)², with the standard deviation by the middle half, 1.35 sd wide."""
    normal = NormalDist()
    errors = normal.inv_cdf(1 - (1 - between_runs.CONFIDENCE) / 2) + normal.inv_cdf(0.95)
    return max(between_runs.fewest_runs(), ceil(2 * (errors * _spread(runs) / 1.35 / LIMIT) ** 2))


def _spread(values: Sequence[float]) -> float:
    """Return their middle half, as a part of their median."""
    ordered = sorted(values)
    return (ordered[3 * (len(ordered) - 1) // 4] - ordered[(len(ordered) - 1) // 4]) / median(ordered)


def _differ_by_steps(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return the earlier verdict, which knew only the noise within a run: 95 % intervals from steps."""
    shift = ddpprof.shift_between(one, other)
    return shift is not None and bool(shift.is_beyond_noise)


def _differ(one: float, other: float) -> bool:
    return bool(
        between_runs.difference_between([one], [other], between_runs.plausible_noise_ns([one, other])).is_beyond_noise
    )


def _drawn(runs: Sequence[float], draw: random.Random) -> Side:
    drawn = draw.choices(runs, k=between_runs.MOST_RUNS)
    return lambda number: drawn[:number] if number <= between_runs.MOST_RUNS else None


def _shuffled(runs: Sequence[float], draw: random.Random) -> Side:
    order = draw.sample(runs, len(runs))
    return lambda number: order[:number] if number <= len(order) else None


def _halves(runs: Sequence[float], draw: random.Random) -> tuple[Side, Side]:
    """Divide the runs between two sides, so that none is on both."""
    order, half = draw.sample(runs, len(runs)), len(runs) // 2
    return (
        lambda number: order[:number] if number <= half else None,
        lambda number: order[half : half + number] if number <= half else None,
    )


def _judged(comparisons: Sequence[tuple[Side, Side]]) -> dict[str, Any]:
    outcomes, numbers = zip(*(_judge(*sides) for sides in comparisons), strict=True)
    counts = Counter(outcomes)
    told = [number for outcome, number in zip(outcomes, numbers, strict=True) if outcome != "unknown"]
    return {
        **{outcome: counts[outcome] for outcome in ("passed", "failed", "unknown")},
        "runs_each": median(told) if told else None,
    }


def _judge(a: Side, b: Side) -> tuple[str, int]:
    number = between_runs.fewest_runs()
    while (runs_a := a(number)) is not None and (runs_b := b(number)) is not None:
        difference = between_runs.difference_between(runs_a, runs_b, noise_ns=0)
        limit = LIMIT * median(runs_a)
        exceeds = difference.may_exceed(limit)
        if exceeds is not None:
            return ("failed" if exceeds else "passed"), number
        number = between_runs.runs_needed(difference, number, limit)
    return "unknown", number


def table(results: dict[str, Any]) -> list[str]:
    columns = [(one, measure) for one in results["loads"] for measure in MEASURES]
    heads = [f"{one['load']}, {measure}" for one, measure in columns]
    rows = [f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(columns)}"]
    for label, text in _OF_LOADS:
        rows.append(f"| {label} | {' | '.join(text(one) if m == MEASURES[0] else '' for one, m in columns)} |")
    for label, text in _OF_MEASURES:
        rows.append(f"| {label} | {' | '.join(text(one[measure]) for one, measure in columns)} |")
    return rows


_Row = tuple[str, Callable[[dict[str, Any]], str]]

_OF_LOADS: tuple[_Row, ...] = (
    ("number of runs: unchanged code, slower code", lambda one: f"{one['runs']['same']}, {one['runs']['slower']}"),
    ("pairs of runs of unchanged code", lambda one: str(one["pairs"])),
    ("reported as different by the noise of their steps, as before", lambda one: _share(one, "different_by_steps")),
    ("reported as different now, with one run per side", lambda one: _share(one, "different_by_runs")),
)
_OF_MEASURES: tuple[_Row, ...] = (
    ("middle 50 % of the runs of unchanged code", lambda one: f"{one['spread']:.1%}"),
    ("slowest ÷ fastest run of unchanged code", lambda one: f"{one['largest_factor']:.2f}"),
    ("median of the slower runs, relative to unchanged code", lambda one: f"{one['slower_by']:+.1%}"),
    ("runs per side needed to detect 5 %", lambda one: str(one["would_tell"])),
    ("unchanged: passed · failed · cannot tell", lambda one: _outcomes(one["equal"])),
    ("+5.0 %: passed · failed · cannot tell", lambda one: _outcomes(one["by_5_percent"])),
    ("slower runs: passed · failed · cannot tell", lambda one: _outcomes(one["slower"])),
    ("unchanged, recorded runs only", lambda one: _outcomes(one["equal_recorded_only"])),
    ("slower, recorded runs only", lambda one: _outcomes(one["slower_recorded_only"])),
)


def _share(one: dict[str, Any], key: str) -> str:
    return f"{one[key] / one['pairs']:.1%}"


def _outcomes(judged: dict[str, Any]) -> str:
    shares = " · ".join(f"{judged[key] / COMPARISONS:.1%}" for key in ("passed", "failed", "unknown"))
    return shares if judged["runs_each"] is None else f"{shares}; {judged['runs_each']:g} runs each"


def draw(results: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    kinds = (("equal", "equal"), ("by_5_percent", "+5.0 %"), ("slower", "slower runs"))
    colours = {"passed": COLOURS[2], "failed": COLOURS[1], "unknown": "#bbbbbb"}
    labels = []
    bars = [(one, measure, kind) for one in results["loads"] for measure in MEASURES for kind in kinds]
    for place, (one, of_measure, (key, name)) in enumerate(bars):
        start = 0.0
        for outcome, colour in colours.items():
            share = one[of_measure][key][outcome] / COMPARISONS
            axes.barh(place, share, left=start, color=colour, label=outcome if place == 0 else None)
            start += share
        labels.append(f"{one['load']}, {of_measure}, {name}")
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("comparisons with as many runs as asked for, step>5%")
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.12))
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
