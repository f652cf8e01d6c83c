"""How often is what a report advises right? Share of cases, and predicted and measured gains of the first fix.

    found      the planted cause is among the first two findings; of the cases in which it costs time
    widening   the factor on a rule's predicted intervals with which 95 % of the measured gains are inside
    uncertain  the report says that it is worth trying, not that it is the first fix
    confirmed  the first fix shortens the step beyond noise, by as much as was promised at least, or more
    inside     the measured gain's interval meets the promised one, or for a bound, ends below it

python analyses/advice/analyse.py
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from planted import CASES, is_advised, is_found
from study import COLOURS, ms, publish

_WORTH = 0.02
"""share of the step below which a report calls a measured gain noise"""
_COLUMNS = ("case", "problem found", "first fix", "predicted, ms", "measured, ms", "verdict")
_ORDER = (
    "failed",
    "changes the losses",
    "slower",
    "no difference",
    "cannot tell",
    "smaller than promised",
    "confirmed",
)


def measure(recordings: Path) -> dict[str, Any]:
    made = {one["case"]: one for one in json.loads((recordings / "cases.json").read_text(encoding="utf-8"))}
    cases = [_of_case(case.plant, made[case.name]) for case in CASES if case.name in made]
    planted = [one for one in cases if one["planted"] is not None and one["costs"]]
    all_tried = [one for one in cases if one["verdict"] is not None]
    tried = [one for one in all_tried if one["is_certain"]]
    uncertain = [one for one in all_tried if not one["is_certain"]]
    return {
        "cases": sorted(cases, key=lambda one: (_ORDER.index(one["verdict"]) if one["verdict"] else 99, one["case"])),
        "found": [sum(one["is_found"] for one in planted), len(planted)],
        "verdicts": dict(sorted(Counter(one["verdict"] for one in tried).items())),
        "confirmed": [sum(one["verdict"] == "confirmed" for one in tried), len(tried)],
        "uncertain_confirmed": [sum(one["verdict"] == "confirmed" for one in uncertain), len(uncertain)],
        "inside": [sum(bool(one["is_inside"]) for one in tried), len(tried)],
        "rules": _by_rule(tried),
        "slower": [sum(one["verdict"] == "slower" for one in tried), len(tried)],
        "clean_with_a_fix_in_vain": [
            sum(
                one["planted"] is None and one["is_certain"] and one["verdict"] not in (None, "confirmed")
                for one in cases
            ),
            sum(one["planted"] is None for one in cases),
        ],
    }


def _by_rule(tried: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Return for each rule how many trials of it came to a verdict, how many confirmed it, and the widening."""
    decided = [one for one in tried if one["verdict"] != "cannot tell" and one["planted_by_script"] is False]
    rules = sorted({one["first_fix"] for one in decided})
    return {
        rule: [
            sum(one["first_fix"] == rule for one in decided),
            sum(one["first_fix"] == rule and one["verdict"] == "confirmed" for one in decided),
            _widening([one for one in decided if one["first_fix"] == rule]),
        ]
        for rule in rules
    }


def _widening(tried: Sequence[dict[str, Any]]) -> float:
    """Return the factor on predicted intervals with which 95 % of the measured gains are inside; at least 1."""
    needed = sorted(_needed(one["promised_ms"], one["measured_ms"]) for one in tried if len(one["promised_ms"]) > 1)
    return round(max(1.0, needed[ceil(_INSIDE * len(needed)) - 1]), 2) if needed else 1.0


_INSIDE = 0.95


def _needed(promised_ms: Sequence[float], measured_ms: Sequence[float]) -> float:
    """Return the factor with which a predicted interval reaches the measured one."""
    (gain, low, high), (_, least, most) = promised_ms, measured_ms
    if most < low:
        return (gain - most) / (gain - low)
    return (least - gain) / (high - gain) if least > high > gain else 1.0


