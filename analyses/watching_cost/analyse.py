"""What does watching cost per step, in processor time and in length?

    cost = median over pairs of blocks of (mean step with watching - mean step without)
    own code = mean over other steps of the time counted around the code that handles the events of a step
               - the same around code that does nothing

A mean leaves out the longest twentieth of the steps, in which other things happened to the process.

python analyses/watching_cost/analyse.py
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, interval_of_mean, interval_of_median, publish

if TYPE_CHECKING:
    from matplotlib.figure import Figure

JOBS = ("2-buckets", "16-buckets", "40-ms")


def measure(recordings: Path) -> dict[str, Any]:
    return {"jobs": [_of_job(name, json.loads((recordings / f"{name}.json").read_text())) for name in JOBS]}


def _of_job(name: str, recorded: dict[str, Any]) -> dict[str, Any]:
    blocks = recorded["blocks"]
    pairs = [sorted(blocks[number : number + 2], key=lambda one: one["watched"]) for number in range(0, len(blocks), 2)]
    cpu_us = [(_mean(on["cpu_ns"]) - _mean(off["cpu_ns"])) / 1e3 for off, on in pairs]
    keeper_ms = [1e3 * on["keeper_ns"] / on["block_ns"] for _, on in pairs]
    ratios = [_mean(on["wall_ns"]) / _mean(off["wall_ns"]) for off, on in pairs]
    low, high = interval_of_median(ratios)
    return {
        "job": name,
        "buckets": recorded["buckets"],
        "pairs": len(pairs),
        "steps": sum(len(block["wall_ns"]) for block in blocks),
        "step_ms": round(median(_mean(off["wall_ns"]) for off, _ in pairs) / 1e6, 2),
        "own_code_us": round(_of_steps(recorded["counted"]) - _of_steps(recorded["counting"]), 1),
        "counting_us": round(_of_steps(recorded["counting"]), 1),
        "events_us": _of_events(recorded["counted"], recorded["counting"]),
        "cpu_us": round(median(cpu_us), 1),
        "cpu_us_interval": [round(value, 1) for value in interval_of_median(cpu_us)],
        "keeper_ms_per_s": round(median(keeper_ms), 2),
        "ratio": round(median(ratios), 4),
        "ratio_interval": [round(low, 4), round(high, 4)],
        "mean_ratio": round(fmean(ratios), 4),
        "mean_ratio_interval": [round(value, 4) for value in interval_of_mean(ratios)],
    }


def _of_steps(events: dict[str, list[int]]) -> float:
    """Return the mean time of a step in µs."""
    return _mean([sum(step) for step in zip(*events.values(), strict=True)]) / 1e3


def _of_events(counted: dict[str, list[int]], counting: dict[str, list[int]]) -> dict[str, float]:
    return {name: round((_mean(times) - _mean(counting.get(name, [0]))) / 1e3, 1) for name, times in counted.items()}


def _mean(values: Sequence[int]) -> float:
    kept = sorted(values)[: math.ceil(0.95 * len(values))]
    return sum(kept) / len(kept)


def table(results: dict[str, Any]) -> list[str]:
    lines = [
        "| job | buckets | steps | step, ms | own code, µs | training thread, µs | own thread, ms/s | with ÷ without |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["jobs"]:
        cpu, ratio, keeper = row["cpu_us_interval"], row["ratio_interval"], row["keeper_ms_per_s"]
        lines.append(
            f"| {row['job']} | {row['buckets']} | {row['steps']} | {row['step_ms']} | {row['own_code_us']} | "
            f"{row['cpu_us']} ({cpu[0]} – {cpu[1]}) | {keeper} | {row['ratio']} ({ratio[0]} – {ratio[1]}) |"
        )
    return lines


def draw(results: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    for place, row in enumerate(results["jobs"]):
        low, high = row["ratio_interval"]
        axes.plot([place, place], [low, high], color=COLOURS[0], linewidth=3)
        axes.plot(place, row["ratio"], "o", color=COLOURS[1])
    axes.axhline(1, color="grey", linewidth=0.8)
    labels = [f"{row['job']}\n{row['step_ms']} ms a step" for row in results["jobs"]]
    axes.set_xticks(range(len(labels)), labels)
    axes.set_ylabel("step with watching ÷ without")


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
