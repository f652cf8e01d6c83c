"""From the recorded runs to results.json, the README's table and the picture.

    step ÷ default   per round, median of the timed steps / DDP default's median; then the median over the rounds

python analyses/bucket_sizes/analyse.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, MIB, interval_of_median, median_ms, ms, publish

import ddpprof

DEFAULT = "default"


def measure(recordings: Path) -> dict[str, Any]:
    step_ns = _by_cap(recordings / "timed", _timed_step_ns)
    profiled = _by_cap(recordings / "profiled", _parts)
    caps = sorted(step_ns, key=lambda cap: (cap == DEFAULT, cap != DEFAULT and float(cap)))
    return {"rounds": len(step_ns[DEFAULT]), "caps": [_of_cap(cap, step_ns, profiled[cap][0]) for cap in caps]}


def _by_cap(folder: Path, value: Any) -> dict[str, list[Any]]:
    """Return for each cap its value in each round."""
    runs: dict[str, dict[int, Any]] = {}
    for path in folder.iterdir():
        _, cap, number = path.name.split("-")
        runs.setdefault(cap, {})[int(number)] = value(ddpprof.build_report(ddpprof.load_run(path)))
    return {cap: [rounds[number] for number in sorted(rounds)] for cap, rounds in runs.items()}


def _timed_step_ns(report: ddpprof.Report) -> float:
    return median(step.duration_ns for rank in report.ranks for step in rank.light_steps if step.mode == "off")


def _parts(report: ddpprof.Report) -> dict[str, Any]:
    """Return medians over steps, of the rank with the least: the other one's surplus is waiting. Also its buckets."""
    steps = list(zip(*(rank.steps for rank in report.ranks), strict=True))
    return {
        "num_buckets": report.job.modules[0].num_buckets,
        "largest_bucket_mib": round(max(bucket.num_bytes for bucket in report.buckets) / MIB, 3),
        "comm_ms": median_ms(min(step.comm_ns for step in ranks) for ranks in steps),
        "exposed_ms": median_ms(min(step.exposed_ns for step in ranks) for ranks in steps),
        "trailing_ms": median_ms(min(step.trailing_ns for step in ranks) for ranks in steps),
    }


def _of_cap(cap: str, step_ns: dict[str, list[float]], parts: dict[str, Any]) -> dict[str, Any]:
    ratios = [mine / default for mine, default in zip(step_ns[cap], step_ns[DEFAULT], strict=True)]
    low, high = interval_of_median(ratios)
    return {
        "cap_mib": cap,
        **parts,
        "step_ms": ms(median(step_ns[cap])),
        "step_over_default": round(median(ratios), 3),
        "interval": [round(low, 3), round(high, 3)],
    }


def table(results: dict[str, Any]) -> list[str]:
    lines = [
        "| bucket_cap_mb | buckets | largest, MiB | step, ms | step ÷ default (95 %) | exposed, ms | trailing, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results["caps"]:
        low, high = row["interval"]
        of_default = "1" if row["cap_mib"] == DEFAULT else f"{row['step_over_default']:.2f} ({low:.2f} – {high:.2f})"
        lines.append(
            f"| {row['cap_mib']} | {row['num_buckets']} | {row['largest_bucket_mib']:.2f} | {row['step_ms']:.0f} "
            f"| {of_default} | {row['exposed_ms']:.1f} | {row['trailing_ms']:.1f} |"
        )
    return lines


def draw(results: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    rows = results["caps"]
    middle = [row["step_over_default"] for row in rows]
    reach = [
        [row["step_over_default"] - row["interval"][0] for row in rows],
        [row["interval"][1] - row["step_over_default"] for row in rows],
    ]
    places = range(len(rows))
    axes.axhline(1, color="grey", lw=1)
    axes.errorbar(places, middle, reach, fmt="o", color=COLOURS[0], capsize=3)
    axes.set_xticks(places, [f"{row['cap_mib']}\n{row['num_buckets']}" for row in rows])
    axes.set_xlabel("bucket_cap_mb (above), number of buckets (below)")
    axes.set_ylabel("step time ÷ that of DDP's default")
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
