"""How often is what ddpprof says of a fault right, and how often is a pause called a hang?

python analyses/fault_injection/analyse.py
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from study import COLOURS, publish

sys.path.insert(0, str(Path(__file__).resolve().parent))
from planted_faults import CLASSES, PAUSES, SHARES, share_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Trial = dict[str, Any]
Row = dict[str, Any]
FIRST_TRIED = SHARES[2:]
"""shares whose first trials are kept"""
LAST_PARAMETER = {"mlp": "last.weight", "convolutions": "head.2.weight", "attention": "last.weight"}
"""a parameter of each model's first bucket, which has the last layers"""
UNUSED = ["branch.weight", "branch.bias"]
ABORTED = ("all_reduce", "died")
"""a fault, and what also counts as right: gloo aborts a process that gets a message of another size"""


def verdict_of(trial: Trial) -> dict[str, Any]:
    return trial["verdict"] or {}


def is_said(trial: Trial) -> bool:
    """Return whether the launcher said what is right of a job that trains on."""
    says = CLASSES[trial["fault"]].says.format(rank=trial["rank"])
    return trial["verdict"] is None and re.search(says, trial["said"]) is not None


def right_rank(trial: Trial) -> bool:
    planted, rank = CLASSES[trial["fault"]], verdict_of(trial).get("rank")
    if not planted.kinds:
        return is_said(trial)
    if trial["verdict"] is None:
        return False
    right = {"culprit": rank == trial["rank"], "nobody": rank is None, "any": True}
    return any(right[who] for who in planted.blames.split(" or "))


def right_fault(trial: Trial) -> bool:
    kinds, found = CLASSES[trial["fault"]].kinds, verdict_of(trial).get("fault")
    return (found in kinds or (trial["fault"], found) == ABORTED) if kinds else is_said(trial)


def right_line(trial: Trial) -> bool | None:
    """Return whether a marked line is named; ``None`` if none could be, or gloo aborted the process."""
    if not trial["lines"] or (trial["fault"], verdict_of(trial).get("fault")) == ABORTED:
        return None
    return any(line in verdict_of(trial).get("places", ()) for line in trial["lines"])


def right_bucket(trial: Trial) -> bool | None:
    """Return whether the bucket and its parameters are right; ``None`` if no bucket is missing.

    A model with buffers waits for their broadcast before the forward; then the ranks miss no bucket yet.
    """
    verdict = verdict_of(trial)
    if trial["fault"] == "unused":
        return verdict.get("parameters") == UNUSED
    planted, waits_for_buffers = CLASSES[trial["fault"]], trial["model"] == "convolutions"
    if not planted.has_bucket or (waits_for_buffers and verdict.get("bucket") is None):
        return None
    return verdict.get("bucket") == 0 and LAST_PARAMETER[trial["model"]] in verdict.get("parameters", ())


def right_waiting(trial: Trial) -> bool | None:
    """Return whether all other ranks are said to wait; ``None`` if they need not."""
    planted = CLASSES[trial["fault"]]
    if not (planted.kinds and planted.others_wait):
        return None
    others = [rank for rank in range(trial["ranks"]) if rank != trial["rank"]]
    return verdict_of(trial).get("waiting") == others


def agrees(trial: Trial) -> bool | None:
    """Return whether `ddpprof diagnose`, whenever it was asked, said the same as the launcher.

    ``None`` for a job that trains on. The launcher's verdict on a job that failed is known in words only.
    """
    if not CLASSES[trial["fault"]].kinds:
        return None
    verdict = verdict_of(trial)
    said = [diagnosis for diagnosis in trial["diagnosed"].values() if diagnosis is not None]
    if any((one["fault"], one["rank"]) != (verdict.get("fault"), verdict.get("rank")) for one in said):
        return False
    if trial["while"] == "ended" and trial["said"].partition("\n")[0] not in trial["advice"]:
        return False
    return bool(said and trial["said"]) and all(one["exit_code"] == 1 for one in said)


