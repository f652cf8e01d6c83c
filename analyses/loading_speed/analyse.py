"""From the times to results.json, the README's table and the picture.

times as fast      median of the peer's seconds ÷ median of ddpprof's, taken in turn
of the floor       median of ddpprof's seconds ÷ median of those of decoding alone, taken in turn
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, publish

MB = 10**6


def measure(recordings: Path) -> dict[str, Any]:
    times = json.loads((recordings / "times.json").read_text(encoding="utf-8"))
    return {
        "source": times["source"],
        "peer": times["peer"],
        "load_average": [round(times["load_average"], 1), round(times["load_average_after"], 1)],
        "peer_comparison": {name: _beside(times[name], "peer", "ddpprof") for name in ("one_rank", "four_ranks")},
        "floor": {name: _beside(found, "ddpprof", "floor") for name, found in times["floor"].items()},
        "growth": [{"mb": round(one["json_bytes"][0] / MB), **_of(one, "ddpprof")} for one in times["growth"]],
    }


def _of(found: dict[str, Any], who: str) -> dict[str, Any]:
    seconds = {"seconds": round(median(run["seconds"] for run in found[who]), 2)}
    peaks = found["peak_bytes"].get(who)
    return seconds if peaks is None else {**seconds, "peak_mb": round(max(peaks) / MB)}


def _beside(found: dict[str, Any], slow: str, fast: str) -> dict[str, Any]:
    ratio = median(run["seconds"] for run in found[slow]) / median(run["seconds"] for run in found[fast])
    overlaps = {who: found[who][0].get("overlap_percent") for who in (slow, fast)}
    both = [values for values in overlaps.values() if values is not None]
    return {
        "mb": round(found["json_bytes"][0] / MB),
        "rounds": len(found[fast]),
        slow: _of(found, slow),
        fast: _of(found, fast),
        "ratio": round(ratio, 2),
        "largest_difference_percent": (
            round(max(abs(a - b) for a, b in zip(*both, strict=True)), 3) if len(both) == 2 else None
        ),
    }


def table(results: dict[str, Any]) -> list[str]:
    lines = ["| | ddpprof | compared with | ratio |", "|---|---|---|---|"]
    for name, found in results["peer_comparison"].items():
        ours, peer = found["ddpprof"], found["peer"]
        lines.append(
            f"| {name.replace('_', ' ')} of {found['mb']} MB, from reading the file to the overlap "
            f"| {ours['seconds']} s, {ours['peak_mb']} MB "
            f"| peer: {peer['seconds']} s, {peer['peak_mb']} MB "
            f"| {found['ratio']:.0f} × as fast, 1/{peer['peak_mb'] / ours['peak_mb']:.0f} of the memory |"
        )
    for name, found in results["floor"].items():
        ours, floor = found["ddpprof"], found["floor"]
        lines.append(
            f"| {found['mb']} MB, {name}: from reading the file to the overlap "
            f"| {ours['seconds']} s, {ours['peak_mb']} MB "
            f"| decoding alone: {floor['seconds']} s | {found['ratio']} × the floor |"
        )
    for found in results["growth"]:
        per_gb = found["seconds"] / found["mb"] * 1000
        lines.append(
            f"| {found['mb']} MB | {found['seconds']} s, {found['peak_mb']} MB | | {per_gb:.1f} s per GB of JSON |"
        )
    return lines


def draw(results: dict[str, Any], figure: Any) -> None:
    time, memory = figure.subplots(1, 2)
    sizes = [found["mb"] for found in results["growth"]]
    time.plot(sizes, [found["seconds"] for found in results["growth"]], "o-", color=COLOURS[0], label="ddpprof")
    memory.plot(sizes, [found["peak_mb"] for found in results["growth"]], "o-", color=COLOURS[0], label="ddpprof")
    memory.plot(sizes, [60 + 0.06 * size for size in sizes], "--", color="grey", label="60 MB + 6 %")
    one = results["peer_comparison"]["one_rank"]
    time.plot(one["mb"], one["peer"]["seconds"], "s", color=COLOURS[1], label="peer")
    memory.plot(one["mb"], one["peer"]["peak_mb"], "s", color=COLOURS[1], label="peer")
    for axes, label in ((time, "seconds, load to overlap"), (memory, "peak MB")):
        axes.set(xscale="log", yscale="log", xlabel="MB of JSON", ylabel=label)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
