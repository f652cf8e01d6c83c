"""From the modules on each road to results.json, the README's table and the picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from count import GOALS, WHOLE, whole_roads
from study import COLOURS, publish


def measure(recordings: Path) -> dict[str, Any]:
    roads = json.loads((recordings / "roads.json").read_text(encoding="utf-8"))
    found = whole_roads(roads["recorded"], roads["read"])
    return {"roads": [_of(name, modules) for name, modules in found.items()]}


def _of(name: str, modules: list[str]) -> dict[str, Any]:
    short = [one.removeprefix("ddpprof.") for one in modules]
    return {"road": name, "num_modules": len(modules), "goal": GOALS[name], "modules": short}


def table(results: dict[str, Any]) -> list[str]:
    lines = ["| path | number of modules | goal | modules, in order |", "|---|---|---|---|"]
    for one in results["roads"]:
        which = "see `results.json`" if one["road"] == WHOLE else ", ".join(one["modules"])
        lines.append(f"| {one['road']} | {one['num_modules']} | {one['goal']} | {which} |")
    return lines


def draw(results: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    roads = [one for one in results["roads"] if one["road"] != WHOLE]
    names = [one["road"].replace(" → ", "\n→ ") for one in roads]
    axes.barh(names, [one["num_modules"] for one in roads], color=COLOURS[0], height=0.5, label="modules")
    axes.plot([one["goal"] for one in roads], names, "|", color=COLOURS[1], markersize=40, label="goal", linestyle="")
    axes.invert_yaxis()
    axes.set(xlabel="modules of ddpprof on the path")
    axes.legend(frameon=False, markerscale=0.3)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
