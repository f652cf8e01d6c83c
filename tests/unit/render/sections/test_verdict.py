"""The report in a sentence, and how far many ranks lie apart."""

import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from large_runs import thousand_ranks
from reports import light_report, report

from ddpprof.engine.finding import Finding
from ddpprof.engine.numbers import clocks_of
from ddpprof.engine.predictions import Predicted
from ddpprof.layout import Line, Table
from ddpprof.render.html.report_page import report_page
from ddpprof.render.sections.findings import change_sentence
from ddpprof.render.sections.first_screen import first_screen
from ddpprof.render.sections.spread import spread_table
from ddpprof.render.sections.verdict import Number, verdict
from ddpprof.report.tree import LightStepReport, Report
from ddpprof.topics.failure import Failure, RankEnd


def test_means_over_ranks_and_steps() -> None:
    came = verdict(report())  # steps of 64 and 66.5, 64.8 and 65.5 ms, of which 6.5 and 9, 6.3 and 8 are exposed
    assert came.text == "A step takes 65.20 ms. Exposed communication is 7.45 ms of it, 11%."
    assert came.numbers == (
        Number("step", "65.20 ms"),
        Number("communication", "13.05 ms"),
        Number("of it hidden", "43%"),
        Number("exposed", "7.45 ms"),
        Number("trailing", "1.51 ms"),
    )


def test_the_step_is_that_without_the_profiler_and_shares_are_of_profiled_ones() -> None:
    """A profiler may lengthen steps by much; what it shows of them is told beside that."""
    made = report()
    timed = [LightStepReport(number, mode, ns * 10**6, None) for number, mode, ns in LIGHT]
    ranks = tuple(replace(rank, light_steps=tuple(timed)) for rank in made.ranks)
    came = verdict(replace(made, ranks=ranks))
    assert came.text == (
        "A step takes 50.00 ms. In the profiled steps, exposed communication is 7.45 ms of 65.20 ms, 11%."
    )
    assert came.numbers[0] == Number("step", "50.00 ms")
    on_accelerator = verdict(
        replace(made, ranks=ranks, times=clocks_of(Report))
    )  # whose host may be ahead by any number of steps
    assert on_accelerator.text == "A step takes 65.20 ms. Exposed communication is 7.45 ms of it, 11%."


LIGHT = [(5, "off", 49), (6, "light", 50), (7, "light", 51), (8, "baseline", 9), (9, "off", 50)]


@pytest.mark.parametrize(
    ("ratios", "says"),
    [
        pytest.param([2], "", id="a-long-step"),
        pytest.param([7], " The numbers leave out 1 of 3 profiled steps, which took 7.0 times as long.", id="most"),
        pytest.param([3, 2], " The numbers leave out 2 of 4 profiled steps, which took 2.0 to 3.0 times as long."),
    ],
)
def test_steps_of_another_kind(ratios: list[int], says: str) -> None:
    made = report()
    more = [replace(made.ranks[0].steps[0], step=99 + at, duration_ns=by * 66_000_000) for at, by in enumerate(ratios)]
    ranks = tuple(replace(rank, steps=(*rank.steps, *more)) for rank in made.ranks)
    text = verdict(replace(made, ranks=ranks, usual_steps=(12, 13))).text
    assert text.partition("11%.")[2] == says


def test_steps_that_average_parameters_now_and_then() -> None:
    made = report()
    longer = replace(made.ranks[0].steps[0], step=99, duration_ns=7 * 66_000_000, exposed_ns=300_000_000)
    ranks = tuple(replace(rank, steps=(*rank.steps, longer)) for rank in made.ranks)
    text = verdict(replace(made, ranks=ranks, usual_steps=(12, 13))).text
    assert text.endswith("1 of 3 profiled steps, which took 7.0 times as long, mostly for communication.")


FAILED = Failure(RankEnd(1, "a", "failed: ValueError: boom", False, 14, exit_code=None), (), ())
SAVES = Predicted(5_000_000, 4_000_000, 6_000_000)
SURE = Finding("idle-for-data", "Training waits for its DataLoader", "why", "Use workers.", 9_000_000)
BOUND = Finding("buckets-too-large", "Bucket 0 holds 90% of the gradients", "why", "Split it.", 9_000_000)


