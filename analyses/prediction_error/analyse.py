"""Predict every point from one recorded run per set and the measured networks, and compare it with its measurement.

    error          of the predicted step, as a fraction of the measured one: the median of all visits of its point
    repeatability  between two measurements of a point, of every other visit each: their difference by their mean
    inside         error within the prediction's 95 % interval and twice the standard error of the measured step
    choice         the measured step at the cap that is predicted to be best, by the step at the cap that was best

python analyses/prediction_error/analyse.py
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from math import hypot, sqrt
from pathlib import Path
from statistics import median, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, ms, publish

import ddpprof

SETS = tuple((model, ranks) for ranks in (2, 4) for model in ("mlp", "convnet", "transformer"))
GBIT = (0.5, 1, 2, 4)
RECORDED_AT_GBIT = 1
HOPED_FOR = 0.02
"""part by which the chosen cap's step may be longer than the best one's"""
CAPS = ("1", "2", "5", "10", "None", "100")
_COLUMNS = (
    "model, ranks",
    "repeatability: median, p90",
    "error: median, p90",
    "bias",
    "error, bandwidth given: median, p90",
    "in the interval",
    "step time with the selected cap, above the shortest: median, worst",
)


def measure(recordings: Path) -> dict[str, Any]:
    sets = [_of_set(recordings, model, ranks) for model, ranks in SETS]
    points = [point for one in sets for point in one["points"]]
    return {"sets": sets, "all": _summary(points, [choice for one in sets for choice in one["choices"]])}


def _of_set(recordings: Path, model: str, ranks: int) -> dict[str, Any]:
    folder = recordings / f"{model}-{ranks}"
    measured = _measured(json.loads((folder / "points.json").read_text(encoding="utf-8"))["visits"])
    points, choices = [], []
    for gbit in GBIT:
        networks = recordings / f"network-{ranks}"
        each = _predicted(folder / "run", networks / f"{gbit:g}gbit.json")
        given = [] if gbit == RECORDED_AT_GBIT else ["--bandwidth", f"{gbit}Gbit"]
        one = _predicted(folder / "run", networks / f"{RECORDED_AT_GBIT}gbit.json", *given)
        of_link_points = [
            _point(f"{model}, {ranks} ranks", gbit, cap, measured[gbit, cap], each[cap], one[cap]) for cap in CAPS
        ]
        points += of_link_points
        of_link = {point["cap"]: point["measured_ms"] for point in of_link_points}
        best = min(CAPS, key=lambda cap: each[cap]["step_ns"])
        fastest = min(of_link, key=lambda cap: of_link[cap])
        over = round(of_link[best] / of_link[fastest] - 1, 4)
        beyond_noise = _is_surely_over(measured[gbit, best], measured[gbit, fastest])
        choices.append({"gbit": gbit, "cap": best, "over_best": over, "is_surely_over": beyond_noise})
    return {"model": model, "ranks": ranks, "points": points, "choices": choices, **_summary(points, choices)}


def _measured(visits: Iterable[Mapping[str, Any]]) -> dict[tuple[float, str], list[float]]:
    """Return each visit's median step, by point."""
    found: dict[tuple[float, str], list[float]] = {}
    for visit in visits:
        found.setdefault((visit["gbit"], str(visit["bucket_cap_mb"])), []).append(median(visit["step_ns"]))
    return found


def _predicted(run: Path, network: Path, *others: str) -> dict[str, dict[str, Any]]:
    """Return the prediction of ``ddpprof whatif`` for each cap."""
    caps = ",".join(cap for cap in CAPS if cap != "None")
    own = network.with_name(f"{RECORDED_AT_GBIT}gbit.json")
    words = ["whatif", str(run), "--network", str(network), "--run-network", str(own)]
    words += ["--bucket-cap-mb", f"default,{caps}"]
    said = io.StringIO()
    with redirect_stdout(said):
        code = ddpprof.main([*words, "--format", "json", "--no-cache", *others])
    assert code == 0, said.getvalue()
    outcomes = json.loads(said.getvalue())["outcomes"][1:]
    order = ["None", *(cap for cap in CAPS if cap != "None")]
    return {cap: outcome["prediction"] for cap, outcome in zip(order, outcomes, strict=True)}