def _of_case(plant: str | None, made: dict[str, Any]) -> dict[str, Any]:
    advised = [one["rule"] for one in made["findings"] if is_advised(one)]
    tried = made["tried"]
    number = None if tried is None else tried["promise"]["number"]
    return {
        "case": made["case"],
        "planted": plant,
        "is_found": is_found(plant, made["findings"]),
        "costs": _costs(made.get("mended")),
        "findings": advised[:3],
        "is_certain": number is None or _is_certain(made["findings"][number - 1]),
        "first_fix": None if tried is None else (tried["promise"]["rule"] or "corrected script"),
        "planted_by_script": None if tried is None else tried["promise"]["number"] is None,
        "promised_ms": None if tried is None else _promised(tried["promise"]),
        "measured_ms": None if tried is None or tried["measured"] is None else _interval(tried["measured"]),
        "verdict": None if tried is None else tried["outcome"],
        "is_inside": None if tried is None else _is_inside(tried),
    }


def _is_certain(finding: dict[str, Any]) -> bool:
    """Return whether a report calls it the first fix: it promises time, and its promise is beyond noise."""
    return not finding["is_noise"] and finding["gain_ns"] is not None


def _costs(mended: dict[str, Any] | None) -> bool:
    """Return whether what is planted costs time beyond noise, and enough to be reported; true if it was found."""
    if mended is None or mended["measured"] is None:
        return mended is None
    is_confirmed = mended["outcome"] == "confirmed"
    return is_confirmed and mended["measured"]["gain_ns"] >= _WORTH * (
        mended["step_ns"] + mended["measured"]["gain_ns"]
    )


def _interval(gain: dict[str, Any]) -> list[float]:
    return [ms(gain["gain_ns"]), ms(gain["low_ns"]), ms(gain["high_ns"])]


def _promised(promise: dict[str, Any]) -> list[float]:
    if promise["predicted"] is not None:
        return _interval(promise["predicted"])
    return [] if promise["gain_ns"] is None else [ms(promise["gain_ns"])]


def _is_inside(tried: dict[str, Any]) -> bool:
    promise, measured = tried["promise"], tried["measured"]
    if measured is None or measured["low_ns"] is None:
        return False
    if promise["predicted"] is not None:
        predicted = promise["predicted"]
        return bool(measured["high_ns"] >= predicted["low_ns"] and measured["low_ns"] <= predicted["high_ns"])
    if promise["gain_ns"] is None:
        return bool(measured["low_ns"] > 0)
    return bool(measured["high_ns"] > 0 and measured["low_ns"] <= promise["gain_ns"])


def table(results: dict[str, Any]) -> list[str]:
    rows = [f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}"]
    for one in results["cases"]:
        cells = (
            one["case"],
            _found(one),
            f"{one['first_fix'] or ''}{'' if one['is_certain'] else ', uncertain'}",
            _shown(one["promised_ms"]),
            _shown(one["measured_ms"]),
            one["verdict"] or "not tried",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _found(one: dict[str, Any]) -> str:
    if one["planted"] is None:
        return ""
    if one["is_found"]:
        return "yes"
    return f"no: {', '.join(one['findings']) or '-'}" if one["costs"] else "costs less than 2 %"


def _shown(gain: Sequence[float] | None) -> str:
    if not gain:
        return ""
    return f"up to {gain[0]:.1f}" if len(gain) == 1 else f"{gain[0]:.1f} ({gain[1]:.1f} – {gain[2]:.1f})"


def draw(results: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    known = [one for one in results["cases"] if one["measured_ms"] and one["promised_ms"]]
    for colour, is_bound, label in ((COLOURS[0], False, "predicted"), (COLOURS[1], True, "a bound")):
        points = [one for one in known if (len(one["promised_ms"]) == 1) is is_bound]
        axes.plot(
            [one["promised_ms"][0] for one in points],
            [one["measured_ms"][0] for one in points],
            "o",
            color=colour,
            label=label,
        )
    most = max((max(one["promised_ms"][0], one["measured_ms"][0]) for one in known), default=1)
    axes.plot([0, most], [0, most], color="#888888", linewidth=1)
    axes.set_xlabel("predicted gain, ms per step")
    axes.set_ylabel("measured gain, ms per step")
    axes.legend()


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
