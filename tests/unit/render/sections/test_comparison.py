"""Two runs side by side, in the terminal and as Markdown."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from reports import GOLDEN, HOSTILE, bucket, compare_runs, hostile_report, light_report, rank, report, step

from ddpprof.comparison import Comparison, MetricChange
from ddpprof.comparison.gate import judge, parse_conditions
from ddpprof.layout import Table
from ddpprof.model import Kernel
from ddpprof.render.json import render_json
from ddpprof.render.json_documents import ComparisonFile, schema
from ddpprof.render.markdown import render_markdown
from ddpprof.render.sections.comparison import comparison_sections
from ddpprof.render.terminal import render_terminal
from ddpprof.report import Report
from ddpprof.statistics.between_runs import Difference
from ddpprof.topics.kernels import KernelSummary


def run(idle_us: int, kernel_us: int, name: str = "gemm") -> Report:
    steps = [step(12 + index, 48_000, 9_000, 2_500, 100, idle_us + 10 * index) for index in range(5)]
    kernel = KernelSummary(
        Kernel(name, "[2,1,1][128,1,1]"), "backward", 5, 40, 40 * kernel_us * 1000, kernel_us * 1000, 0.05
    )
    return report(ranks=(rank(0, *steps),), kernels=(kernel,))


A = run(1000, 200)
B = replace(run(6000, 300), buckets=(bucket(0, ready_ns=9_000_000), bucket(1, num_bytes=7_000_000)))
SLOWER = compare_runs(A, B)
VERDICTS = judge(SLOWER, parse_conditions("step>5%,exposed>2ms"))


def drawn(comparison: Comparison, width: int = 80) -> str:
    file = io.StringIO()
    render_terminal(comparison_sections(comparison, judge(comparison, parse_conditions("step>5%"))), file, width)
    return file.getvalue()


def test_terminal(expect_golden: Callable[[Path, str], None]) -> None:
    file = io.StringIO()
    render_terminal(comparison_sections(SLOWER, VERDICTS), file, 100)
    expect_golden(GOLDEN / "comparison.txt", file.getvalue())


def test_markdown(expect_golden: Callable[[Path, str], None]) -> None:
    expect_golden(GOLDEN / "comparison.md", render_markdown("A and B", comparison_sections(SLOWER, VERDICTS)))


@pytest.mark.parametrize(
    "comparison",
    [
        SLOWER,
        compare_runs(report(), report()),
        compare_runs(light_report(), light_report()),
        compare_runs(A, light_report()),
    ],
)
def test_comparisons_are_as_their_schema_says(comparison: Comparison) -> None:
    verdicts = judge(comparison, parse_conditions("step>5%"))
    jsonschema.Draft202012Validator(schema(ComparisonFile)).validate(
        json.loads(render_json(ComparisonFile(comparison, verdicts)))
    )


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_names_stay_text(name: str) -> None:
    hostile = replace(hostile_report(name), kernels=run(1000, 300, name).kernels)
    text = drawn(compare_runs(replace(hostile, kernels=run(1000, 200, name).kernels), hostile))
    assert all(c.isprintable() for c in text.replace("\n", ""))
    assert len(text.splitlines()) < 200


def test_a_bucket_that_is_ready_as_the_forward_ends_has_a_time() -> None:
    a, b = (report(buckets=(bucket(0, ready_ns=0, launched_ns=None),)) for _ in "ab")
    row = next(line for line in drawn(compare_runs(a, b)).splitlines() if "4.24" in line)
    assert row.split()[:7] == ["0", "0", "4.24", "0.00", "→", "0.00", "-"]


@pytest.mark.parametrize(
    ("low_ms", "high_ms", "is_measured", "word"),
    [
        pytest.param(1, 9, True, "more", id="slower"),
        pytest.param(-9, -1, True, "less", id="faster"),
        pytest.param(-1, 1.9, True, "noise", id="less-than-matters"),
        pytest.param(-1, 2.1, True, "cannot tell", id="perhaps-much-slower"),
        pytest.param(-2.1, 1, True, "cannot tell", id="perhaps-much-faster"),
        pytest.param(-90, 90, False, "cannot tell", id="few-runs"),
    ],
)
def test_what_may_be_noise_but_may_also_matter_cannot_be_told(
    low_ms: float, high_ms: float, is_measured: bool, word: str
) -> None:
    """A change of 2 ms or more matters in a step of 40 ms."""
    difference = Difference((low_ms + high_ms) / 2 * 1e6, low_ms * 1e6, high_ms * 1e6, is_measured)
    step_of_40 = MetricChange("step", 40_000_000, 42_000_000, 80, 80, difference=difference)
    tables = [one for one in comparison_sections(replace(SLOWER, metrics=(step_of_40,))) if isinstance(one, Table)]
    (row,) = next(one.rows for one in tables if one.title.startswith("Per step"))
    assert row[-1] == word


def test_what_matters_is_a_part_of_the_step_and_not_of_the_measure() -> None:
    whole = MetricChange("step", 40_000_000, 40_000_000, 80, 80, difference=Difference(0, -1e6, 1e6, True))
    part = replace(whole, metric="optimizer", a_ns=1_000_000, b_ns=1_000_000)
    tables = [one for one in comparison_sections(replace(SLOWER, metrics=(whole, part))) if isinstance(one, Table)]
    rows = next(one.rows for one in tables if one.title.startswith("Per step"))
    assert [row[-1] for row in rows] == ["noise", "noise"]
