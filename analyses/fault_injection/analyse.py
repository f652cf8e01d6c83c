"""How often is the right rank, fault, bucket and line named, and how often is a pause called a hang?

python analyses/fault_injection/analyse.py
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, publish

sys.path.insert(0, str(Path(__file__).resolve().parent))
from planted_faults import EXPECTED, NO_BUCKET

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Trial = dict[str, Any]
LAST_PARAMETER = {"mlp": "last.weight", "convolutions": "head.2.weight", "attention": "last.weight"}
"""a parameter of each model's first bucket, which has the last layers"""
UNUSED = ["branch.weight", "branch.bias"]
THRESHOLD_S, TIMES = 5.0, 10
ABORTED = ("all_reduce", "died")
"""a fault, and what also counts as right: gloo aborts a process that gets a message of another size"""


def right_rank(trial: Trial) -> bool:
    verdict = trial["verdict"] or {}
    return verdict.get("rank") == (None if trial["fault"] == "link" else trial["rank"])


def right_fault(trial: Trial) -> bool:
    found = (trial["verdict"] or {}).get("fault")
    return found == EXPECTED[trial["fault"]] or (trial["fault"], found) == ABORTED


def right_bucket(trial: Trial) -> bool | None:
    """Return whether the bucket and its parameters are right; ``None`` if no bucket is missing.

    A model with buffers waits for their broadcast before the forward; then the ranks miss no bucket yet.
    """
    verdict = trial["verdict"] or {}
    if trial["fault"] == "unused":
        return verdict.get("parameters") == UNUSED
    if trial["fault"] in NO_BUCKET or (trial["model"] == "convolutions" and verdict.get("bucket") is None):
        return None
    return verdict.get("bucket") == 0 and LAST_PARAMETER[trial["model"]] in verdict.get("parameters", ())


def right_line(trial: Trial) -> bool | None:
    """Return whether the line is right; ``None`` if none could be named, or gloo aborted the process."""
    verdict = trial["verdict"] or {}
    if trial["line"] is None or (trial["fault"], verdict.get("fault")) == ABORTED:
        return None
    return verdict.get("place") == f"train.py:{trial['line']}"


def late_s(trial: Trial) -> float | None:
    """Return how many seconds after the threshold the verdict came; ``None`` for a job that did not hang."""
    verdict = trial["verdict"] or {}
    if trial["while"] != "hanging" or verdict.get("waited_ns") is None:
        return None
    return verdict["waited_ns"] / 1e9 - max(THRESHOLD_S, TIMES * (verdict["usual_ns"] or 0) / 1e9)


CHECKS: dict[str, Callable[[Trial], bool | None]] = {
    "rank": right_rank,
    "fault": right_fault,
    "bucket": right_bucket,
    "line": right_line,
}


def measure(recordings: Path) -> dict[str, Any]:
    trials: list[Trial] = json.loads((recordings / "trials.json").read_text(encoding="utf-8"))
    jobs = json.loads((recordings / "pauses.json").read_text(encoding="utf-8"))
    pauses: Counter[str] = Counter()
    for job in jobs:
        pauses.update(job["pauses"])
    return {
        "trials": len(trials),
        "launchers": dict(sorted(Counter(trial["launcher"] for trial in trials).items())),
        "ranks": {str(ranks): number for ranks, number in sorted(Counter(t["ranks"] for t in trials).items())},
        "faults": [_of_fault(fault, [one for one in trials if one["fault"] == fault]) for fault in EXPECTED],
        "all": _of_fault("all", trials),
        "pauses": dict(sorted(pauses.items())),
        "jobs_with_pauses": len(jobs),
        "jobs_that_ended_well": sum(job["is_over"] for job in jobs),
        "false_alarms": sum(len(job["alarms"]) for job in jobs),
    }


def _of_fault(fault: str, trials: Sequence[Trial]) -> dict[str, Any]:
    found: dict[str, Any] = {"planted": fault, "trials": len(trials)}
    for name, check in CHECKS.items():
        known = [value for value in map(check, trials) if value is not None]
        found[name] = [sum(known), len(known)]
    late = [value for value in map(late_s, trials) if value is not None]
    found["late_s"] = [round(median(late), 1), round(max(late), 1)] if late else None
    return found


def table(results: dict[str, Any]) -> list[str]:
    lines = [
        "| fault | trials | rank | fault | bucket and parameters | line | s after the threshold, median and most |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for row in (*results["faults"], results["all"]):
        shares = [_share(row[name]) for name in CHECKS]
        late = "" if row["late_s"] is None else f"{row['late_s'][0]}, {row['late_s'][1]}"
        lines.append(f"| {row['planted']} | {row['trials']} | {' | '.join(shares)} | {late} |")
    num_pauses = sum(results["pauses"].values())
    lines.append(f"| pauses called a hang | {num_pauses} | {results['false_alarms']} |  |  |  |  |")
    return lines


def _share(counted: Sequence[int]) -> str:
    right, of = counted
    return f"{right} of {of}" if of else ""


def draw(results: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    rows = results["faults"]
    for number, (name, colour) in enumerate(zip(CHECKS, COLOURS, strict=False)):
        shares = [row[name][0] / row[name][1] if row[name][1] else float("nan") for row in rows]
        axes.plot(range(len(rows)), shares, "o", color=colour, label=name, alpha=0.7, markersize=9 - 1.5 * number)
    axes.set_xticks(range(len(rows)), [row["planted"] for row in rows], rotation=60, ha="right", fontsize=8)
    axes.set_ylim(-0.05, 1.05)
    axes.set_ylabel("share that is right")
    axes.legend(loc="lower left", fontsize=8)


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