def right_advice(trial: Trial) -> bool | None:
    """Return whether what is said leads to the right action; ``None`` if no pattern tells."""
    planted = CLASSES[trial["fault"]]
    if not planted.advice:
        return None
    if planted.misleading and re.search(planted.misleading, trial["advice"], re.IGNORECASE):
        return False
    return re.search(planted.advice, trial["advice"], re.IGNORECASE | re.DOTALL) is not None


def ends_after_advice(trial: Trial) -> bool | None:
    """Return whether rank and advice are right, and the job ends well after the advice was followed.

    ``None`` if there is no script for that.
    """
    if trial["fixed_ends_well"] is None:
        return None
    is_right = right_advice(trial) if CLASSES[trial["fault"]].advice else is_said(trial)
    return bool(is_right and right_rank(trial) and trial["fixed_ends_well"])


CHECKS: dict[str, Callable[[Trial], bool | None]] = {
    "rank": right_rank,
    "fault": right_fault,
    "line": right_line,
    "bucket": right_bucket,
    "waiting": right_waiting,
    "diagnose": agrees,
    "advice": right_advice,
    "ends": ends_after_advice,
}


def measure(recordings: Path) -> dict[str, Any]:
    recorded: list[Trial] = json.loads((recordings / "trials.json").read_text(encoding="utf-8"))
    first: list[Trial] = json.loads((recordings / "first_trials.json").read_text(encoding="utf-8"))
    mixed = json.loads((recordings / "pauses.json").read_text(encoding="utf-8"))
    trials = [one for one in recorded if "fault" in one]
    rows = [_of_trials(fault, of) for fault in CLASSES if (of := [one for one in trials if one["fault"] == fault])]
    pauses = _of_pauses(recorded)
    return {
        "ddpprof": dict(sorted(Counter(one["ddpprof"] for one in recorded).items())),
        "trials": len(trials),
        "launchers": dict(sorted(Counter(trial["launcher"] for trial in trials).items())),
        "faults": rows,
        "shares": {share: _of_share(share, trials, pauses) for share in SHARES},
        "first_trials": {share: _of_first(share, first) for share in FIRST_TRIED},
        "pauses": pauses,
        "mixed": {
            "pauses": sum(sum(job["pauses"].values()) for job in mixed),
            "jobs": len(mixed),
            "jobs_that_ended_well": sum(job["is_over"] for job in mixed),
            "alarms": sum(len(job["alarms"]) for job in mixed),
        },
    }


def _of_trials(name: str, trials: Sequence[Trial]) -> Row:
    found: Row = {"planted": name, "share": share_of(name), "trials": len(trials)}
    for check, is_right in CHECKS.items():
        known = [value for value in map(is_right, trials) if value is not None]
        found[check] = [sum(known), len(known)]
    hung = [trial["seconds"] for trial in trials if trial["while"] == "hanging" and trial["seconds"] is not None]
    found["seconds"] = [round(median(hung), 1), round(max(hung), 1)] if hung else None
    return found


def _of_first(share: str, first: Sequence[Trial]) -> dict[str, Any]:
    faults = [one for one in first if "fault" in one]
    classes = [_of_trials(one["fault"], [one]) for one in faults if share_of(one["fault"]) == share]
    return {"classes": classes, "share": _of_share(share, faults, _of_pauses(first))}


def _of_pauses(recorded: Sequence[dict[str, Any]]) -> list[Row]:
    return [_of_pause(one) for name in PAUSES for one in recorded if one.get("pause") == name]


def _of_pause(job: dict[str, Any]) -> Row:
    name = job["pause"]
    kept = {"pauses": job["times"], "alarms": len(job["alarms"]), "ended_well": job["is_over"]}
    return {"pause": name, "share": share_of(name), "is_promised": PAUSES[name].is_promised, **kept}


def _of_share(share: str, trials: Sequence[Trial], pauses: Sequence[Row]) -> dict[str, Any]:
    of_share = [trial for trial in trials if share_of(trial["fault"]) == share]
    jobs = [job for job in pauses if job["share"] == share]
    quiet = [job["alarms"] == 0 and job["ended_well"] for job in jobs]
    promised = [is_quiet for is_quiet, job in zip(quiet, jobs, strict=True) if job["is_promised"]]
    return {
        "faults": _of_trials(share, of_share),
        "classes": len({trial["fault"] for trial in of_share}),
        "quiet_pauses": [sum(quiet), len(quiet)],
        "quiet_promised_pauses": [sum(promised), len(promised)],
    }


