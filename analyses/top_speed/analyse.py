"""From the times to results.json, the README's table and the picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, publish

GOAL_S = 0.5


def measure(recordings: Path) -> dict[str, Any]:
    times = json.loads((recordings / "times.json").read_text(encoding="utf-8"))
    return {
        "cores": times["cores"],
        "load_average": times["load_average"],
        "refreshes": [_of(one) for one in times["refreshes"]],
    }


def _of(one: dict[str, Any]) -> dict[str, Any]:
    names = ("read_s", "read_cpu_s", "draw_s")
    read, busy, draw = ([rounds[name] for rounds in one["rounds"]] for name in names)
    return {
        "ranks": one["ranks"],
        "pulses": one["pulses"],
        "rounds": len(read),
        "read_ms": round(median(read) * 1e3, 1),
        "read_cpu_ms": round(median(busy) * 1e3, 1),
        "longest_read_ms": round(max(read) * 1e3, 1),
        "draw_ms": round(median(draw) * 1e3, 1),
    }


def table(results: dict[str, Any]) -> list[str]:
    lines = ["| ranks | pulses | read, ms | longest read, ms | CPU, ms | draw, ms |", "|---|---|---|---|---|---|"]
    for one in results["refreshes"]:
        times = f"{one['read_ms']} | {one['longest_read_ms']} | {one['read_cpu_ms']} | {one['draw_ms']}"
        lines.append(f"| {one['ranks']} | {one['pulses']} | {times} |")
    return lines


def draw(results: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    for colour, where in zip(COLOURS, ("in memory", "in the run directory"), strict=False):
        of = [one for one in results["refreshes"] if one["pulses"] == where]
        axes.plot([one["ranks"] for one in of], [one["read_ms"] for one in of], "o-", color=colour, label=where)
    axes.axhline(GOAL_S * 1e3, color="grey", linestyle="--", label="the goal for 1000 ranks")
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="ms to read all pulses")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
