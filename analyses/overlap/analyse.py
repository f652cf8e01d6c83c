"""From the recorded runs to results.json, the README's table and the picture.

    hidden     communication under computation / communication, of the rank that waits less
    step       median of a round's steps, in the round where it is shortest: other work on the machine only adds
    ideal      what a queue of the buckets leaves after the last gradient (`links`), in the fastest profiled round

python analyses/overlap/analyse.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from links import left_by_queue_ns, transfer_ns
from study import COLOURS, ms, publish

import ddpprof

OVERLAPPED, ONE_BUCKET, SILENT = "overlapped", "one_bucket", "silent"


def measure(recordings: Path) -> dict[str, Any]:
    rates = sorted((float(folder.name.removesuffix("gbit")), folder) for folder in recordings.glob("*gbit"))
    return {"rates": [_of_rate(rate, folder) for rate, folder in rates]}


def _of_rate(rate: float, folder: Path) -> dict[str, Any]:
    rounds = [_rounds(number / "timed") for number in sorted(folder.iterdir())]
    step = {case: [_timed_step_ns(of_round[case]) for of_round in rounds] for case in (OVERLAPPED, ONE_BUCKET)}
    step[SILENT] = [_silent_step_ns(number / "silent.json") for number in sorted(folder.iterdir())]
    profiled = [_rounds(number / "profiled") for number in sorted(folder.iterdir()) if (number / "profiled").exists()]
    overlapped = [of_round[OVERLAPPED] for of_round in profiled]
    fastest = {case: min(steps) for case, steps in step.items()}
    undisturbed = min(overlapped, key=lambda report: max(bucket.ready_ns for bucket in report.buckets))
    return {
        "gbit_per_s": rate,
        "gradients_ms": ms(transfer_ns(overlapped[0].job.modules[0].parameter_bytes, rate)),
        "silent_ms": ms(fastest[SILENT]),
        "one_bucket_ms": ms(fastest[ONE_BUCKET]),
        "overlapped_ms": ms(fastest[OVERLAPPED]),
        "gain_ms": ms(fastest[ONE_BUCKET] - fastest[OVERLAPPED]),
        "left_ms": ms(fastest[OVERLAPPED] - fastest[SILENT]),
        "ideal_left_ms": ms(left_by_queue_ns(undisturbed.buckets, rate)),
        "hidden": _hidden(overlapped),
        "hidden_one_bucket": _hidden([of_round[ONE_BUCKET] for of_round in profiled]),
    }


def _rounds(folder: Path) -> dict[str, Any]:
    return {p.name.rsplit("-", 1)[0]: ddpprof.build_report(ddpprof.load_run(p)) for p in sorted(folder.iterdir())}


def _timed_step_ns(report: ddpprof.Report) -> float:
    return median(step.duration_ns for rank in report.ranks for step in rank.light_steps if step.mode == "off")


def _silent_step_ns(path: Path) -> float:
    return median(json.loads(path.read_text(encoding="utf-8")))


def _hidden(reports: list[Any]) -> float:
    steps = [min(ranks, key=lambda s: s.comm_ns) for r in reports for ranks in _by_step(r)]
    return round(median(step.overlap_ns / step.comm_ns for step in steps), 3)


def _by_step(report: ddpprof.Report) -> list[tuple[Any, ...]]:
    return list(zip(*(rank.steps for rank in report.ranks), strict=True))


def table(results: dict[str, Any]) -> list[str]:
    lines = [
        "| Gbit/s | gradients, ms | silent | one bucket | overlapped | gain | left | ideal | hidden | in one |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rates"]:
        names = ("gradients", "silent", "one_bucket", "overlapped", "gain", "left", "ideal_left")
        times = [row[f"{name}_ms"] for name in names]
        cells = [f"{row['gbit_per_s']:g}", *(f"{time:.0f}" for time in times)]
        cells += [f"{row['hidden']:.0%}", f"{row['hidden_one_bucket']:.0%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def draw(results: dict[str, Any], figure: Any) -> None:
    steps, share = figure.subplots(1, 2)
    rates = [row["gbit_per_s"] for row in results["rates"]]
    labels = {"one_bucket_ms": "one bucket", "overlapped_ms": "overlapped", "silent_ms": "no communication"}
    for colour, (key, label) in zip(COLOURS, labels.items(), strict=False):
        steps.plot(rates, [row[key] for row in results["rates"]], "o-", color=colour, label=label)
    steps.set_ylabel("step, ms")
    steps.set_ylim(bottom=0)
    steps.legend(frameon=False)
    share.plot(rates, [100 * row["hidden"] for row in results["rates"]], "o-", color=COLOURS[1])
    share.set_ylabel("hidden communication, %")
    share.set_ylim(0, 100)
    for axes in (steps, share):
        axes.set_xscale("log", base=2)
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axes.set_xlabel("link, Gbit/s")
        axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
