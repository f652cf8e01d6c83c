"""From the times to results.json, the README's table and the picture.

    ratio of a condition   median over rounds of (mean step of its block / mean step of the round's bare block)

python analyses/recording_cost/analyse.py            the committed times
python analyses/recording_cost/analyse.py FOLDER     the table of other times, printed only
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, interval_of_median, publish

CONDITIONS = {
    "bare again": "second run without it (noise)",
    "outside": "outside the recorded steps",
    "light": "light recording",
}
TARGETS = {
    ("default buckets", "light"): 1.01,
    ("fifty tiny buckets", "light"): 1.03,
    ("default buckets", "outside"): 1.01,
}


def measure(recordings: Path) -> dict[str, Any]:
    times = json.loads((recordings / "times.json").read_text(encoding="utf-8"))
    start = {name: median(seconds) for name, seconds in times["start_s"].items()}
    return {
        "rounds": len(next(iter(times["training"].values()))["mean_step_s"]["bare"]),
        "help_after_bare_python_ms": round((start["--help"] - start["bare python"]) * 1e3),
        "report_ms": round(start["report"] * 1e3),
        "training": {name: _of_case(name, case) for name, case in times["training"].items()},
    }


def _of_case(name: str, case: dict[str, Any]) -> dict[str, Any]:
    step_s = case["mean_step_s"]
    ratios = {}
    for condition in CONDITIONS:
        of_rounds = [with_it / bare for with_it, bare in zip(step_s[condition], step_s["bare"], strict=True)]
        low, high = interval_of_median(of_rounds)
        target = TARGETS.get((name.split(",")[0], condition))
        ratios[condition] = {
            "ratio": round(median(of_rounds), 3),
            "low": round(low, 3),
            "high": round(high, 3),
            "target": target,
        }
    return {"buckets": case["buckets"], "step_ms": round(median(step_s["bare"]) * 1e3, 1), "ratios": ratios}


def table(results: dict[str, Any]) -> list[str]:
    lines = [
        f"| step time ÷ step time without ddpprof (95 % interval) | {' | '.join(CONDITIONS.values())} |",
        "|---" * (1 + len(CONDITIONS)) + "|",
    ]
    for name, case in results["training"].items():
        cells = [f"{name} ({case['buckets']} buckets, {case['step_ms']:.0f} ms)"]
        cells += [f"{r['ratio']:.3f} ({r['low']:.3f} – {r['high']:.3f})" for r in case["ratios"].values()]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def draw(results: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    cases = list(results["training"].items())
    for index, (condition, label) in enumerate(CONDITIONS.items()):
        rows = [case["ratios"][condition] for _, case in cases]
        places = [place + (index - 1) * 0.2 for place in range(len(rows))]
        reach = [[r["ratio"] - r["low"] for r in rows], [r["high"] - r["ratio"] for r in rows]]
        middle = [r["ratio"] for r in rows]
        axes.errorbar(places, middle, reach, fmt="o", color=COLOURS[index], capsize=3, label=label)
    axes.axhline(1, color="grey", lw=1)
    axes.set_xticks(range(len(cases)), [name.replace(", ", "\n") for name, _ in cases])
    axes.set_ylabel("step time ÷ that without ddpprof")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def show(results: dict[str, Any]) -> None:
    """Return the table, start-up, and how the targets were met, for a terminal."""
    print("\n".join(table(results)))
    print(f"ddpprof --help starts {results['help_after_bare_python_ms']} ms after a bare Python; ", end="")
    print(f"ddpprof report on a small run takes {results['report_ms']} ms")
    for name, case in results["training"].items():
        for condition, found in case["ratios"].items():
            if found["target"] is not None:
                verdict = "met" if found["ratio"] <= found["target"] else "missed"
                print(f"{name}, {CONDITIONS[condition]}: {found['ratio']:.3f}, target {found['target']}: {verdict}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        show(measure(Path(sys.argv[1])))
    else:
        publish(Path(__file__).resolve().parent, measure, table, draw)
