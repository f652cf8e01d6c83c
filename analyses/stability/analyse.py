"""How often do two runs of one job give the same findings in the same order, and what flips?

    as advice        findings that the report says are beyond noise, with a change to make
    the same         pairs of runs of a job whose advice is the same, in the same order, by all pairs
    if all advised   the same, if every finding were advice, by its gain, most first

python analyses/stability/analyse.py
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, publish

_COLUMNS = (
    "job",
    "advised findings (number of runs of 10)",
    "same advice",
    "same if all were advised",
    "findings within the noise (number of runs of 10)",
)

Found = Sequence[dict[str, Any]]


def measure(recordings: Path) -> dict[str, Any]:
    found = json.loads((recordings / "findings.json").read_text(encoding="utf-8"))
    jobs = [_of_job(name, runs) for name, runs in found.items()]
    return {
        "jobs": jobs,
        "num_runs": sum(job["runs"] for job in jobs),
        "same": round(sum(job["same_pairs"] for job in jobs) / sum(job["pairs"] for job in jobs), 3),
        "same_if_all": round(sum(job["same_pairs_if_all"] for job in jobs) / sum(job["pairs"] for job in jobs), 3),
    }


def _of_job(name: str, runs: Sequence[Found]) -> dict[str, Any]:
    advised = [[_what(one) for one in run if not one["is_noise"]] for run in runs]
    everything = [[_what(one) for one in sorted(run, key=_gain, reverse=True)] for run in runs]
    noise = [[_what(one) for one in run if one["is_noise"]] for run in runs]
    return {
        "job": name,
        "runs": len(runs),
        "pairs": len(runs) * (len(runs) - 1) // 2,
        "same_pairs": _same(advised),
        "same_pairs_if_all": _same(everything),
        "advised": dict(sorted(Counter(what for run in advised for what in run).items())),
        "noise": dict(sorted(Counter(what for run in noise for what in run).items())),
    }


def _what(finding: dict[str, Any]) -> str:
    """Return the rule, with the rank of a straggler: another straggler is another finding."""
    rank = re.search(r"rank \d+", finding["title"]) if finding["rule"] == "straggler" else None
    return f"{finding['rule']} ({rank.group()})" if rank else str(finding["rule"])


def _gain(finding: dict[str, Any]) -> float:
    return -1 if finding["gain_ns"] is None else float(finding["gain_ns"])


def _same(runs: Sequence[Sequence[str]]) -> int:
    return sum(one == other for one, other in combinations(runs, 2))


def table(results: dict[str, Any]) -> list[str]:
    rows = [
        f"| {job['job'].replace('_', ' ')} | {_counts(job['advised'])} | {job['same_pairs'] / job['pairs']:.0%} "
        f"| {job['same_pairs_if_all'] / job['pairs']:.0%} | {_counts(job['noise'])} |"
        for job in results["jobs"]
    ]
    total = f"| all | | {results['same']:.0%} | {results['same_if_all']:.0%} | |"
    return [f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}", *rows, total]


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{what} {number}" for what, number in found.items()) or "none"


def draw(results: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    names = [job["job"].replace("_", " ") for job in results["jobs"]]
    for offset, colour, key, label in (
        (0.2, COLOURS[0], "same_pairs", "as advised"),
        (-0.2, COLOURS[1], "same_pairs_if_all", "if all were advised, by gain"),
    ):
        shares = [job[key] / job["pairs"] for job in results["jobs"]]
        axes.barh([place + offset for place in range(len(names))], shares, 0.38, color=colour, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("pairs of runs with the same findings in the same order")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
