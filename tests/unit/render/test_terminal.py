"""The report in a terminal: golden files, and names that try to be more than names."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from large_runs import thousand_ranks
from reports import (
    GOLDEN,
    HOSTILE,
    bucket,
    data_parallel_report,
    gpu_report,
    hostile_report,
    light_report,
    rank,
    report,
    step,
)

from ddpprof.engine.finding import Finding, Predicted
from ddpprof.layout import Bars, Column, Table
from ddpprof.render.sections import sections
from ddpprof.render.terminal import render_terminal
from ddpprof.report import Bound, BoundBy, Report, WhatHelps, WouldHelp
from ddpprof.topics.steps.measure import RecordingCost


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(shown: Report, width: int = 80, file: io.StringIO | None = None) -> str:
    file = file or io.StringIO()
    render_terminal(sections(shown), file, width)
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_terminal(expect_golden: Callable[[Path, str], None], width: int) -> None:
    expect_golden(GOLDEN / f"terminal-{width}.txt", drawn(report(), width))


def test_terminal_of_traces_of_an_accelerator(expect_golden: Callable[[Path, str], None]) -> None:
    expect_golden(GOLDEN / "terminal-gpu.txt", drawn(gpu_report(), 80))


def test_terminal_of_one_process_with_several_devices(expect_golden: Callable[[Path, str], None]) -> None:
    expect_golden(GOLDEN / "terminal-data-parallel.txt", drawn(data_parallel_report(), 80))


def test_terminal_of_light_recording(expect_golden: Callable[[Path, str], None]) -> None:
    expect_golden(GOLDEN / "terminal-light.txt", drawn(light_report(), 80))


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal_or_ends_in_spaces(width: int) -> None:
    for line in (drawn(report(), width) + drawn(gpu_report(), width)).splitlines():
        assert len(line) <= width
        assert line == line.rstrip()


def test_of_many_ranks_the_odd_ones_are_drawn_and_in_the_tables() -> None:
    made = sections(thousand_ranks(1000, 1))
    (bars,) = (one for one in made if isinstance(one, Bars))
    of_parts, of_overlap = (
        next(one for one in made if isinstance(one, Table) and name in [column.name for column in one.columns])
        for name in ("forward", "hidden")
    )
    shown = [bar.label for bar in bars.bars]
    assert len(shown) == 16
    assert {"0", "700", "999"} <= set(shown)
    assert [row[0] for row in of_parts.rows] == [row[0] for row in of_overlap.rows] == shown
    assert of_parts.note == "984 more ranks are in the JSON report"


@pytest.mark.parametrize("width", [20, 50, 76])
def test_a_terminal_that_is_too_narrow_loses_no_column(width: int) -> None:
    names = ("collective", "first group", "size", "calls", "transfer", "waiting", "busbw")
    table = Table("Collectives", (Column("name", is_number=False), *map(Column, names)), (("x", *names),))
    file = io.StringIO()
    render_terminal([table], file, width)
    assert "".join(names).replace(" ", "") in "".join(file.getvalue().splitlines()[-1].split())


def test_headers_are_not_broken_inside_a_word() -> None:
    words = set(drawn(report()).split())
    assert {"pre-forward", "optimizer", "finalise", "launched", "exposed", "trailing"} <= words


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_names_stay_text(name: str) -> None:
    text = drawn(hostile_report(name))
    assert all(c.isprintable() for c in text.replace("\n", ""))
    assert text.encode("utf-8")
    plain = drawn(hostile_report("x"))
    assert [line.split()[0] for line in text.splitlines() if "5.64" in line] == ["0", "1"], "one row per bucket"
    assert len(plain.splitlines()) <= len(text.splitlines()) < 200, "no name is endless"


def test_names_of_modules_in_one_process_stay_text() -> None:
    assert all(c.isprintable() for c in drawn(data_parallel_report(HOSTILE["escapes"])).replace("\n", ""))


def test_markup_is_shown_as_it_is() -> None:
    assert HOSTILE["markup"] in drawn(hostile_report(HOSTILE["markup"]), 200)
    assert HOSTILE["html"] in drawn(hostile_report(HOSTILE["html"]), 200)


@pytest.mark.parametrize(
    ("environment", "is_terminal", "has_colour"),
    [
        pytest.param({}, True, True, id="terminal"),
        pytest.param({}, False, False, id="pipe"),
        pytest.param({"NO_COLOR": "1"}, True, False, id="no-color"),
        pytest.param({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False, id="no-color-wins"),
        pytest.param({"NO_COLOR": ""}, True, True, id="no-color-empty-is-not-set"),
        pytest.param({"TERM": "dumb"}, True, False, id="dumb"),
    ],
)
def test_control_codes(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_terminal: bool, has_colour: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    text = drawn(report(), file=Terminal() if is_terminal else None)
    assert ("\x1b" in text) == has_colour


class Ascii(io.StringIO):
    encoding = "ascii"  # type: ignore[assignment]


def test_bars_tell_their_parts_apart_in_ascii() -> None:
    lines = drawn(report(), file=Ascii()).splitlines()
    (bar,) = [line for line in lines if line.startswith("rank 0 ") and "*" in line]
    assert set(bar.removeprefix("rank 0 ")) == set("+*!#=.")
    assert "+ forward  * backward  ! exposed comm  # optimizer  = data, other  . idle" in lines


def test_many_ranks_are_cut_and_it_says_so() -> None:
    ranks = tuple(rank(n, step(12, 4000, 10, 5, 0, 10)) for n in range(40))
    text = drawn(report(ranks=ranks))
    assert text.count("\nrank 1") <= 7
    assert "24 more ranks are in the JSON report" in text


def test_many_buckets_are_cut_and_it_says_so() -> None:
    assert "6 more buckets are in the JSON report" in drawn(report(buckets=tuple(bucket(n) for n in range(30))))


def test_nothing_to_gain_is_said() -> None:
    assert "No rule found a change" in drawn(report(findings=()))


@pytest.mark.parametrize(
    ("by", "would_help", "is_said"),
    [
        pytest.param(BoundBy.BANDWIDTH, (), True, id="not-replayed"),
        pytest.param(BoundBy.WAITING, (), False, id="waiting"),
        pytest.param(BoundBy.BANDWIDTH, (WouldHelp(WhatHelps.DOUBLE_LINK, Predicted(9, 8, 10)),), False, id="replayed"),
    ],
)
def test_what_cannot_be_predicted_is_not_called_nothing(
    by: BoundBy, would_help: tuple[WouldHelp, ...], is_said: bool
) -> None:
    bound = Bound(by, 100, 50, 60, None, 1000, 4, would_help)
    text = " ".join(drawn(report(findings=(), bound=bound)).split())
    assert "No rule found a setting" in text
    assert ("Other bucket sizes may save time" in text) is is_said


def test_light_recording_does_not_claim_that_there_is_nothing_to_gain() -> None:
    assert "No findings: most rules need" in drawn(light_report())


def test_without_a_record_it_does_not_claim_that_there_is_nothing_to_gain() -> None:
    made = report(findings=())
    text = drawn(replace(made, job=replace(made.job, modules=(), world_size=None)))
    assert "No rule found a change" not in text
    assert "most rules need data that only ddpprof records" in text
    assert "· 2 ranks ·" in text


def test_communication_that_is_not_there_is_absent_not_zero() -> None:
    silent = replace(step(12, 4000, 0, 0, 0, 10), num_comm_kernels=0)
    (row,) = [
        line for line in drawn(report(ranks=(rank(0, silent),))).splitlines() if line.split()[:2] == ["0", "4.00"]
    ]
    assert row.split() == ["0", "4.00", "-", "-", "-", "-"]


def test_tables_of_ranks_say_what_they_leave_out() -> None:
    made = gpu_report()
    many = tuple(replace(made.ranks[0], rank=n) for n in range(20))
    text = drawn(replace(made, ranks=many), 120)
    assert " ".join(text.split()).count("4 more ranks are in the JSON report") == 3, "bars, overlap, idle"


def test_a_step_without_length_is_drawn() -> None:
    assert "rank 0" in drawn(report(ranks=(rank(0, replace(step(12, 0, 0, 0, None, 0), duration_ns=0)),)))


@pytest.mark.parametrize(("profiled_ms", "warns"), [(60, False), (85, False), (250, True)])
def test_profiled_steps_that_are_not_like_the_others_are_pointed_out(profiled_ms: int, warns: bool) -> None:
    cost = RecordingCost(60_000_000, 60_000_000, profiled_ms * 1_000_000, 1.0, 4, 0.1, None)
    text = " ".join(drawn(report(ranks=(rank(0, step(12, 4000, 10, 5, 0, 10), recording_cost=cost),))).split())
    assert ("the profiled steps took 4.2 × as long as the steps before them" in text) is warns


def test_a_predicted_gain_has_an_interval_and_a_bound_none() -> None:
    bound = Finding("rule", "bounded", "why", "what", 3_000_000)
    predicted = replace(bound, title="predicted", predicted=Predicted(2_500_000, -500_000, 3_000_000))
    text = drawn(report(findings=(bound, predicted)), width=200)
    assert "1. bounded  [up to 3.00 ms per step]" in text
    assert "2. predicted  [may save 2.50 ms per step (-0.50 to 3.00)]" in text


def test_a_step_that_is_in_no_mean_is_named() -> None:
    made = report()
    first, *_ = made.ranks[0].steps
    long = replace(first, step=99, duration_ns=3 * first.duration_ns)
    ranks = tuple(replace(rank, steps=(*rank.steps, long)) for rank in made.ranks)
    usual = tuple(step.step for step in made.ranks[0].steps)
    text = drawn(replace(made, ranks=ranks, usual_steps=usual))
    assert "excluded from all means: step 99, 2.9 × as long" in text
    assert "left out of all means" not in drawn(made)
