"""From the recorded sweep to results.json, the README's table and the picture, by `ddpprof report`.

    step = constant + slope × batch, for each number of hosts, with a floor where small batches all take as long
    crossover: the batch, of all hosts together, at which both take as long

python analyses/batch_crossover/analyse.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, ms, publish, report_json

HERE = Path(__file__).resolve().parent
PUBLISHED = "batch_crossover.csv"


def measure(recordings: Path) -> dict[str, Any]:
    report = report_json(recordings / "sweep")
    return {"curves": [_of_curve(curve) for curve in report["curves"]], "crossovers": crossovers(report)}


def _of_curve(curve: dict[str, Any]) -> dict[str, Any]:
    points, model = curve["points"], curve["model"]
    return {
        "hosts": points[0]["nproc"],
        "points": [{"batch": round(point["size"]), "step_ms": ms(point["step_ns"])} for point in points],
        "constant_ms": ms(model["constant_ns"]),
        "slope_us": round(model["slope_ns"] / 1e3, 2),
        "error": round(model["relative_error"], 3),
    }


def crossovers(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "batch": round(found["crossover"]["size"]),
            "interval": [round(found["crossover"][end]) for end in ("low", "high")],
            "slope_ratio": round(found["crossover"]["slope_ratio"], 2),
            "is_measured": found["is_measured"],
        }
        for found in report["crossovers"]
    ]


def table(results: dict[str, Any]) -> list[str]:
    """Return one row per batch; a batch that only one number of hosts was run with has one time."""
    by_hosts = {c["hosts"]: {p["batch"]: p["step_ms"] for p in c["points"]} for c in results["curves"]}
    batches = sorted(set().union(*by_hosts.values()))
    lines = ["| total batch size | one host, ms | two hosts, ms | one ÷ two |", "|---|---|---|---|"]
    for batch in batches:
        one, two = (by_hosts[hosts].get(batch) for hosts in (1, 2))
        cells = [str(batch), *(f"{time:.0f}" if time is not None else "–" for time in (one, two))]
        cells.append(f"{one / two:.2f}" if one is not None and two is not None else "–")
        lines.append(f"| {' | '.join(cells)} |")
    models = [f"{c['constant_ms']:.0f} + {c['slope_us'] / 1e3:.3f} × batch" for c in results["curves"]]
    return [*lines, f"| fitted line, ms | {' | '.join(models)} | |"]


def draw(results: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    for colour, curve in zip(COLOURS, results["curves"], strict=False):
        batches = [point["batch"] for point in curve["points"]]
        label = "one host" if curve["hosts"] == 1 else f"{curve['hosts']} hosts"
        axes.plot(batches, [p["step_ms"] for p in curve["points"]], "o", color=colour, label=label)
        modelled = [curve["constant_ms"] + curve["slope_us"] / 1e3 * batch for batch in batches]
        axes.plot(batches, modelled, "-", color=colour, lw=1)
    for found in results["crossovers"]:
        axes.axvspan(*found["interval"], color="grey", alpha=0.2, lw=0)
        axes.axvline(found["batch"], color="grey", lw=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({point["batch"] for curve in results["curves"] for point in curve["points"]})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel("batch of all hosts together")
    axes.set_ylabel("step, ms")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def show_published(times: Path) -> None:
    """Print the fit of a published experiment that the project does not include, if it is at hand."""
    if times.is_file():
        for found in crossovers(report_json(times)):
            print(f"{times.name}: {found}")


if __name__ == "__main__":
    publish(HERE, measure, table, draw)
    show_published(Path(os.environ.get("DDPPROF_SHARED", HERE.parents[2] / "shared"), "reference", PUBLISHED))
