"""From the recorded runs to results.json, the README's table and the picture.

    the claim   trailing = bytes of the last bucket / rate of the link
    the queue   each bucket's transfer begins when its gradients are ready and the link is free
                trailing = end of the last transfer - last gradient

python analyses/trailing_communication/analyse.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from links import left_by_queue_ns, transfer_ns
from study import COLOURS, MIB, median_ms, ms, publish, spread_ms

import ddpprof

GBIT_PER_S = 1


def measure(recordings: Path) -> dict[str, Any]:
    caps: dict[int, list[Any]] = {}
    for run in sorted(recordings.glob("cap-*")):
        cap = int(run.name.split("-")[1])
        caps.setdefault(cap, []).append(ddpprof.build_report(ddpprof.load_run(run)))
    return {"caps": [_measure_cap(cap, caps[cap]) for cap in sorted(caps)]}


def _measure_cap(cap: int, reports: list[Any]) -> dict[str, Any]:
    """Return the trailing time of the rank where it is least; the other one's surplus is waiting for that rank."""
    trailing = [
        min(step.trailing_ns for step in of_ranks)
        for report in reports
        for of_ranks in zip(*(rank.steps for rank in report.ranks), strict=True)
    ]
    sizes = [bucket.num_bytes for bucket in reports[0].buckets]
    return {
        "cap_mib": cap,
        "buckets_mib": [size // MIB for size in sizes],
        "steps": len(trailing),
        "trailing_ms": median_ms(trailing),
        "middle_half_ms": spread_ms(trailing),
        "by_last_bucket_ms": ms(transfer_ns(sizes[-1], GBIT_PER_S)),
        "by_queue_ms": median_ms([left_by_queue_ns(report.buckets, GBIT_PER_S) for report in reports]),
    }


def table(results: dict[str, Any]) -> list[str]:
    lines = [
        "| bucket_cap_mb | buckets, MiB | trailing, ms (middle 50 %) | last bucket ÷ link rate, ms | queue, ms |",
        "|---|---|---|---|---|",
    ]
    for row in results["caps"]:
        low, high = row["middle_half_ms"]
        buckets = " ".join(map(str, row["buckets_mib"]))
        lines.append(
            f"| {row['cap_mib']} | {buckets} | {row['trailing_ms']:.1f} ({low:.1f} – {high:.1f}) "
            f"| {row['by_last_bucket_ms']:.1f} | {row['by_queue_ms']:.1f} |"
        )
    return lines


def draw(results: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    caps = [row["cap_mib"] for row in results["caps"]]
    axes.plot(caps, [row["by_last_bucket_ms"] for row in results["caps"]], "_", color=COLOURS[0], ms=30, mew=4)
    axes.plot(caps, [row["by_queue_ms"] for row in results["caps"]], "_", color=COLOURS[1], ms=20, mew=3)
    middle = [row["trailing_ms"] for row in results["caps"]]
    low, high = zip(*(row["middle_half_ms"] for row in results["caps"]), strict=True)
    reach = [[m - x for m, x in zip(middle, low, strict=True)], [x - m for m, x in zip(middle, high, strict=True)]]
    axes.errorbar(caps, middle, reach, fmt="o", color="black", capsize=3)
    axes.legend(
        ["last bucket ÷ link rate", "queue of all buckets", "measured (middle half of steps)"],
        frameon=False,
        handlelength=3,
    )
    axes.set_xticks(caps, [f"{row['cap_mib']}\n{row['buckets_mib'][-1]}" for row in results["caps"]])
    axes.set_xlabel("bucket_cap_mb (above), MiB in the last bucket (below)")
    axes.set_ylabel("trailing communication, ms")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
