"""From the counters and the recorded runs to results.json, the README's table and the picture.

    ring                    2(n-1)/n · S out of every host, and into it
    gather and broadcast    (n-1) · S into the first host and (n-1) · S out of it; S each way at the others

python analyses/allreduce_algorithms/analyse.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, MIB, median_ms, publish

import ddpprof

ALGORITHMS = {
    "all_reduce": "all-reduce (DDP)",
    "gather_and_broadcast": "gather and broadcast with `send` and `recv`",
    "collectives": "gather and broadcast of gloo",
}


def measure(recordings: Path) -> dict[str, Any]:
    folders = sorted(recordings.glob("*-hosts"))
    rows = [_of(folder, algorithm) for folder in folders for algorithm in ALGORITHMS]
    return {"gradients_mib": rows[0].pop("gradients_mib"), "rows": [_without_size(row) for row in rows]}


def _without_size(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "gradients_mib"}


def _of(folder: Path, algorithm: str) -> dict[str, Any]:
    num_hosts = int(folder.name.split("-")[0])
    hosts = [json.loads((folder / f"traffic-{rank}.json").read_text())[algorithm] for rank in range(num_hosts)]
    size = hosts[0]["gradient_bytes"]

    def of_gradients(num_bytes: int) -> float:
        return round(num_bytes / hosts[0]["steps"] / size, 3)

    timed = [ddpprof.build_report(ddpprof.load_run(path)) for path in sorted((folder / "timed").glob(f"{algorithm}-*"))]
    return {
        "hosts": num_hosts,
        "algorithm": algorithm,
        "gradients_mib": size // MIB,
        "sent": [of_gradients(host["sent_bytes"]) for host in hosts],
        "received": [of_gradients(host["received_bytes"]) for host in hosts],
        "sent_to": [{peer: of_gradients(n) for peer, n in host["sent_to"].items() if n > size / 100} for host in hosts],
        "ring": round(2 * (num_hosts - 1) / num_hosts, 3),
        "through_one": 2 * (num_hosts - 1),
        "busbw_gb_per_s": _busbw(ddpprof.build_report(ddpprof.load_run(folder / "profiled" / f"{algorithm}-0"))),
        "step_ms": median_ms(
            median(step.duration_ns for rank in report.ranks for step in rank.light_steps if step.mode == "off")
            for report in timed
        ),
    }


def _busbw(report: ddpprof.Report) -> float | None:
    """Return the bus bandwidth of the gradients' all-reduce, GB/s."""
    rows = report.across.collectives if report.across is not None else ()
    rates = [row.busbw_bytes_per_s for row in rows if row.kind == "all_reduce" and row.num_bytes]
    return round(rates[0] / 1e9, 4) if rates and rates[0] is not None else None


def busiest(row: dict[str, Any]) -> float:
    """Return the bytes of the busiest host, both directions, in units of the gradients' size."""
    return max(sent + received for sent, received in zip(row["sent"], row["received"], strict=True))


def table(results: dict[str, Any]) -> list[str]:
    lines = [
        (
            "| hosts | algorithm | host 0 sent ÷ S | host 0 received ÷ S | other hosts sent ÷ S "
            "| other hosts received ÷ S | step, ms | busbw, GB/s |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        others_sent, others_received = (" ".join(f"{x:.2f}" for x in row[way][1:]) for way in ("sent", "received"))
        busbw = f"{row['busbw_gb_per_s']:.3f}" if row["busbw_gb_per_s"] is not None else "–"
        lines.append(
            f"| {row['hosts']} | {ALGORITHMS[row['algorithm']]} | {row['sent'][0]:.2f} | {row['received'][0]:.2f} "
            f"| {others_sent} | {others_received} | {row['step_ms']:.0f} | {busbw} |"
        )
    return lines


def draw(results: dict[str, Any], figure: Any) -> None:
    traffic, time = figure.subplots(1, 2)
    for colour, (algorithm, label) in zip(COLOURS, ALGORITHMS.items(), strict=False):
        rows = [row for row in results["rows"] if row["algorithm"] == algorithm]
        hosts = [row["hosts"] for row in rows]
        traffic.plot(hosts, [busiest(row) for row in rows], "o", color=colour, label=label)
        time.plot(hosts, [row["step_ms"] for row in rows], "o-", color=colour, label=label)
    hosts = sorted({row["hosts"] for row in results["rows"]})
    traffic.plot(hosts, [4 * (n - 1) / n for n in hosts], "-", color=COLOURS[0], lw=1, label="4(n-1)/n")
    traffic.plot(hosts, [2 * (n - 1) for n in hosts], "-", color=COLOURS[1], lw=1, label="2(n-1)")
    traffic.set_ylabel("bytes in and out of the busiest host ÷ S")
    traffic.legend(frameon=False, fontsize=8)
    time.set_ylabel("step, ms")
    for axes in (traffic, time):
        axes.set_ylim(bottom=0)
        axes.set_xticks(hosts)
        axes.set_xlabel("hosts")
        axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