def _point(
    of: str, gbit: float, cap: str, visits: Sequence[float], each: Mapping[str, Any], one: Mapping[str, Any]
) -> dict[str, Any]:
    noise_ns = _error_of_median(visits)
    step_ns, first, second = median(visits), median(visits[::2]), median(visits[1::2])
    return {
        "of": f"{of}, {gbit:g} Gbit/s, bucket_cap_mb={cap}",
        "gbit": gbit,
        "cap": cap,
        "visits": len(visits),
        "measured_ms": ms(step_ns),
        "repeatability": round(abs(first - second) / (first + second) * 2, 4),
        "predicted_ms": ms(each["step_ns"]),
        "error": round(each["step_ns"] / step_ns - 1, 4),
        "error_by_bandwidth": round(one["step_ns"] / step_ns - 1, 4),
        "in_interval": abs(each["step_ns"] - step_ns) <= hypot((each["high_ns"] - each["low_ns"]) / 2, 2 * noise_ns),
    }


def _is_surely_over(chosen: Sequence[float], fastest: Sequence[float]) -> bool:
    """Return whether the excess is beyond the hoped-for part by twice the standard error of the median over rounds."""
    ratios = [one / other for one, other in zip(chosen, fastest, strict=True)]
    return median(ratios) - 2 * _error_of_median(ratios) > 1 + HOPED_FOR


def _error_of_median(values: Sequence[float]) -> float:
    return 1.25 * stdev(values) / sqrt(len(values))


def _summary(points: Sequence[Mapping[str, Any]], choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    errors = sorted(abs(point["error"]) for point in points)
    by_bandwidth = sorted(abs(point["error_by_bandwidth"]) for point in points)
    repeated = sorted(point["repeatability"] for point in points)
    return {
        "repeatability": [median(repeated), _nine_tenths(repeated)],
        "error": [median(errors), _nine_tenths(errors)],
        "bias": median(point["error"] for point in points),
        "error_by_bandwidth": [median(by_bandwidth), _nine_tenths(by_bandwidth)],
        "in_interval": round(sum(point["in_interval"] for point in points) / len(points), 3),
        "choice_over_best": [median(one["over_best"] for one in choices), max(one["over_best"] for one in choices)],
        "chosen": {
            "all": len(choices),
            "within": sum(one["over_best"] <= HOPED_FOR for one in choices),
            "surely_over": sum(one["is_surely_over"] for one in choices),
        },
        "worst": max(points, key=lambda point: abs(point["error"]))["of"],
    }


def _nine_tenths(ordered: Sequence[float]) -> float:
    return ordered[round(0.9 * (len(ordered) - 1))]


def table(results: dict[str, Any]) -> list[str]:
    lines = [
        f"| {' | '.join(_COLUMNS)} |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = [(f"{one['model']}, {one['ranks']}", one) for one in results["sets"]]
    for name, one in [*rows, ("all", results["all"])]:
        lines.append(
            f"| {name} | {_pair(one['repeatability'])} | {_pair(one['error'])} | {one['bias']:+.1%} "
            f"| {_pair(one['error_by_bandwidth'])} | {one['in_interval']:.0%} | {_pair(one['choice_over_best'])} |"
        )
    return lines


def _pair(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1%}" for value in values)


def draw(results: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    for colour, one in zip(COLOURS, results["sets"], strict=False):
        points = one["points"]
        axes.plot(
            [point["measured_ms"] for point in points],
            [point["predicted_ms"] for point in points],
            "o" if one["ranks"] == 2 else "s",
            color=colour,
            markersize=4,
            label=f"{one['model']}, {one['ranks']} ranks",
        )
    ends = axes.get_xlim()
    axes.plot(ends, ends, color="grey", lw=1)
    axes.set(xlabel="measured step, ms", ylabel="predicted step, ms", xscale="log", yscale="log")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
