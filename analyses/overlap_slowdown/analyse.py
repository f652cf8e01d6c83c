"""From the recorded runs to results.json, the README's table and the picture.

    slowdown   time of rank 0's kernels under communication / time of the same kernels without it (ddpprof's measure);
               median over the steady runs, whose control is within a tenth of 1

python analyses/overlap_slowdown/analyse.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, median_ms, publish

import ddpprof

HERE = Path(__file__).resolve().parent
GPU_TRACE = "resnet50_a100_rank0of2.json.gz"
STEADY = 0.1
PLACES = {"same": "on the core that computes", "other": "on another core"}


def measure(recordings: Path) -> dict[str, Any]:
    return {"places": {place: _of_place(sorted(recordings.glob(f"{place}-*"))) for place in PLACES}}


def _of_place(paths: list[Path]) -> dict[str, Any]:
    reports = [ddpprof.build_report(ddpprof.load_run(path)) for path in paths]
    slowdowns = [report.overlap_slowdown for report in reports]
    found = [one for one in slowdowns if abs(one.control - 1) <= STEADY]
    steps = [step for report in reports for rank in report.ranks for step in rank.steps]
    return {
        "ratios": [round(one.ratio, 3) for one in slowdowns],
        "controls": [round(one.control, 3) for one in slowdowns],
        "num_steady": len(found),
        "ratio": round(median(one.ratio for one in found), 3),
        "known_share": round(median(one.known_share for one in found), 3),
        "covered_ms": median_ms(one.covered_ns for one in found),
        "lost_ms": median_ms(one.lost_ns for one in found),
        "comm_ms": median_ms(step.comm_ns for step in steps),
        "exposed_ms": median_ms(step.exposed_ns for step in steps),
        "step_ms": median_ms(step.duration_ns for step in steps),
    }


def table(results: dict[str, Any]) -> list[str]:
    lines = [
        (
            "| gloo's threads run | slowdown: median (all) | control | compute time covered "
            "| under comm, ms | lost, ms | step, ms |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for place, row in results["places"].items():
        each = ", ".join(f"{ratio:.2f}" for ratio in row["ratios"])
        control = ", ".join(f"{ratio:.2f}" for ratio in row["controls"])
        lines.append(
            f"| {PLACES[place]} | {row['ratio']:.2f} ({each}) | {control} | {row['known_share']:.0%} "
            f"| {row['covered_ms']:.1f} | {row['lost_ms']:.1f} | {row['step_ms']:.0f} |"
        )
    return lines


def draw(results: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    for place, row in enumerate(results["places"].values()):
        for ratio, control in zip(row["ratios"], row["controls"], strict=True):
            face = COLOURS[place] if abs(control - 1) <= STEADY else "white"
            axes.plot([place], [ratio], "o", color=COLOURS[place], markerfacecolor=face)
        axes.plot([place], [row["ratio"]], "_", color=COLOURS[place], ms=40, mew=2)
    axes.axhline(1, color="grey", lw=1)
    axes.set_xlim(-0.6, len(PLACES) - 0.4)
    axes.set_xticks(range(len(PLACES)), [f"gloo {name}" for name in PLACES.values()])
    axes.set_ylabel("time of kernels under communication\n÷ the same without it")
    axes.spines[["top", "right"]].set_visible(False)


def show_gpu_trace(trace: Path) -> None:
    """Print the slowdown in a trace that the project does not include, if it is at hand."""
    if trace.is_file():
        found = ddpprof.build_report(ddpprof.load_run(trace)).overlap_slowdown
        print(f"{trace.name}: slowdown {found.ratio:.2f}, known of {found.known_share:.0%}")


if __name__ == "__main__":
    publish(HERE, measure, table, draw)
    show_gpu_trace(Path(os.environ.get("DDPPROF_SHARED", HERE.parents[2] / "shared"), "traces", GPU_TRACE))
