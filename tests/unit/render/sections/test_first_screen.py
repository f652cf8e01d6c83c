"""The first screen: golden files, what it leaves for later, and its length."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from large_runs import thousand_ranks
from reports import GOLDEN, HOSTILE, data_parallel_report, gpu_report, hostile_report, light_report, report

from ddpprof.engine.finding import Finding
from ddpprof.engine.predictions import Predicted
from ddpprof.layout import Commands, Remark, Remarks
from ddpprof.render.sections.first_screen import first_screen
from ddpprof.render.terminal import render_terminal
from ddpprof.report import Report
from ddpprof.topics.failure import Failure, RankEnd

MS = 1_000_000


def drawn(shown: Report, width: int = 80, paths: tuple[str, ...] = ("runs/a",)) -> str:
    file = io.StringIO()
    render_terminal(first_screen(shown, paths), file, width)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("first-screen", report()),
        ("first-screen-gpu", gpu_report()),
        ("first-screen-light", light_report()),
        ("first-screen-data-parallel", data_parallel_report()),
    ],
)
def test_first_screen(name: str, made: Report, expect_golden: Callable[[Path, str], None]) -> None:
    expect_golden(GOLDEN / f"{name}.txt", drawn(made))


def findings(number: int, **changes: Any) -> tuple[Finding, ...]:
    return tuple(
        replace(Finding(f"rule-{i}", f"Title {i}", "Evidence.", "Do it.", gain_ns=(number - i) * MS), **changes)
        for i in range(number)
    )


def test_three_findings_with_their_advice_and_the_others_in_one_line_each() -> None:
    noise = findings(1, title="A long title " * 20, is_noise=True, predicted=Predicted(MS, -MS, 3 * MS))
    said = drawn(report(findings=(*findings(5), *noise)))
    assert [f"{n}. Title {n - 1}" in said for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert said.count("→ Do it.") == 3
    assert "Evidence" not in said
    assert "- Title 3  [up to 2.00 ms]\n- Title 4  [up to 1.00 ms]\n" in said
    assert "Not beyond noise\n- A long title A long" in said
    assert "…  [1.00 ms (-1.00 – 3.00)]\n" in said


def test_what_would_help_is_never_cut_off() -> None:
    helps = Remark("would help: reducing gradients only every 4 batches", "23.69 ms per batch (13.91 – 33.47)", True)
    file = io.StringIO()
    render_terminal([Remarks("Also found", (helps, replace(helps, number="1.00 ms")))], file, 80)
    assert file.getvalue() == (
        "\nAlso found\n"
        "- would help: reducing gradients only every 4 batches\n"
        "  [23.69 ms per batch (13.91 – 33.47)]\n"
        "- would help: reducing gradients only every 4 batches  [1.00 ms]\n"
    )


def test_of_very_many_findings_the_number_is_said() -> None:
    assert "- 4 more: --section findings\n" in drawn(report(findings=findings(13)))


def test_about_forty_lines_even_of_many_ranks() -> None:
    many = replace(thousand_ranks(1000, 1), findings=findings(9), missing=tuple(f"note {n}" for n in range(9)))
    said = drawn(many)
    assert len(said.splitlines()) <= 50
    assert "6 more notes: ddpprof report runs/a --section job\n" in said


def test_a_failure_is_told_once_and_in_full() -> None:
    boom = RankEnd(1, "a", "failed: ValueError: boom", False, 14, exit_code=None)
    lost = RankEnd(0, "a", "failed: RuntimeError: lost", True, 14, exit_code=None)
    said = drawn(report(failure=Failure(boom, (lost,), ())), width=200)
    assert said.startswith(
        "The job failed: rank 1 failed after 14 steps: ValueError: boom.\n"
        "Rank 0 then failed after 14 steps: RuntimeError: lost.\n"
    )
    assert "\nBefore the failure a step took 65.20 ms. Exposed communication was " in said
    assert said.count("boom") == 1
    assert "ddpprof compare" not in said


def test_commands_name_all_parts_of_the_run_and_are_never_broken() -> None:
    parts = ("/mnt/a host/" + 80 * "x", "/mnt/b")
    said = drawn(report(), 80, parts)
    assert f"ddpprof report '{parts[0]}' /mnt/b --full\n" in said


def test_whatif_is_named_only_where_it_can_read_the_run() -> None:
    """It reads one path, which is not a report in JSON."""
    predicted = replace(report().findings[0], predicted=Predicted(3 * MS, 2 * MS, 4 * MS))
    shown = report(findings=(predicted,))

    def names(paths: tuple[str, ...], **options: bool) -> bool:
        commands = first_screen(shown, paths, **options)[-1]
        assert isinstance(commands, Commands)
        return any("ddpprof whatif" in command for _, command in commands.commands)

    assert names(("runs/a",))
    assert not names(("/mnt/a", "/mnt/b"))
    assert not names(("a.json",), can_replay=False)


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_names_stay_names(name: str) -> None:
    said = drawn(hostile_report(name))
    assert "\x1b" not in said
    assert all(character.isprintable() or character == "\n" for character in said)


@pytest.mark.parametrize(
    ("recorded_with", "hosts", "sweep"),
    [
        (("--nproc-per-node", "2", "train.py"), ("a",), "--nproc-per-node 2 train.py"),
        (("--steps", "9", "--nproc=2", "train.py", "--lr", "1"), ("a",), "--nproc=2 train.py --lr 1"),
        (("train.py",), ("a",), "train.py"),
        (("--nnodes", "2", "train.py"), ("a",), None),
        (("train.py",), ("a", "b"), None),
        ((), ("a",), None),
    ],
)
def test_what_comes_next_leads_to_a_result(
    recorded_with: tuple[str, ...], hosts: tuple[str, ...], sweep: str | None
) -> None:
    """One run on each side cannot tell, so five are offered, or a sweep, which runs all settings in turn."""
    job = replace(report().job, recorded_with=recorded_with, hosts=hosts)
    commands = first_screen(report(job=job), ["runs/a"])[-1]
    assert isinstance(commands, Commands)
    offered = dict(commands.commands)
    wanted = None if sweep is None else f"ddpprof sweep --vary bucket_cap_mb=5,25 {sweep}"
    assert offered.get("measure a setting") == wanted
    assert offered["before a change"].startswith("ddpprof trace --repeat 5 --out BEFORE ")
    assert offered["after the change"].startswith("ddpprof trace --repeat 5 --out AFTER ")
    assert offered["compare the two"] == "ddpprof compare BEFORE AFTER"
