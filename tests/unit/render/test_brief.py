"""A report and a comparison in short: what is in them, and that they stay short."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from reports import compare_runs, report

from ddpprof.comparison import SettingChange
from ddpprof.engine.finding import Change, ChangeKind, Finding, Predicted, ddp_change
from ddpprof.render.brief import MOST_BYTES, Brief, brief_comparison, brief_report
from ddpprof.render.json import render_json
from ddpprof.report import Report

MS = 1_000_000


def finding(rule: str, **given: Any) -> Finding:
    return Finding(rule, rule, "because", "do this", **given)


CAP = finding("trailing-communication", gain_ns=12 * MS, predicted=Predicted(10 * MS, 4 * MS, 12 * MS),
              change=ddp_change(None, bucket_cap_mb=5))  # fmt: skip
HOOK = finding("hook", gain_ns=5 * MS, change=Change(ChangeKind.COMM_HOOK, {"fp16_compress_hook": True}, "x", True))
LOOP = finding("barrier-in-loop", gain_ns=3 * MS)
SEEDS = finding("same-random-numbers", gain_ns=None, is_correctness=True)
NOISE = finding("gradient-copies", gain_ns=1, is_noise=True)


def made(*findings: Any, recorded_with: tuple[str, ...] = ("train.py",)) -> Report:
    whole = report()
    return replace(whole, findings=findings, job=replace(whole.job, recorded_with=recorded_with))


def shown(brief: Brief) -> dict[str, Any]:
    text = render_json(brief)
    assert len(text.encode()) <= MOST_BYTES
    assert msgspec.json.decode(text, type=Brief) == brief
    return dict(json.loads(text))


def test_where_a_step_goes() -> None:
    parts = shown(brief_report(made(CAP), ["a"]))["parts"]
    assert list(parts) == [
        "forward_ns", "backward_ns", "exposed_comm_ns", "optimizer_ns", "data_ns", "other_ns", "copy_ns",
        "idle_ns",
    ]  # fmt: skip
    first = made().ranks[0]
    known = [one.parts.step_ns for one in first.averaged(made().usual_steps) if one.parts is not None]
    assert sum(parts.values()) == pytest.approx(sum(known) / len(known), abs=len(parts))


def test_trials_cannot_confirm_what_they_leave_out() -> None:
    saving = finding("long-steps", gain_ns=9 * MS, is_left_out_of_trials=True)
    (only,) = shown(brief_report(made(saving), ["a"]))["findings"]
    assert "confirm" not in only


def test_each_finding_has_its_gain_its_change_and_the_command_that_confirms_it() -> None:
    whole = shown(brief_report(made(CAP, HOOK, LOOP, SEEDS, NOISE), ["runs/a b"]))
    assert whole["verdict"].endswith(
        "First fix: trailing-communication. Changing this is predicted to save 10.0 ms per step (4.00–12.0)."
    )
    first, hook, loop, seeds = whole["findings"]
    assert (first["number"], first["gain_ns"], first["low_ns"], first["high_ns"]) == (1, 10 * MS, 4 * MS, 12 * MS)
    assert first["change"]["values"] == {"bucket_cap_mb": 5}
    assert first["confirm"] == "ddpprof try 'runs/a b' --finding 1"
    assert hook["confirm"] == "ddpprof try 'runs/a b' --finding 2 --allow-lossy"
    assert loop["confirm"] == "ddpprof try 'runs/a b' --finding 3 --script CHANGED.py", (
        "only its author can change the loop"
    )
    assert (seeds["is_correctness"], "confirm" in seeds) == (True, False)
    assert whole["num_noise"] == 1


def test_a_finding_that_a_longer_recording_decides_has_its_command() -> None:
    late = finding("straggler", gain_ns=61 * MS, is_noise=True, longer_recording="--no-profiler --steps 100")
    whole = shown(brief_report(made(late, NOISE, recorded_with=("--steps", "3", "train.py", "--lr", "1")), ["runs/a"]))
    (only,) = whole["findings"]
    command = "ddpprof trace --no-profiler --steps 100 train.py --lr 1"
    assert (only["decide"], "confirm" in only, whole["num_noise"]) == (command, False, 1)
    assert whole["verdict"].endswith(f"this run is too short to tell whether this is due to chance: {command}")


def test_the_script_to_replace_is_named_if_the_command_has_several() -> None:
    command = ("--", "bash", "-c", "launch.py", "train.py")
    (only,) = shown(brief_report(made(LOOP, recorded_with=command), ["a"]))["findings"]
    assert only["confirm"] == "ddpprof try a --finding 1 --script train.py=CHANGED.py"


@pytest.mark.parametrize("whole", [made(CAP, recorded_with=()), made(CAP)], ids=["unknown-command", "two-parts"])
def test_what_cannot_be_run_again_has_no_command(whole: Report) -> None:
    paths = ["a", "b"] if whole.job.recorded_with else ["a"]
    (only,) = shown(brief_report(whole, paths))["findings"]
    assert "confirm" not in only


def test_it_stays_short_whatever_was_found() -> None:
    long = [replace(CAP, title=f"{number} " + "層" * 5000, advice="x " * 9000) for number in range(500)]
    whole = shown(brief_report(made(*long), ["r" * 5000]))
    assert whole["findings"]
    assert len(whole["findings"]) + whole["num_more"] == 500


def test_a_comparison_stays_short_too() -> None:
    settings = tuple(SettingChange(f"s{number}", "a" * 500, "b" * 500) for number in range(200))
    brief = brief_comparison(replace(compare_runs(report(), report()), settings=settings), ())
    text = render_json(brief)
    assert len(text.encode()) <= MOST_BYTES
    assert brief.changes[0].metric == "step"
    assert brief.num_left_out == 200 - len(brief.settings) > 0
