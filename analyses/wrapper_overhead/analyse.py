"""From the recorded experiments to results.json, the README's table and the picture, by `ddpprof report`.

python analyses/wrapper_overhead/analyse.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, ms, publish, report_json

JOBS = {"convnet": "ConvNet", "transformer": "transformer", "layers": "small linear layers"}
PARTS = {
    "pre_forward_ns": "before the forward",
    "copy_in_ns": "copies into buckets",
    "launch_ns": "launches",
    "copy_out_ns": "copies out of buckets",
    "finalise_ns": "finalisation",
}


def measure(recordings: Path) -> dict[str, Any]:
    return {name: _of_job(report_json(recordings / name)) for name in JOBS}


def _of_job(report: dict[str, Any]) -> dict[str, Any]:
    ratio, parts = report["ratio"], report["parts"]
    measured = (ratio["ratio"] - 1) * report["without_ns"]
    (module,) = report["job"]["modules"]
    return {
        "num_parameters": module["num_parameters"],
        "gradient_mb": round(module["parameter_bytes"] / 1e6, 1),
        "without_ms": ms(report["without_ns"]),
        "ratio": round(ratio["ratio"], 3),
        "interval": [round(ratio["low"], 3), round(ratio["high"], 3)],
        "rounds": [round(one["ratio"], 3) for one in report["rounds"]],
        "pairs": ratio["num_pairs"],
        "measured_ms": ms(measured),
        "explained_ms": ms(parts["wrapper_ns"] + parts["transfer_ns"] + parts["waiting_ns"]),
        "parts_ms": {part: ms(report["wrapper"][part]) for part in PARTS},
    }


def table(results: dict[str, Any]) -> list[str]:
    lines = [
        "| model | gradients | step without DDP, ms | with DDP ÷ without (95 %) | measured, ms | attributed, ms |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in results.items():
        low, high = row["interval"]
        lines.append(
            f"| {JOBS[name]} | {row['num_parameters']} tensors, {row['gradient_mb']} MB | {row['without_ms']:.1f} "
            f"| {row['ratio']:.3f} ({low:.3f} – {high:.3f}) | {row['measured_ms']:.2f} | {row['explained_ms']:.2f} |"
        )
    return lines


def draw(results: dict[str, Any], figure: Any) -> None:
    ratios, parts = figure.subplots(1, 2)
    for place, row in enumerate(results.values()):
        low, high = row["interval"]
        reach = [[row["ratio"] - low], [high - row["ratio"]]]
        ratios.errorbar([place], [row["ratio"]], reach, fmt="o", color="black", capsize=4)
    ratios.axhline(1, color="grey", lw=1)
    ratios.set_ylabel("step with DDP ÷ step without")
    below = [0.0] * len(results)
    for colour, (part, label) in zip(COLOURS, PARTS.items(), strict=False):
        heights = [row["parts_ms"][part] for row in results.values()]
        parts.bar(range(len(heights)), heights, 0.6, below, color=colour, label=label)
        below = [base + height for base, height in zip(below, heights, strict=True)]
    parts.set_ylabel("DDP's own work, ms per step")
    parts.set_ylim(top=1.5 * max(below))
    parts.legend(frameon=False, fontsize=8)
    for axes in (ratios, parts):
        axes.set_xticks(range(len(results)), [JOBS[name].replace("small ", "small\n") for name in results])
        axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
