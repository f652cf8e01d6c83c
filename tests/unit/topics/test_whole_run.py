"""The whole run in words, tables and the page's chart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace as replace_struct
from observations import loader
from pages import data_of
from pulse_files import BEGIN_NS, MS, SECOND, MadeStep, write_pulse
from reports import HOSTILE, rank, report, step
from tables import record

from ddpprof.engine.topic import View
from ddpprof.layout import Line, Table, in_ms
from ddpprof.model.hang import Fault, Verdict
from ddpprof.model.pulse import Activity, Ended, StepFlag
from ddpprof.model.whole_run import (
    Pause,
    PauseKind,
    RankWholeRun,
    SlowdownCause,
    Slowdowns,
    StepPart,
    StepSlowdown,
    UnevenWork,
    WholeRun,
)
from ddpprof.monitor.pulse_files import read_pulse
from ddpprof.monitor.whole_run import whole_run, whole_run_of_rank
from ddpprof.render.brief import brief_report
from ddpprof.render.html.charts import whole_run_chart
from ddpprof.render.html.report_page import report_page
from ddpprof.render.json import read_report, render_json
from ddpprof.render.sections import sections
from ddpprof.render.sections.overview import first_screen, verdict
from ddpprof.report import LightStepReport, Report
from ddpprof.topics.data import INPUT_SIZES
from ddpprof.topics.script_code import SCRIPT_CODE, CodeLine, RankCode
from ddpprof.topics.whole_run import (
    Growth,
    growing_memory,
    growing_steps,
    growth_of,
    is_explained,
    long_steps,
    pause_sentence,
    slowdown_sentence,
    uneven_work,
    whole_run_line,
)


def two_ranks(folder: Path, **second: int) -> tuple[RankWholeRun, ...]:
    """Two ranks; the steps are 100 ms long and, from the 100th on, 150 ms."""
    steps = [*[MadeStep()] * 100, *[MadeStep(ms=150, wait_ms=70)] * 100]
    memory = (400 * 10**6, 500 * 10**6)
    write_pulse(folder, 0, steps, memory_bytes=memory, ended=Ended.FINISHED, ended_ns=BEGIN_NS + 25 * SECOND)
    slower = [MadeStep(wait_ms=10), *[MadeStep(wait_ms=10)] * 99, *[MadeStep(ms=150, wait_ms=60)] * 100]
    write_pulse(folder, 1, slower, **second)
    return tuple(whole_run_of_rank(rank, read_pulse(folder, rank), with_course=rank == 0) for rank in (0, 1))


def whole_run_of(ranks: Sequence[RankWholeRun]) -> WholeRun:
    """The whole run of these ranks, in which nothing was found."""
    return whole_run(ranks, Slowdowns(), None, ())


SLOWER = StepSlowdown(
    first_step=120,
    last_step=None,
    before_ns=100_000_000,
    after_ns=150_000_000,
    num_steps=30,
    began_ns=BEGIN_NS + 12 * SECOND,
    ended_ns=None,
    cause=SlowdownCause.LINK,
    ranks=(),
)


@pytest.fixture
def whole(tmp_path: Path) -> Report:
    last = {"activity": Activity.BACKWARD, "since_ns": BEGIN_NS + 25 * SECOND, "tick_ns": BEGIN_NS + 37 * SECOND}
    return report(whole_run=whole_run_of(two_ranks(tmp_path, **last)))


def tables(of: Report) -> dict[str, Table]:
    return {one.title: one for one in sections(of, only="whole-run") if isinstance(one, Table)}


def lines(of: Report) -> list[str]:
    return [one.text for one in sections(of, only="whole-run") if isinstance(one, Line)]


def test_the_whole_run_in_two_sentences(whole: Report) -> None:
    how_long, what_of = lines(whole)
    assert how_long == "203 steps in 37 s, recorded from step 3 on. Median 100 ms, longest 150 ms."
    assert what_of == (
        "An average step: data 8%, forward 16%, backward without waiting 8%, optimizer 4%, "
        "waiting for other ranks 32%; the rest is the script's own code."
    )


def test_steps_over_time(whole: Report) -> None:
    rows = tables(whole)["Steps over time, rank 0"].rows
    assert [row[:4] for row in rows] == [
        *((f"{2 * part:.1f} s", f"{20 * part + 3}-{20 * part + 22}", "100.00", "100.00") for part in range(5)),
        ("10 s", "103-122", "150.00", "150.00"),
        ("13 s", "123-142", "150.00", "150.00"),
        ("16 s", "143-162", "150.00", "150.00"),
        ("19 s", "163-182", "150.00", "150.00"),
        ("22 s", "183-202", "150.00", "150.00"),
    ]


def test_how_ranks_stand_and_differ(whole: Report) -> None:
    table = tables(whole)["Ranks in the whole run"]
    assert table.rows == (
        ("0", "node-a", "203", "125.00", "80.00", "10.00", "45.00", "400", "500", "finished"),
        ("1", "node-a", "203", "125.00", "90.00", "10.00", "35.00", "400", "400",
         "no end recorded; last seen in step 203: backward, for 12 s"),
    )  # fmt: skip
    assert table.note == (
        "own: step time minus waits for other ranks; rank 1 takes 10.0 ms longer than the other rank; times are means "
        "over all steps, including evaluation and checkpoints"
    )


def test_the_first_screen_names_a_long_pause(whole: Report) -> None:
    run = whole.whole_run
    assert run is not None
    for extra_ns, is_named in ((run.duration_ns // 4, True), (run.duration_ns // 6, False)):
        pauses = (Pause(PauseKind.SAVE, 1, 1), Pause(PauseKind.EPOCH, 2, extra_ns))
        (line,) = whole_run_line(replace(run, pauses=pauses, slowdowns=()), None)
        assert isinstance(line, Line)
        assert ("new epochs took 9.2 s in 2 steps" in line.text) is is_named


def test_the_first_screen_has_one_line(whole: Report) -> None:
    said = [one.text for one in first_screen(whole, ["run"]) if isinstance(one, Line) and "Whole run" in one.text]
    assert said == [
        (
            "Whole run: 203 steps, 37 s; median step 100 ms at the start, 150 ms at the end; the memory of rank 0 "
            "grew by 100 MB"
        )
    ]
    assert not any("Whole run" in one.text for one in first_screen(report(), ["run"]) if isinstance(one, Line))


def test_the_first_screen_tells_the_mean_where_pauses_take_much(whole: Report) -> None:
    assert whole.whole_run is not None
    evaluated = Pause(PauseKind.EVALUATION, 20, 5 * SECOND)
    paused = replace(whole, whole_run=replace(whole.whole_run, pauses=(evaluated,)))
    assert any("203 steps, 37 s; mean step 125 ms; median step" in one.text for one in first_screen(paused, ["run"])
               if isinstance(one, Line))  # fmt: skip


def test_recorded_steps_are_not_how_long_steps_took_at_first(tmp_path: Path) -> None:
    recorded = MadeStep(ms=300, flags=int(StepFlag.RECORDED))
    said = said_of_whole_run(tmp_path, [*[recorded] * 60, *[MadeStep()] * 140])
    assert said == "Whole run: 203 steps, 32 s; median step 100 ms at the start, 100 ms at the end"


@pytest.mark.parametrize(
    ("profiled_ms", "num_steps", "warns"),
    [
        pytest.param(290, 200, True, id="much-longer"),
        pytest.param(140, 200, False, id="hardly-longer"),
        pytest.param(290, 19, False, id="than-too-few"),
    ],
)
def test_profiled_steps_that_are_longer_than_most_are_pointed_out(
    profiled_ms: int, num_steps: int, warns: bool, tmp_path: Path
) -> None:
    write_pulse(tmp_path, 0, [MadeStep()] * num_steps)
    watched = whole_run_of((whole_run_of_rank(0, read_pulse(tmp_path, 0)),))
    profiled = replace(step(12, 4000, 10, 5, 0, 10), duration_ns=profiled_ms * 1_000_000)
    screen = first_screen(report(ranks=(rank(0, profiled),), whole_run=watched), ["run"])
    notes = [one.text for one in screen if isinstance(one, Line) and one.text.startswith("Note: the profiled steps")]
    assert (
        ["took 2.9 × as long as a typical step of the whole run, 100 ms." in note for note in notes] == [True]
    ) is warns
    assert bool(notes) is warns


def test_few_steps_do_not_tell_how_long_they_took_at_first(tmp_path: Path) -> None:
    said = said_of_whole_run(tmp_path, [*[MadeStep()] * 20, *[MadeStep(ms=130)] * 30])
    assert said == "Whole run: 53 steps, 5.9 s; median step 130 ms"


def said_of_whole_run(folder: Path, steps: list[MadeStep]) -> str:
    write_pulse(folder, 0, steps)
    run = whole_run_of((whole_run_of_rank(0, read_pulse(folder, 0), with_course=True),))
    shown = first_screen(report(whole_run=run), ["run"])
    (said,) = (one.text for one in shown if isinstance(one, Line) and "Whole run" in one.text)
    return said


@pytest.mark.parametrize(
    ("lengths_ms", "found"),
    [
        pytest.param([100 + step for step in range(120)], True, id="grow-in-each-step"),
        pytest.param([100] * 60 + [200] * 60, False, id="jump-once"),
        pytest.param([100 + step % 40 for step in range(120)], False, id="grow-in-each-epoch"),
        pytest.param([100 + step / 10 for step in range(120)], False, id="grow-by-a-tenth"),
        pytest.param([100 + 5 * step for step in range(20)], False, id="too-few-steps"),
    ],
)
def test_steps_that_become_longer_and_longer(lengths_ms: list[float], found: bool, tmp_path: Path) -> None:
    write_pulse(tmp_path, 0, [MadeStep(ms=length) for length in lengths_ms])
    run = whole_run_of((whole_run_of_rank(0, read_pulse(tmp_path, 0), with_course=True),))
    findings = list(growing_steps(run, View(2, 100 * MS)))
    assert bool(findings) is found
    if findings:
        assert findings[0].title == (
            "Steps become longer and longer: 105 ms at the start, 213 ms at the end, mostly because of other code of "
            "the script (+108 ms)"
        )
        assert findings[0].gain_ns == pytest.approx(54 * MS, abs=MS), (
            "the mean of 159.5 ms, without the 105 at the start"
        )


def growth_in(folder: Path, lengths_ms: Sequence[float]) -> Growth | None:
    write_pulse(folder, 0, [MadeStep(ms=length) for length in lengths_ms])
    return growth_of(whole_run_of_rank(0, read_pulse(folder, 0), with_course=True).stretches)


def test_steps_that_become_longer_from_the_middle_of_the_run_on(tmp_path: Path) -> None:
    growth = growth_in(tmp_path, [100 + max(0, step - 210) for step in range(400)])
    assert growth is not None
    assert growth.since_step is not None
    assert abs(growth.since_step - 213) <= 40
    assert growth.sentence().startswith(f"Since about step {growth.since_step}, steps become longer and longer: 100 ms")


@pytest.mark.parametrize(
    "lengths_ms",
    [
        pytest.param([100 + step / 100 for step in range(200)] + [200 + step / 100 for step in range(200)], id="jump"),
        pytest.param([100 + step % 200 for step in range(390)], id="in-each-epoch"),
        pytest.param([100] * 330 + [100 + 2 * step for step in range(70)], id="only-in-the-last-two-ranges"),
    ],
)
def test_what_is_no_growth(lengths_ms: list[float], tmp_path: Path) -> None:
    assert growth_in(tmp_path, lengths_ms) is None


def test_a_growth_that_a_slow_down_explains_is_not_reported_again(tmp_path: Path) -> None:
    growth = growth_in(tmp_path, [100 + step for step in range(400)])
    assert growth is not None
    slow = msgspec.structs.replace(SLOW, before_ns=100 * MS, after_ns=450 * MS, last_step=None)
    assert is_explained(growth, [slow])
    assert not is_explained(growth, [msgspec.structs.replace(slow, before_ns=300 * MS)])
    assert not is_explained(growth, [msgspec.structs.replace(slow, after_ns=350 * MS)]), "steps still grow"
    assert is_explained(growth, [msgspec.structs.replace(slow, after_ns=350 * MS, cause=SlowdownCause.THREAD)])
    assert not is_explained(growth, [msgspec.structs.replace(slow, last_step=300)])


def test_what_is_advised_on_growing_steps_depends_on_what_grows(tmp_path: Path) -> None:
    view, runs = View(2, 100 * MS), []
    for grows_ms in (1, 0):
        rows = [MadeStep(ms=100 + grows_ms * step, data_ms=10 + grows_ms * step) for step in range(120)]
        write_pulse(tmp_path, 0, rows)
        run = whole_run_of((whole_run_of_rank(0, read_pulse(tmp_path, 0), with_course=True),))
        runs.append(replace(run, uneven=UnevenWork(30 * MS, 100, 0.5)))
    growing, steady = runs
    (found,) = growing_steps(growing, view)
    assert found.title.endswith("mostly because of waiting for data (+108 ms)")
    assert found.advice.startswith("Find why loading a batch takes longer")
    assert [list(uneven_work(run, view)) != [] for run in runs] == [False, True]
    assert list(growing_steps(steady, view)) == []


def of_memory(tmp_path: Path, *ranks_mb: Sequence[float]) -> WholeRun:
    ranks = []
    for number, memory_mb in enumerate(ranks_mb):
        write_pulse(tmp_path, number, [MadeStep()] * 60, memory_bytes=[round(mb * 1e6) for mb in memory_mb])
        ranks.append(whole_run_of_rank(number, read_pulse(tmp_path, number), with_course=number == 0))
    return whole_run_of(tuple(ranks))


STEADY_MB = [430, 425] * 20


@pytest.mark.parametrize(
    ("memory_mb", "found"),
    [
        pytest.param([500 + 100 * second for second in range(40)], (1_050, 4_250), id="leak"),
        pytest.param([500 + 100 * second - 150 * (second % 2) for second in range(40)], (975, 4_175), id="saw-tooth"),
        pytest.param([500] * 3 + [2000] * 37, None, id="first-steps"),
        pytest.param([500] * 20 + [2000] * 20, None, id="jumps-once"),
        pytest.param([1000 + 5 * second for second in range(40)], None, id="by-a-little"),
        pytest.param([500 + 100 * second for second in range(19)], None, id="too-short"),
        pytest.param(STEADY_MB, None, id="steady"),
    ],
)
def test_memory_that_grows_steadily(memory_mb: list[float], found: tuple[int, int] | None, tmp_path: Path) -> None:
    run = of_memory(tmp_path, STEADY_MB, memory_mb)
    growth = run.ranks[1].steady_growth
    assert (None if growth is None else (growth.first_bytes // 10**6, growth.last_bytes // 10**6)) == found
    findings = list(growing_memory(run, View(2, 100 * MS)))
    assert [one.rule for one in findings] == ([] if found is None else ["growing-memory"])
    if found:
        assert findings[0].title == (
            f"The memory of rank 1 grows steadily: {found[0]:,} MB early in the run, {found[1]:,} MB at the end"
        )
        assert findings[0].evidence.endswith("the memory of 1 other rank does not grow")
        assert findings[0].subject == {"rank": 1}


@pytest.mark.parametrize(
    ("captures", "line"),
    [
        ((1,), "1 capture, RUN/capture-1. View one with: ddpprof report RUN/capture-1"),
        ((1, 2, 4), "3 captures, RUN/capture-1 to RUN/capture-4. View one with: ddpprof report RUN/capture-1"),
    ],
)
def test_captures_are_named(captures: tuple[int, ...], line: str, whole: Report) -> None:
    assert whole.whole_run is not None
    assert line in lines(replace(whole, whole_run=replace(whole.whole_run, captures=captures)))
    assert not any("capture" in one for one in lines(whole))


def test_many_ranks_show_the_slowest_and_those_without_an_end(whole: Report) -> None:
    assert whole.whole_run is not None
    finished, unfinished = whole.whole_run.ranks
    fleet = (*(replace(finished, rank=rank) for rank in range(40)), replace(unfinished, rank=40))
    table = tables(report(whole_run=whole_run_of(fleet)))["Ranks in the whole run"]
    assert [row[0] for row in table.rows] == ["40", *map(str, range(15))]
    assert "25 more ranks are in the JSON report" in table.note


def test_a_run_without_recorded_steps_has_a_verdict(whole: Report) -> None:
    bare = replace(whole, ranks=(), usual_steps=())
    said = (
        "A step takes 100 ms. The steps were timed, but not profiled. Profiled steps would show how the time is spent."
    )
    assert verdict(bare).text == said


def test_ranks_that_noted_no_step(tmp_path: Path) -> None:
    write_pulse(tmp_path, 0, [])
    nothing = report(whole_run=whole_run_of([whole_run_of_rank(0, read_pulse(tmp_path, 0))]))
    assert lines(nothing) == ["No step was recorded in 0.0 s."]
    assert tables(nothing)["Ranks in the whole run"].rows[0][3:7] == ("-",) * 4
    assert list(whole_run_chart(nothing)) == []


def test_a_chart_of_the_length_of_steps_with_marks(whole: Report) -> None:
    assert whole.whole_run is not None
    marked = replace(whole.whole_run, slowdowns=(SLOWER,))
    (chart,) = whole_run_chart(replace(whole, whole_run=marked))
    longest, median = chart.traces
    assert (longest["name"], median["name"], len(median["x"])) == ("longest", "median", 200)
    assert (median["y"][0], median["y"][-1]) == (100.0, 150.0)
    assert [(shape["x0"], shape["x1"]) for shape in chart.layout["shapes"]] == [(0.2, 0.2)]
    assert chart.layout["annotations"][0]["text"] == "+50%"
    (plain,) = whole_run_chart(whole)
    assert "shapes" not in plain.layout


def test_slow_downs_hangs_and_pauses_are_said(whole: Report) -> None:
    assert whole.whole_run is not None
    hang = Verdict(Fault.LINK, step=7)
    found = replace(whole.whole_run, slowdowns=(SLOWER,), pauses=(Pause(PauseKind.SAVE, 3, 5 * SECOND),), hang=hang)
    said = lines(report(whole_run=found))
    assert any(line.startswith("Slowdown: since step 120 (") and "100 → 150 ms" in line for line in said)
    assert any(
        line.startswith("The job hung at step 7. Diagnosis at that time: all ranks wait at the same place")
        for line in said
    )
    assert "Apart from slowdowns: checkpoints took 5.0 s in 3 steps." in said
    alone = lines(report(whole_run=replace(found, slowdowns=())))
    assert "Checkpoints took 5.0 s in 3 steps." in alone


@pytest.mark.parametrize(("extra_ns", "is_said"), [(49 * MS, False), (50 * MS, True)])
def test_a_pause_that_nobody_notices_is_not_said(whole: Report, extra_ns: int, is_said: bool) -> None:
    assert whole.whole_run is not None
    found = replace(whole.whole_run, pauses=(Pause(PauseKind.SAVE, 1, extra_ns),))
    assert any(line.startswith("Checkpoints took ") for line in lines(report(whole_run=found))) is is_said


def test_the_largest_slow_downs_are_listed_in_their_order(whole: Report) -> None:
    assert whole.whole_run is not None
    many = tuple(
        replace_struct(SLOWER, first_step=100 + 2 * number, last_step=101 + number * 3) for number in range(12)
    )
    said = lines(report(whole_run=replace(whole.whole_run, slowdowns=many)))
    listed = [line.split(" (")[0] for line in said if line.startswith("Slowdown: ")]
    assert listed == [f"Slowdown: from step {number}" for number in range(104, 124, 2)]
    assert "2 smaller slowdowns are in the JSON report." in said


def test_the_first_screen_tells_of_a_hang_and_of_the_largest_slow_down(whole: Report) -> None:
    assert whole.whole_run is not None
    hang = Verdict(Fault.STOPPED, rank=1, step=7, resumed_unix_ns=1)
    known = replace(whole.whole_run, slowdowns=(SLOWER,), hang=hang)
    said = [one.text for one in first_screen(report(whole_run=known), ["run"]) if isinstance(one, Line)]
    assert (
        "The job hung at step 7. Diagnosis at that time: rank 1 is stopped by a signal. The job continued later. "
        "More: --section whole-run"
    ) in said
    assert any(line.startswith("The slowdown: since step 120") for line in said)
    assert "The slowdown: since step 120" in brief_report(report(whole_run=known), ["run"]).verdict


def test_the_page_has_it(whole: Report) -> None:
    page = report_page(whole)
    assert 'id="whole-run"' in page
    assert "Step time during the run" in page
    assert data_of(page, "report-data")["whole_run"]["num_steps"] == 203


def test_the_json_report_keeps_it_and_old_ones_lack_it(whole: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(render_json(whole))
    assert read_report(path) == whole
    content = json.loads(path.read_text())
    del content["whole_run"]
    path.write_text(json.dumps(content))
    old = read_report(path)
    assert old is not None
    assert old.whole_run is None


@pytest.mark.parametrize(
    "name", [pytest.param(name, id=kind) for kind, name in HOSTILE.items() if kind != "undecodable"]
)
def test_names_are_only_names(whole: Report, name: str) -> None:
    assert whole.whole_run is not None
    hostile = replace(whole.whole_run.ranks[1], host=name, activity=name, ended=None)
    hang = Verdict(Fault.OWN_CODE, rank=0, host=name, place=name, parameters=(name,), since_unix_ns=BEGIN_NS)
    page = report_page(report(whole_run=replace(whole.whole_run, ranks=(whole.whole_run.ranks[0], hostile), hang=hang)))
    assert "<script>alert" not in page


MS = 1_000_000
SLOW = StepSlowdown(4200, None, 61 * MS, 72 * MS, 40, None, None, SlowdownCause.OWN_TIME, (3,), StepPart.FORWARD)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        pytest.param(
            {}, "since step 4,200, steps take 18% longer, 61.0 → 72.0 ms: rank 3 takes longer in forward", id="one-rank"
        ),
        pytest.param(
            {"last_step": 4300, "cause": SlowdownCause.LINK, "ranks": (0, 1, 2, 3)},
            "from step 4,200 to step 4,300, steps took 18% longer, 61.0 → 72.0 ms: all ranks wait longer in "
            "collectives, and no rank's own work takes longer",
            id="link-and-over",
        ),
        pytest.param(
            {"cause": SlowdownCause.DATA, "part": StepPart.DATA, "ranks": (0, 1, 2, 3), "is_coarse": True},
            "since about step 4,200, steps take 18% longer, 61.0 → 72.0 ms: every rank waits longer for batches",
            id="data-of-all",
        ),
        pytest.param(
            {"ranks": (0, 2), "part": StepPart.BACKWARD, "first_gradient_later_ns": 9 * MS},
            "since step 4,200, steps take 18% longer, 61.0 → 72.0 ms: ranks 0, 2 take longer in backward, and their "
            "first gradients come 9.00 ms later",
            id="late-gradients",
        ),
        pytest.param(
            {"part": None},
            "since step 4,200, steps take 18% longer, 61.0 → 72.0 ms: rank 3 takes longer in several parts of the step",
            id="several-parts",
        ),
        pytest.param(
            {"cause": SlowdownCause.THREAD, "part": None},
            "since step 4,200, steps take 18% longer, 61.0 → 72.0 ms: the training thread of rank 3 waits for another "
            "thread of its process, probably one that holds Python's GIL",
            id="another-thread",
        ),
        pytest.param(
            {"cause": SlowdownCause.THREAD, "part": None, "ranks": (0, 3)},
            "since step 4,200, steps take 18% longer, 61.0 → 72.0 ms: the training threads of ranks 0, 3 wait for "
            "another thread of their processes, probably one that holds Python's GIL",
            id="other-threads",
        ),
    ],
)
def test_a_slow_down_is_one_sentence(changes: dict[str, object], sentence: str) -> None:
    assert slowdown_sentence(msgspec.structs.replace(SLOW, **changes), 4) == sentence


@pytest.mark.parametrize("cause", list(SlowdownCause))
def test_every_cause_has_words(cause: SlowdownCause) -> None:
    assert slowdown_sentence(msgspec.structs.replace(SLOW, cause=cause), 4).startswith("since step 4,200, steps take")


def test_times_of_day_follow_the_steps() -> None:
    began_ns, ended_ns = 1_700_000_000 * 10**9, 1_700_000_007 * 10**9
    timed = msgspec.structs.replace(SLOW, began_ns=began_ns, last_step=4300, ended_ns=ended_ns)
    words = slowdown_sentence(timed, 4)
    assert ":20) to step 4,300 (" in words
    assert ":27), steps took" in words


def test_pauses_are_told_apart() -> None:
    pause = Pause(PauseKind.SAVE, 12, 3_400 * MS)
    assert pause_sentence(pause) == "checkpoints took 3.4 s in 12 steps"
    evaluations = Pause(PauseKind.EVALUATION, 10, 54_600_000_000, grows_ns=(300_000_000, 14_100_000_000))
    assert (
        pause_sentence(evaluations) == "evaluation took 54.6 s in 10 steps, 0.3 s in the first and 14.1 s in the last"
    )
    recorded = Pause(PauseKind.RECORDING, 15, 3_100 * MS)
    assert (
        pause_sentence(recorded)
        == "the 15 steps that ddpprof recorded took 3.1 s longer than the same number of other steps"
    )


@pytest.mark.parametrize(
    ("ranks", "begins"),
    [((), "Save less often, or"), ((0,), "Save less often, or"), ((0, 2), "Ranks 0, 2 save files. DDP keeps")],
)
def test_one_rank_is_enough_to_save(ranks: tuple[int, ...], begins: str) -> None:
    run = WholeRun(110, 10, 10 * SECOND, (), pauses=(Pause(PauseKind.SAVE, 10, 3 * SECOND, ranks=ranks),))
    (finding,) = long_steps(run, View(3, 70_000_000))
    assert finding.advice.startswith(begins)


LOADERS = {
    "restarted": (loader(num_workers=3),),
    "kept": (loader(num_workers=3, persistent_workers=True),),
    "none": (),
}


@pytest.mark.parametrize(
    ("kind", "loaders", "title", "advice"),
    [
        (PauseKind.EVALUATION, "none", "Evaluation takes 30% of the run", "Evaluate less often"),
        (PauseKind.SAVE, "none", "Saving checkpoints takes 30% of the run", "Save less often"),
        (PauseKind.EPOCH, "restarted", "Starting epochs takes 30% of the run", "num_workers=3, persistent_workers"),
        (PauseKind.EPOCH, "kept", "Starting epochs takes 30% of the run", "Use fewer and longer epochs"),
        (PauseKind.EPOCH, "none", "Starting epochs takes 30% of the run", "Use fewer and longer epochs"),
    ],
)
def test_pauses_that_take_much_of_the_run_are_a_finding(kind: PauseKind, loaders: str, title: str, advice: str) -> None:
    run = WholeRun(110, 10, 10 * SECOND, (), pauses=(Pause(kind, 15, 3 * SECOND),))
    (found,) = long_steps(run, View(2, 70_000_000, records={0: record(loaders=LOADERS[loaders])}))
    assert (found.title, found.gain_ns) == (title, 30_000_000)
    assert advice in found.advice
    assert found.evidence.endswith("took 3.0 s in 15 steps of 100, in addition to the usual duration of these steps")
    assert found.may_be_meant is (kind is not PauseKind.EPOCH)
    assert found.is_in_few_steps
    assert found.is_left_out_of_trials is (kind is PauseKind.SAVE)
    assert (found.change is not None) is (loaders == "restarted")
    assert found.numbers["num_steps_apart"] == pytest.approx(100 / 15)


@pytest.mark.parametrize(
    ("every", "extra_ns", "title"),
    [
        (4, 3 * SECOND, "One in 4 steps takes much longer than other steps. The extra time is 30% of the run"),
        (4, SECOND, "One in 4 steps takes much longer than other steps. The extra time is 10% of the run"),
        (None, 3 * SECOND, "Some steps take much longer than other steps. The extra time is 30% of the run"),
        (None, SECOND, None),
    ],
)
def test_long_steps_without_a_known_reason(every: int | None, extra_ns: int, title: str | None) -> None:
    """At irregular distances, other work may be the reason."""
    run = WholeRun(110, 10, 10 * SECOND, (), pauses=(Pause(PauseKind.UNKNOWN, 15, extra_ns, every),))
    assert [one.title for one in long_steps(run, View(2, 70_000_000))] == ([] if title is None else [title])


def test_long_steps_by_a_timer() -> None:
    pause = Pause(PauseKind.UNKNOWN, 15, SECOND, every_ns=SECOND // 2)
    (found,) = long_steps(WholeRun(110, 10, 10 * SECOND, (), pauses=(pause,)), View(2, 100 * MS))
    assert found.title == (
        "About every 0.5 s, a step takes much longer than other steps. The extra time is 10% of the run"
    )
    assert "Look for a thread or another program with a timer" in found.advice
    irregular = replace_struct(pause, every_ns=None)
    assert not [*long_steps(WholeRun(110, 10, 10 * SECOND, (), pauses=(irregular,)), View(2, 100 * MS))]


def test_the_line_of_long_steps_is_named_if_one_was_profiled() -> None:
    run = WholeRun(110, 10, 10 * SECOND, (), pauses=(Pause(PauseKind.UNKNOWN, 15, 3 * SECOND, 4),))
    (found,) = long_steps(run, View(2, 70_000_000))
    assert "ddpprof capture --when 'step>1.5x'" in found.advice
    code = RankCode(0, 5, (), CodeLine("/a/train.py:66 in main", 200_000_000, 0))
    (found,) = long_steps(run, View(2, 70_000_000, shown={SCRIPT_CODE.name: (code,)}))
    assert found.advice.endswith("train.py:66 in main takes 200 ms in such a step.")


@pytest.mark.parametrize(
    ("part", "ranks", "title", "advice"),
    [
        pytest.param(
            StepPart.OTHER, (0,), "One in 4 steps takes much longer: rank 0 runs other code of the script. The extra",
            "Look for code that only rank 0 runs, such as evaluation", id="one-rank",
        ),
        pytest.param(
            StepPart.DATA, (0, 1), "One in 4 steps takes much longer: every rank waits for batches. The extra",
            "num_workers=4", id="data-of-all",
        ),
        pytest.param(
            StepPart.FORWARD, (0, 1), "One in 4 steps takes much longer: every rank takes longer in the forward pass.",
            "To see what such a step does", id="all-compute",
        ),
    ],
)  # fmt: skip
def test_where_long_steps_take_longer_is_said(
    part: StepPart, ranks: tuple[int, ...], title: str, advice: str, tmp_path: Path
) -> None:
    pause = Pause(PauseKind.UNKNOWN, 15, 3 * SECOND, 4, part, ranks)
    run = WholeRun(110, 10, 10 * SECOND, two_ranks(tmp_path), pauses=(pause,))
    view = View(2, 70_000_000, records={0: record(loaders=(loader(num_workers=0, persistent_workers=True),))})
    (found,) = long_steps(run, view)
    assert found.title.startswith(title)
    assert advice in found.advice
    assert (found.change is not None) is (part is StepPart.DATA)


@pytest.mark.parametrize(
    ("ranks", "title"),
    [
        ((0,), "Evaluation on rank 0, for which the other ranks wait, takes 30% of the run"),
        ((0, 1), "Evaluation takes 30% of the run"),
        ((), "Evaluation takes 30% of the run"),
    ],
)
def test_the_rank_that_evaluates_alone_is_named(ranks: tuple[int, ...], title: str, tmp_path: Path) -> None:
    pause = Pause(PauseKind.EVALUATION, 15, 3 * SECOND, None, StepPart.OTHER if ranks else None, ranks)
    (found,) = long_steps(WholeRun(110, 10, 10 * SECOND, two_ranks(tmp_path), pauses=(pause,)), View(2, 70_000_000))
    assert found.title == title


def test_several_ranks_take_a_plural() -> None:
    pause = Pause(PauseKind.UNKNOWN, 15, 3 * SECOND, 4, StepPart.OTHER, (0, 2))
    (found,) = long_steps(WholeRun(110, 10, 10 * SECOND, (), pauses=(pause,)), View(4, 70_000_000))
    assert found.title.startswith("One in 4 steps takes much longer: ranks 0, 2 run other code of the script. ")


@pytest.mark.parametrize(
    ("uneven", "cores", "larger", "is_found"),
    [
        pytest.param(UnevenWork(15 * MS, 100, 0.5), 1.0, None, True, id="in-turn"),
        pytest.param(UnevenWork(15 * MS, 100, 0.5), None, None, True, id="cores-unknown"),
        pytest.param(UnevenWork(9 * MS, 100, 0.5), 1.0, None, False, id="little"),
        pytest.param(UnevenWork(4 * MS, 100, 0.5), 1.0, 0.3, True, id="inputs-differ"),
        pytest.param(UnevenWork(3 * MS, 100, 0.5), 1.0, 0.3, False, id="inputs-differ-but-little-is-lost"),
        pytest.param(UnevenWork(15 * MS, 100, 0.9), 1.0, None, False, id="a-straggler"),
        pytest.param(UnevenWork(15 * MS, 100, 0.5), 0.5, None, False, id="ranks-share-cores"),
        pytest.param(None, 1.0, None, False, id="unknown"),
    ],
)
def test_ranks_that_take_turns_at_being_late(
    uneven: UnevenWork | None, cores: float | None, larger: float | None, is_found: bool, tmp_path: Path
) -> None:
    run = replace(whole_run_of(two_ranks(tmp_path)), uneven=uneven)
    assert run.steps is not None
    assert run.steps.mean_ns == 125 * MS
    view = View(2, 125 * MS, cores_per_rank=cores, shown={INPUT_SIZES.name: larger})
    found = list(uneven_work(run, view))
    assert len(found) == is_found
    assert all(("30% larger" in one.evidence) is (larger is not None) for one in found)
    assert all(one.gain_ns == uneven.lost_ns for one in found if uneven is not None)


@pytest.mark.parametrize(
    ("cause", "is_found"), [(SlowdownCause.THROTTLED, False), (SlowdownCause.THREAD, False), (SlowdownCause.LINK, True)]
)
def test_ranks_that_lack_a_core_do_not_take_turns(cause: SlowdownCause, is_found: bool, tmp_path: Path) -> None:
    slow_down = msgspec.structs.replace(SLOW, first_step=20, cause=cause)
    run = replace(whole_run_of(two_ranks(tmp_path)), uneven=UnevenWork(15 * MS, 100, 0.5), slowdowns=(slow_down,))
    assert bool(list(uneven_work(run, View(2, 125 * MS)))) is is_found


@pytest.mark.parametrize(
    "pause",
    [
        pytest.param(Pause(PauseKind.RECORDING, 15, 3 * SECOND), id="of-ddpprof"),
        pytest.param(Pause(PauseKind.SAVE, 2, 3 * SECOND), id="too-few-to-go-on-like-this"),
        pytest.param(Pause(PauseKind.SAVE, 15, SECOND // 3), id="short"),
    ],
)
def test_other_pauses_are_no_finding(pause: Pause) -> None:
    assert list(long_steps(WholeRun(110, 10, 10 * SECOND, (), pauses=(pause,)), View(2, 70_000_000))) == []


@pytest.mark.parametrize(
    ("num_flagged", "step_ms"),
    [pytest.param(0, 100, id="all-steps-of-the-run"), pytest.param(181, 50, id="too-few-usual-steps")],
)
def test_the_step_time_is_that_of_the_whole_run(whole: Report, num_flagged: int, step_ms: int) -> None:
    """Half of the steps take 100 ms, and later steps 150 ms; the few that were timed take 50 ms."""
    timed = tuple(LightStepReport(number, "off", 50 * MS, None) for number in (5, 6))
    run = whole.whole_run
    assert run is not None
    assert run.steps is not None
    assert run.steps.num_steps == 200
    ranks = tuple(replace(one, whole=replace(run.steps, num_flagged=num_flagged)) for one in run.ranks)
    shown = replace(
        whole,
        ranks=tuple(replace(rank, light_steps=timed) for rank in whole.ranks),
        whole_run=replace(run, ranks=ranks),
    )
    assert shown.step_ns == step_ms * MS
    assert verdict(shown).text.startswith(f"A step takes {in_ms(step_ms * MS)}. In the profiled steps, exposed")
    assert replace(shown, times={"step": "device"}).step_ns == shown.profiled_step_ns