_QUIET = "pauses that are not reported as hangs"
HEADER = (
    "fault",
    "rank",
    "kind",
    "line",
    "bucket",
    "who waits",
    "`diagnose` agrees",
    "advice",
    "advice ends the fault",
    "seconds from fault to verdict: median, longest",
)


def table(results: dict[str, Any]) -> list[str]:
    lines = [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    for share in SHARES:
        rows = [row for row in results["faults"] if row["share"] == share]
        if rows:
            summary = results["shares"][share]
            lines += [*map(_line, rows), _line({**summary["faults"], "planted": f"**all {share} classes**"})]
    for share, first in results["first_trials"].items():
        lines += [
            _line({**row, "planted": f"{row['planted']}, first trial"}) for row in first["classes"] if _is_wrong(row)
        ]
        lines.append(_line({**first["share"]["faults"], "planted": f"**all {share} classes, first trials**"}))
    for share in SHARES:
        quiet, of = results["shares"][share]["quiet_pauses"]
        if of:
            noisy = [job["pause"] for job in results["pauses"] if job["share"] == share and _is_noisy(job)]
            wrong = f"; called a hang: {', '.join(noisy)}" if noisy else ""
            lines.append(f"| {share} {_QUIET} | {quiet} of {of}{wrong} {'| ' * (len(HEADER) - 1)}|")
    for share, first in results["first_trials"].items():
        quiet, of = first["share"]["quiet_pauses"]
        lines.append(f"| {share} {_QUIET}, first trials | {quiet} of {of} {'| ' * (len(HEADER) - 1)}|")
    mixed = results["mixed"]
    left_alone = f"{mixed['pauses'] - mixed['alarms']} of {mixed['pauses']}"
    return [*lines, f"| six kinds of pauses, mixed, not reported as hangs | {left_alone} {'| ' * (len(HEADER) - 1)}|"]


def _is_wrong(row: Row) -> bool:
    return any(right < of for right, of in (row[name] for name in CHECKS))


def _is_noisy(job: Row) -> bool:
    return job["alarms"] > 0 or not job["ended_well"]


def _line(row: Row) -> str:
    seconds = ", ".join(map(str, dict.fromkeys(row["seconds"] or ())))  # both are the same if there is but one trial
    return f"| {' | '.join([row['planted'], *(_share(row[name]) for name in CHECKS), seconds])} |"


def _share(counted: Sequence[int]) -> str:
    right, of = counted
    if of <= 1:
        return ("yes" if right else "no") if of else ""
    return f"{right} of {of}"


def draw(results: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    first, shares = [one["share"] for one in results["first_trials"].values()], [*results["shares"].values()]
    sets = {f"first trials of the last {sum(share['classes'] for share in first)} classes": first}
    sets[f"trials of all {sum(share['classes'] for share in shares)} classes after mending"] = shares
    for number, (label, of) in enumerate(sets.items()):
        counted = [tuple(sum(share["faults"][name][at] for share in of) for at in (0, 1)) for name in CHECKS]
        places = [place + 0.4 * (number - 0.5) for place in range(len(CHECKS))]
        parts = [right / most if most else 0.0 for right, most in counted]
        bars = axes.bar(places, parts, 0.4, color=COLOURS[number], label=label)
        axes.bar_label(bars, [f"{right}/{most}" if most else "" for right, most in counted], fontsize=7)
    labels = [name.replace("`", "") for name in HEADER[1:-1]]
    axes.set_xticks(range(len(CHECKS)), labels, rotation=20, ha="right", fontsize=8)
    axes.set_ylim(0, 1.25)
    axes.set_ylabel("share that is right")
    axes.legend(loc="upper right", ncols=len(sets), fontsize=8)


if __name__ == "__main__":
    publish(Path(__file__).resolve().parent, measure, table, draw)
