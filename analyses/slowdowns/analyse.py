"""Compute the numbers and the picture of the study on slowdowns from its recordings.

Each job is shown to ddpprof again as it came, 5 steps at a time.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, publish

from ddpprof.model import UNKNOWN
from ddpprof.model import pulse_layout as layout
from ddpprof.model.pulse import Pulse, PulseIdentity, PulseSamples, PulseSteps, PulseSummaries
from ddpprof.model.tables import rows_of
from ddpprof.model.whole_run import StepSlowdown
from ddpprof.monitor.slowdowns import SlowdownWatch, common_steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNIT_NS, NOT_KNOWN = 10_000, 65_535
FED = 5
WITHIN, LEAST, POINTS = 30, 0.10, 3.0
ALIKE = {
    "link": "link",
    "data": "data",
    "neighbour": "processor",
    "throttled": "processor",
}
"""causes that ddpprof is to name; other plants are sleeps, in a part of the step on one rank or on all"""


def recorded(recordings: Path, job: str) -> dict[int, tuple[PulseSteps, PulseSamples]]:
    """Return each rank's steps and samples, with times in the study's unit."""
    kept = np.load(recordings / f"{job}.npz")
    return {rank: (_steps(kept, rank), _samples(kept, rank)) for rank in range(2)}


def _steps(kept: Any, rank: int) -> PulseSteps:
    times = {}
    num_steps = len(kept[f"{rank}.length_ns"])
    for field in fields(PulseSteps):
        name = f"{rank}.{field.name}"
        values = kept[name].astype(np.int64) if name in kept else np.zeros(num_steps, np.int64)
        times[field.name] = np.where(values == NOT_KNOWN, UNKNOWN, values * UNIT_NS)
    begin_ns, first = kept[f"{rank}.begin"]
    flags = kept[f"{rank}.flags"].astype(np.int64)
    length = times["length_ns"]
    started = begin_ns + np.concatenate(([0], np.cumsum(length)[:-1]))
    return PulseSteps(**{**times, "number": np.arange(first, first + num_steps), "start_ns": started, "flags": flags})


def _samples(kept: Any, rank: int) -> PulseSamples:
    at, memory, throttled, queued, faults, cpu = kept[f"{rank}.samples"].T
    unknown = np.full(len(at), UNKNOWN)
    return PulseSamples(at, memory, throttled, queued, faults, unknown, cpu, unknown, unknown)


def replayed(ranks: dict[int, tuple[PulseSteps, PulseSamples]]) -> list[tuple[int, StepSlowdown]]:
    """Return the slowdowns that were not withdrawn, each with the step in which it was detected."""
    watch, found = SlowdownWatch(), dict[int, int]()
    begin, end = (int(ranks[0][0].number[index]) for index in (0, -1))
    for until in range(begin + FED, end + 1 + FED, FED):
        pulses = {rank: _pulse(rank, steps, samples, until) for rank, (steps, samples) in ranks.items()}
        watch.update(pulses)
        for one in watch.slowdowns:
            found.setdefault(one.first_step, until)
    return [(found[one.first_step], one) for one in watch.slowdowns]


def _pulse(rank: int, steps: PulseSteps, samples: PulseSamples, until: int) -> Pulse:
    """Return the pulse as it was before step `until`."""
    there = rows_of(steps, steps.number < until)
    now_ns = int(there.start_ns[-1] + there.length_ns[-1])
    identity = PulseIdentity("", rank, 2, "", "", 0, 0, "", "")
    nothing = np.empty(0, np.int64)
    return Pulse(
        identity,
        layout.empty_state(),
        None,
        there,
        PulseSummaries(*(nothing for _ in fields(PulseSummaries))),
        rows_of(samples, samples.at_ns <= now_ns),
    )


def told_of_plants(recordings: Path, job: str) -> dict[str, Any]:
    """Return what was found of each plant of a job, and what was found without a plant."""
    ranks = recorded(recordings, job)
    plants = json.loads((recordings / f"{job}.json").read_text(encoding="utf-8"))
    found = replayed(ranks)
    steps = common_steps({rank: one for rank, (one, _) in ranks.items()})
    assert steps is not None
    log = np.log(steps.length_ns)
    rows, last_end, mine = [], 20, set[int]()
    for plant in plants:
        begin, end = plant["first_step"], plant["first_step"] + plant["num_steps"]
        normal = log[(steps.number >= max(last_end + 2, begin - 100)) & (steps.number < begin) & steps.is_usual]
        slow = log[(steps.number > begin) & (steps.number < end) & steps.is_usual]
        if not len(slow):
            continue
        size = float(np.exp(np.median(slow) - np.median(normal)) - 1)
        row: dict[str, Any] = {"kind": plant["kind"], "ranks": [plant["rank"]] if plant["rank"] is not None else [0, 1]}
        row |= {"noise": round(max(_noise(normal), _noise(slow)), 3)}
        row |= {"size": round(size, 3), "found_after": None, "error_points": None, "cause": None, "is_right": False}
        overlapping = [
            index
            for index, (_, one) in enumerate(found)
            if one.first_step < end - 5 and (one.last_step is None or one.last_step > begin + 5) and index not in mine
        ]
        mine |= set(overlapping)
        if overlapping:
            one = max((found[index][1] for index in overlapping), key=lambda one: _overlap(one, begin, end))
            row["found_after"] = min(found[index][0] for index in overlapping) - begin
            row["error_points"] = round(100 * abs(one.growth - size), 2)
            row["cause"] = f"{one.cause}{f' {one.part}' if one.part else ''} on {list(one.ranks)}"
            row["is_right"] = _is_right(plant, one)
        rows.append(row)
        last_end = end
    others = [one for index, (_, one) in enumerate(found) if index not in mine]
    return {
        "job": job,
        "steps": len(steps),
        "flagged": int((~steps.is_usual).sum()),
        "normal_ms": round(float(np.exp(np.median(log[steps.is_usual]))) / 1e6, 1),
        "plants": rows,
        "without_a_plant": [[one.first_step, one.last_step, round(one.growth, 3), str(one.cause)] for one in others],
    }


def _noise(logs: Any) -> float:
    """Return how much steps differ: 1.48 times the median deviation, which is the deviation of normal values."""
    return 1.48 * float(np.median(np.abs(logs - np.median(logs))))


def _overlap(one: StepSlowdown, begin: int, end: int) -> int:
    return min(end, end if one.last_step is None else one.last_step) - max(begin, one.first_step)


def _is_right(plant: dict[str, Any], one: StepSlowdown) -> bool:
    """Return whether cause, ranks and part are those of the plant."""
    kind, ranks = plant["kind"], (0, 1) if plant["rank"] is None else (plant["rank"],)
    if kind in ("link", "neighbour", "throttled"):
        return str(one.cause) == ALIKE[kind]
    expected = ALIKE.get(kind, "everybody" if plant["rank"] is None else "own time")
    return str(one.cause) == expected and one.ranks == ranks and str(one.part) == kind


def measure(recordings: Path) -> dict[str, Any]:
    jobs = [told_of_plants(recordings, job.stem) for job in sorted(recordings.glob("*.npz"))]
    simulated = json.loads((recordings / "simulation.json").read_text(encoding="utf-8"))
    steady = json.loads((recordings / "steady.json").read_text(encoding="utf-8"))
    large = [row for job in jobs for row in job["plants"] if row["size"] >= LEAST]
    found = [row for row in large if row["found_after"] is not None]
    alarms = simulated["false_alarms"].values()
    rows = [row for noise in simulated["plants"].values() for row in noise]
    return {
        "jobs": jobs,
        "real": {
            "steps": sum(job["steps"] for job in jobs),
            "flagged": sum(job["flagged"] for job in jobs),
            "plants": len(large),
            "smaller_plants": sum(len(job["plants"]) for job in jobs) - len(large),
            "found_in_time": sum(0 < row["found_after"] <= WITHIN for row in found),
            "slow_already": sum(row["found_after"] <= 0 for row in found),
            "right_cause": sum(row["is_right"] for row in found),
            "found": len(found),
            "within_3_points": sum(row["error_points"] <= POINTS for row in found),
            "without_a_plant": sum(len(job["without_a_plant"]) for job in jobs),
            "by_kind": {
                kind: dict(Counter(str(row["cause"]) for row in large if row["kind"] == kind))
                for kind in sorted({row["kind"] for row in large})
            },
        },
        "steady": {
            "steps": sum(job["steps"] for job in steady.values()),
            "slowdowns": sum(len(job["slowdowns"]) for job in steady.values()),
            "said": sum(len(job["said"]) for job in steady.values()),
        },
        "simulated": {
            "steady_steps": sum(one["steps"] for one in alarms),
            "false_alarms": sum(one["alarms"] for one in alarms),
            "withdrawn": sum(one["withdrawn"] for one in alarms),
            **{
                name: sum(row[name] for row in rows) for name in ("plants", "found_in_time", "within_3_points", "ended")
            },
        },
        "simulation": simulated,
    }


def share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({100 * part / whole:.1f} %)" if whole else "")


def table(results: dict[str, Any]) -> list[str]:
    real, steady, simulated = results["real"], results["steady"], results["simulated"]
    planted, found = simulated["plants"], real["found"]
    alarms, withdrawn = simulated["false_alarms"], simulated["withdrawn"]
    of_steady = f"{alarms} in {simulated['steady_steps']:,} steady steps, {withdrawn} withdrawn"
    points = f"size within {POINTS:.0f} percentage points"
    rows = (
        (
            f"found within {WITHIN} steps",
            share(simulated["found_in_time"], planted),
            share(real["found_in_time"], real["plants"]),
        ),
        ("began while another slowdown was reported", "", share(real["slow_already"], real["plants"])),
        ("found, no matter when", "", share(found, real["plants"])),
        (points, share(simulated["within_3_points"], planted), share(real["within_3_points"], found)),
        ("end of the slowdown found", share(simulated["ended"], planted), ""),
        ("right cause, part and rank", "", share(real["right_cause"], found)),
        ("slowdowns that were not injected", "", f"{real['without_a_plant']} in {real['steps']:,} steps"),
        ("slowdowns in steady jobs", of_steady, f"{steady['slowdowns']} in {steady['steps']:,} steps"),
    )
    return [
        "| | simulated jobs | real jobs of two ranks |",
        "|---|---|---|",
        *(f"| {name} | {of_simulated} | {of_real} |" for name, of_simulated, of_real in rows),
    ]


def draw(results: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    kinds = sorted({row["kind"] for job in results["jobs"] for row in job["plants"]})
    for number, kind in enumerate(kinds):
        rows = [
            row
            for job in results["jobs"]
            for row in job["plants"]
            if row["kind"] == kind and row["error_points"] is not None
        ]
        sizes = [100 * row["size"] for row in rows]
        found_after, again = [row["found_after"] for row in rows], number >= len(COLOURS)
        colour, marker = COLOURS[number % len(COLOURS)], "^" if again else "o"
        axes.scatter(sizes, found_after, s=18, label=kind, color=colour, marker=marker)
    axes.axhline(WITHIN, color="#888888", linewidth=0.8)
    axes.set_xlabel("size of the planted slowdown, % of the normal step")
    axes.set_ylabel("steps until it was found")
    axes.legend(frameon=False, fontsize=8, ncols=2)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