@pytest.mark.parametrize(
    ("findings", "changes", "ends"),
    [
        pytest.param(
            (SURE,), {}, "First fix: Training waits for its DataLoader, up to 9.00 ms per step.", id="what-was-measured"
        ),
        pytest.param(
            (replace(BOUND, predicted=SAVES),),
            {},
            "First fix: Bucket 0 holds 90% of the gradients, saves 5.00 ms (4.00 – 6.00) per step, predicted.",
            id="what-was-predicted",
        ),
        pytest.param((BOUND,), {}, "ddpprof tune measures it.", id="nothing-leads-without-a-prediction"),
        pytest.param((replace(SURE, is_noise=True),), {}, "Change nothing: no finding is beyond noise.", id="noise"),
        pytest.param((), {}, "no rule found more than 1% of the step to recover.", id="nothing"),
        pytest.param((), {"failure": FAILED}, "Exposed communication was 7.45 ms of it, 11%.", id="failed"),
        pytest.param(
            (replace(SURE, title="4 threads share 2 cores", gain_ns=None),),
            {},
            "First fix: 4 threads share 2 cores.",
            id="of-unknown-gain",
        ),
        pytest.param(
            (replace(SURE, title="Each rank trains its own copy", gain_ns=None, may_be_meant=True),),
            {},
            "Check whether this is intended: Each rank trains its own copy.",
            id="may-be-meant",
        ),
    ],
)
def test_every_verdict_ends_with_what_to_change_or_with_nothing(
    findings: tuple[Finding, ...], changes: dict[str, Any], ends: str
) -> None:
    made = report(findings=findings, **changes)
    [verdict_line] = [one.text for one in first_screen(made, ["a"]) if isinstance(one, Line) and one.is_headline]
    assert verdict_line.endswith(ends)
    plain = re.sub(r"<[^>]+>", "", report_page(made))
    assert ends in unescape(plain)


def test_without_communication() -> None:
    made = report()
    quiet = tuple(
        replace(rank, steps=tuple(replace(step, num_comm_kernels=0, comm_ns=0) for step in rank.steps))
        for rank in made.ranks
    )
    assert verdict(replace(made, ranks=quiet)).text == "A step takes 65.20 ms, without communication."


def test_of_light_steps() -> None:
    assert verdict(light_report()).text == (
        "A step takes 56.20 ms. Only profiled steps tell how much of it is communication."
    )


def test_of_nothing() -> None:
    assert verdict(replace(report(), ranks=())).text == "No step was recorded completely."


def test_many_ranks_are_summed_up_and_the_odd_one_is_named() -> None:
    (table,) = spread_table(thousand_ranks(1000, 1))
    assert isinstance(table, Table)
    assert table.title == "All 1000 ranks, ms: step 10"
    backward = next(row for row in table.rows if row[0] == "backward")
    assert backward == ("backward", "24.00", "24.12", "24.22", "28.70", "700")


def test_few_ranks_need_no_summary() -> None:
    assert list(spread_table(thousand_ranks(16, 1))) == []


def test_traces_alone_do_not_tell_that_no_setting_helps() -> None:
    made = report(findings=())
    assert change_sentence(replace(made, job=replace(made.job, modules=()))) == (
        "Change nothing yet: traces alone cannot tell which DDP setting would shorten the step. They lack DDP's "
        "buckets and options, which ddpprof trace records."
    )


def test_traces_without_steps_say_what_they_lack() -> None:
    made = report(findings=())
    ranks = tuple(replace(rank, steps=(), light_steps=()) for rank in made.ranks)
    empty = replace(made, ranks=ranks, whole_run=None, job=replace(made.job, modules=(), num_steps=None))
    assert verdict(empty).text.startswith("The traces have no steps, so they cannot tell how long one takes.")
    recorded = replace(empty, job=replace(empty.job, num_steps=0))
    assert verdict(recorded).text == "No step was recorded completely."
