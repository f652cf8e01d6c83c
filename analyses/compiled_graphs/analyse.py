"""Compare the setting that the report advises with all others, by steps that were run in turn.

    beside   the advised setting's step by another's: the median over rounds in which both ran, with a 95 % interval

python analyses/compiled_graphs/analyse.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, interval_of_median, median_ms, publish

_MODELS = ("mlp", "transformer", "convnet", "embeddings")
_COLUMNS = (
    "model",
    "graphs: default, suggested",
    "suggested setting",
    "step with the default, ms",
    "step with the suggested setting, ms",
    "relative to the default",
    "fastest of the sweep, ms",
    "relative to the fastest of the sweep",
    "one graph, ms",
    "orders of wrapping differ by",
)


def measure(recordings: Path) -> dict[str, Any]:
    cases = [_of_model(recordings / f"{model}.json") for model in _MODELS]
    return {
        "cases": cases,
        "worst_beside_fastest": max(one["beside_fastest"][0] for one in cases),
        "gains": [round(1 - one["beside_default"][0], 4) for one in cases],
    }


def _of_model(path: Path) -> dict[str, Any]:
    made = json.loads(path.read_text(encoding="utf-8"))
    settings, visits, met = made["settings"], made["visits"], made["meetings"]
    advised, default, fastest = made["advised"][0], made["default"], _fastest_swept(made)
    of_all = [_steps(visits, setting) for setting in range(len(settings))]
    uncut = [steps for one, steps in zip(settings, of_all, strict=True) if one["optimize_ddp"] == "no_optimization"]
    return {
        "model": path.stem,
        "chains": [[_link(one) for one in chain["findings"]] for chain in made["chains"]],
        "advised": _label(settings[advised]),
        "fastest": _label(settings[fastest]),
        "step_ms": {
            "default": median_ms(_steps(met, default)),
            "advised": median_ms(_steps(met, advised)),
            "fastest": median_ms(_steps(met, fastest) or of_all[fastest]),
            "uncut": median_ms(step for steps in uncut for step in steps),
        },
        "beside_default": _ratio(met, advised, default),
        "beside_fastest": [1.0, 1.0, 1.0] if fastest == advised else _beside(made, advised, fastest),
        "orders": round(median(_orders(settings, of_all)), 4),
        "all_ms": {_label(one): median_ms(steps) for one, steps in zip(settings, of_all, strict=True)},
    }


def _link(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return one step of a chain of advice: a job, its graphs, and what the report said of it."""
    finding = found["found"]
    said = None if finding is None else {"title": finding["title"], "change": finding["change"]["values"]}
    return {"job": _label(found["setting"]), "graphs": found["graphs"], "said": said}


def _fastest_swept(made: Mapping[str, Any]) -> int:
    """Return the fastest setting of the sweep, which does not contain the advised ones."""
    swept = [setting for setting in range(len(made["settings"])) if setting not in made["advised"]]
    return min(swept, key=lambda setting: median(_steps(made["visits"], setting)))


def _beside(made: Mapping[str, Any], one: int, other: int) -> list[float]:
    """Compare in the meetings or, if the other was not among the fastest, in the visits."""
    met = {visit["setting"] for visit in made["meetings"]}
    return _ratio(made["meetings"] if other in met else made["visits"], one, other)


def _steps(visits: Sequence[Mapping[str, Any]], setting: int) -> list[float]:
    return [ns for one in visits if one["setting"] == setting for ns in one["step_ns"]]


def _by_round(visits: Sequence[Mapping[str, Any]], setting: int) -> list[float]:
    own = sorted((one["round"], median(one["step_ns"])) for one in visits if one["setting"] == setting)
    return [step_ns for _, step_ns in own]


def _ratio(visits: Sequence[Mapping[str, Any]], one: int, other: int) -> list[float]:
    """Return the ratio with the ends of its interval."""
    ratios = [own / its for own, its in zip(_by_round(visits, one), _by_round(visits, other), strict=True)]
    return [round(value, 4) for value in (median(ratios), *interval_of_median(ratios))]


def _orders(settings: Sequence[Mapping[str, Any]], of_all: Sequence[Sequence[float]]) -> list[float]:
    """Return the step of each setting with the model compiled first by that with DDP first."""
    steps = {(one["order"], _rest(one)): median(own) for one, own in zip(settings, of_all, strict=True)}
    return [
        step / steps["ddp_first", rest]
        for (order, rest), step in steps.items()
        if order == "model_first" and ("ddp_first", rest) in steps
    ]


def _rest(setting: Mapping[str, Any]) -> str:
    return json.dumps([setting["optimize_ddp"], setting["ddp"]])


def _label(setting: Mapping[str, Any]) -> str:
    ddp = setting["ddp"]
    order = "compile(DDP)" if setting["order"] == "ddp_first" else "DDP(compile)"
    mode = "" if setting["optimize_ddp"] == "ddp_optimizer" else ", not split"
    caps = "default cap" if not ddp else f"{ddp.get('bucket_cap_mb') or ddp.get('bucket_cap_mb_list')} MiB"
    return f"{order}{mode}, {caps}"


def table(results: dict[str, Any]) -> list[str]:
    rows = [_row(one) for one in results["cases"]]
    return [f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}", *rows]


def _row(one: Mapping[str, Any]) -> str:
    step, chain = one["step_ms"], one["chains"][0]
    return (
        f"| {one['model']} | {chain[0]['graphs']}, {chain[-1]['graphs']} | {one['advised']} | {step['default']:.1f} "
        f"| {step['advised']:.1f} | {_percent(one['beside_default'])} | {step['fastest']:.1f} ({one['fastest']}) "
        f"| {_percent(one['beside_fastest'])} | {step['uncut']:.1f} | {100 * (one['orders'] - 1):+.1f} % |"
    )


def _percent(ratio: Sequence[float]) -> str:
    middle, low, high = (f"{100 * (value - 1):+.1f}" for value in ratio)
    return f"{middle} % ({low} – {high})"


def draw(results: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    for position, (colour, one) in enumerate(zip(COLOURS, results["cases"], strict=False)):
        default = one["step_ms"]["default"]
        steps = [step / default for step in one["all_ms"].values()]
        axes.plot([position] * len(steps), steps, "_", color=colour, ms=22, alpha=0.6)
        axes.plot([position], [one["step_ms"]["advised"] / default], "o", color="black", ms=6)
    axes.axhline(1, color="grey", lw=0.8, ls=":")
    axes.set_xticks(range(len(results["cases"])), [one["model"] for one in results["cases"]])
    axes.set_ylabel("step, by that of torch.compile(DDP(model))")
    axes.plot([], [], "o", color="black", label="advised")
    axes.plot([], [], "_", color="grey", ms=12, label="every setting")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
