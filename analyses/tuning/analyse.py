"""Compare the tuner's choice with that of trying all settings: the training each takes, and both steps, run in turn.

    share   steps of training that the tuner took, by the steps that trying all settings as often takes
    beside  the tuner's step by the fastest setting's: the median over rounds in which both ran, with a 95 % interval
    gain    the tuner's step by the unchanged job's, less 1, over the same rounds

python analyses/tuning/analyse.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, interval_of_median, median_ms, publish

_COLUMNS = (
    "model, link",
    "settings",
    "tuner: number of settings, number of steps",
    "steps to measure all settings",
    "tuner's share of these steps",
    "tuner's choice",
    "fastest of all settings",
    "tuner's choice: step time relative to the fastest",
    "step time relative to the default",
)


def measure(recordings: Path) -> dict[str, Any]:
    cases = [_of_case(path) for path in sorted(recordings.glob("*-*.json"))]
    return {
        "cases": cases,
        "share": [min(one["share"] for one in cases), max(one["share"] for one in cases)],
        "beside_fastest": [
            median(one["beside_fastest"][0] for one in cases),
            max(one["beside_fastest"][0] for one in cases),
        ],
    }


def _of_case(path: Path) -> dict[str, Any]:
    made = json.loads(path.read_text(encoding="utf-8"))
    report, settings, tuned, fastest = made["report"], made["settings"], made["tuned"], made["fastest"]
    model, gbit = path.stem.split("-")
    met = {setting: _by_round(made["meetings"], setting) for setting in {0, tuned, fastest}}
    return {
        "model": model,
        "gbit": float(gbit),
        "settings": report["num_distinct"],
        "tried": len(report["tried"]) + 1,
        "steps": report["num_steps"],
        "exhaustive_steps": report["exhaustive_steps"],
        "share": round(report["num_steps"] / report["exhaustive_steps"], 4),
        "tuned": _label(settings[tuned]),
        "fastest": _label(settings[fastest]),
        "step_ms": {
            name: median_ms(met[one]) for name, one in (("default", 0), ("tuned", tuned), ("fastest", fastest))
        },
        "beside_fastest": _ratio(met[tuned], met[fastest]),
        "beside_default": _ratio(met[tuned], met[0]),
        "visited_beside_fastest": sorted(
            round(_visited(made["visits"], setting) / _visited(made["visits"], fastest), 4)
            for setting in range(len(settings))
        ),
    }


def _by_round(visits: Sequence[Mapping[str, Any]], setting: int) -> list[float]:
    own = sorted((one["round"], median(one["step_ns"])) for one in visits if one["setting"] == setting)
    return [step_ns for _, step_ns in own]


def _visited(visits: Sequence[Mapping[str, Any]], setting: int) -> float:
    return median(ns for one in visits if one["setting"] == setting for ns in one["step_ns"])


def _ratio(steps: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the ratio with the ends of its interval."""
    ratios = [step / other for step, other in zip(steps, others, strict=True)]
    return [round(value, 4) for value in (median(ratios), *interval_of_median(ratios))]


def _label(arguments: Mapping[str, Any]) -> str:
    """Return a short name: the settings as one writes them, with a list of equal numbers as a product."""
    said = []
    if "bucket_cap_mb" in arguments:
        said.append(f"{arguments['bucket_cap_mb']:g} MB")
    if "bucket_cap_mb_list" in arguments:
        said.append(f"{', '.join(_runs(arguments['bucket_cap_mb_list']))} MB")
    if arguments.get("gradient_as_bucket_view"):
        said.append("views")
    return "; ".join(said) or "default"


def _runs(caps: Sequence[float]) -> list[str]:
    said: list[str] = []
    rest = list(caps)
    while rest:
        same = next((index for index, cap in enumerate(rest) if cap != rest[0]), len(rest))
        said.append(f"{rest[0]:g}" if same == 1 else f"{same} × {rest[0]:g}")
        rest = rest[same:]
    return said


def table(results: dict[str, Any]) -> list[str]:
    rows = [
        f"| {one['model']}, {one['gbit']:g} Gbit/s | {one['settings']} | {one['tried']}, {one['steps']} "
        f"| {one['exhaustive_steps']} | {one['share']:.1%} | {one['tuned']} | {one['fastest']} "
        f"| {_percent(one['beside_fastest'])} | {_percent(one['beside_default'])} |"
        for one in results["cases"]
    ]
    return [f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}", *rows]


def _percent(ratio: Sequence[float]) -> str:
    if ratio == [1, 1, 1]:
        return "same setting"
    middle, low, high = (f"{100 * (value - 1):+.1f}" for value in ratio)
    return f"{middle} % ({low} – {high})"


def draw(results: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    for position, (colour, one) in enumerate(zip(COLOURS, results["cases"], strict=False)):
        fastest = one["step_ms"]["fastest"]
        visited = one["visited_beside_fastest"]
        axes.plot([position] * len(visited), visited, "_", color=colour, ms=22, alpha=0.5)
        axes.plot([position], [one["step_ms"]["tuned"] / fastest], "o", color="black", ms=6)
        axes.plot([position], [one["step_ms"]["default"] / fastest], "x", color="black", ms=7)
    axes.set_xticks(
        range(len(results["cases"])), [f"{one['model']}\n{one['gbit']:g} Gbit/s" for one in results["cases"]]
    )
    axes.set_ylabel("step, by the fastest setting's")
    axes.plot([], [], "o", color="black", label="the tuner's choice")
    axes.plot([], [], "x", color="black", label="DDP's default")
    axes.plot([], [], "_", color="grey", ms=12, label="every setting, few steps each")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
