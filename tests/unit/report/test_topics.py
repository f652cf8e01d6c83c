"""What topics say of themselves holds."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pages import GLOO_2
from reports import HOSTILE, across, gpu_report, hostile_report, light_report, report, slowdown

from ddpprof.engine.numbers import Declared
from ddpprof.engine.topic import TableSchema, Topic, View
from ddpprof.errors import DdpprofError
from ddpprof.load.run import load_run
from ddpprof.report import Report
from ddpprof.report.build import build_report
from ddpprof.report.topics import TABLES, TOPICS, UNITS, arrow_type, parquet_bytes, schema_as_markdown, with_topics


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_topics_are_whole(topic: Topic[Any, Any]) -> None:
    assert (topic.of_rank is None) is (topic.rank_type is None)
    assert topic.of_ranks is None or topic.of_rank is not None
    assert topic.of_rank is None or topic.of_run is None
    assert (topic.of_file is None) is (topic.file is None)


def test_names_stand_once() -> None:
    assert len({topic.name for topic in TOPICS}) == len(TOPICS)


def test_of_a_run_of_which_nothing_is_known_topics_show_nothing_but_emptiness() -> None:
    view = with_topics(View(world_size=None, step_ns=None), [])
    assert not any(view.shown[name] for name in ("unused_parameters", "gradient_copies", "checkpoints"))


pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install 'ddpprof[tables]'")


def test_steps_have_their_times_and_say_whether_they_count() -> None:
    steps = replace(report(), usual_steps=(13,)).tables.steps
    (first, _, _, last) = steps.to_pylist()
    assert [row["step"] for row in steps.to_pylist()] == [12, 13, 12, 13]
    assert {name: first[name] for name in ("rank", "is_usual", "comm_ns", "overlap_ns", "exposed_ns")} == {
        "rank": 0, "is_usual": False, "comm_ns": 9_000_000, "overlap_ns": 2_500_000, "exposed_ns": 6_500_000,
    }  # fmt: skip
    assert (last["rank"], last["is_usual"], last["trailing_ns"]) == (1, True, None)
    assert sum(value for name, value in first.items() if name.startswith("part_")) == first["duration_ns"]


def test_light_steps_have_their_parts() -> None:
    made = light_report()
    rows = made.tables.light_steps.to_pylist()
    assert [(row["rank"], row["step"], row["mode"], row["duration_ns"]) for row in rows] == [
        (rank.rank, step.step, step.mode, step.duration_ns) for rank in made.ranks for step in rank.light_steps
    ]
    assert any(row["part_forward_ns"] is not None for row in rows)


def test_kernels_know_how_much_communication_slowed_them() -> None:
    one = replace(slowdown().kernels[0], kernel=report().kernels[0].kernel)
    (row,) = report(overlap_slowdown=replace(slowdown(), kernels=(one,))).tables.kernels.to_pylist()
    assert (row["name"], row["num_runs"], row["total_ns"]) == ("gemm", 8, 40_000)
    assert (row["slowdown_ratio"], row["slowdown_lost_ns"]) == (one.ratio, one.lost_ns)
    (alone,) = report().tables.kernels.to_pylist()
    assert alone["slowdown_ratio"] is None


def test_ranks_have_what_is_known_of_them_across_ranks() -> None:
    made = report(across=across())
    waiting = {one.rank: one.waiting_per_step_ns for one in made.across.waiting} if made.across else {}
    rows = made.tables.ranks.to_pylist()
    assert [row["waiting_per_step_ns"] for row in rows] == [waiting[0], waiting[1]]
    assert [row["num_steps"] for row in rows] == [2, 2]


def test_findings_are_in_the_order_of_the_report() -> None:
    rows = report().tables.findings.to_pylist()
    assert [(row["number"], row["rule"], row["gain_ns"]) for row in rows] == [
        (1, "buffers-broadcast", 3_180_000), (2, "set-epoch-never-called", None), (3, "unused-parameters", None),
    ]  # fmt: skip


def test_the_numbers_of_a_recorded_run_are_those_of_its_report() -> None:
    made = build_report(load_run(GLOO_2))
    tables = made.tables
    assert tables.steps.num_rows == sum(len(rank.steps) for rank in made.ranks) > 0
    assert tables.buckets.column("size_bytes").to_pylist() == [bucket.num_bytes for bucket in made.buckets]
    assert tables.collectives.num_rows > 0
    assert tables.collectives.column("total_bytes").to_pylist() == [
        row.num_bytes for row in (made.across.collectives if made.across is not None else ())
    ]
    assert sum(tables.steps.column("exposed_ns").to_pylist()) == sum(
        step.exposed_ns for rank in made.ranks for step in rank.steps
    )


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(report(across=across(), overlap_slowdown=slowdown()), id="all"),
        pytest.param(gpu_report(), id="accelerator"),
        pytest.param(light_report(), id="light"),
        pytest.param(replace(report(), ranks=(), buckets=(), findings=(), kernels=()), id="nothing"),
        *(pytest.param(hostile_report(name), id=kind) for kind, name in HOSTILE.items() if kind != "undecodable"),
    ],
)
def test_every_table_is_as_declared(made: Report) -> None:
    tables = dict(made.tables)
    assert list(tables) == [table.name for table in TABLES]
    for declared in TABLES:
        table = tables[declared.name]
        assert [(f.name, str(f.type), f.metadata) for f in table.schema] == [
            (c.column, arrow_type(c), {b"description": c.meaning.encode()}) for c in declared.columns
        ]
        assert table.schema.metadata[b"description"] == declared.description.encode()
        assert table.validate(full=True) is None


def test_a_number_that_no_column_can_hold_is_the_reports_fault() -> None:
    step = report().ranks[0].steps[0]
    ranks = (replace(report().ranks[0], steps=(replace(step, duration_ns=1 << 70),)),)
    with pytest.raises(DdpprofError, match=r"^demo: steps\.duration_ns does not fit: "):
        _ = report(ranks=ranks).tables


def test_tables_say_how_many_rows_they_have() -> None:
    assert repr(report().tables).startswith("Tables(steps: 4 rows, light_steps: 0 rows, ranks: 2 rows, ")


def test_without_pyarrow_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DdpprofError, match=r"^tables need pyarrow. Install it with: pip install pyarrow$"):
        _ = report().tables


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    path = tmp_path / "steps.parquet"
    path.write_bytes(parquet_bytes(report().tables.steps))
    return path


EXPOSED_OF_RANK_1 = [9_000_000, 8_000_000]


def test_pandas_reads_them(parquet: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    for frame in (report().tables.steps.to_pandas(), pandas.read_parquet(parquet)):
        assert frame[frame["rank"] == 1]["exposed_ns"].tolist() == EXPOSED_OF_RANK_1
        assert frame["trailing_ns"].isna().tolist() == [False, False, False, True]


def test_polars_reads_them(parquet: Path) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed: pip install polars")
    for frame in (polars.from_arrow(report().tables.steps), polars.read_parquet(parquet)):
        assert frame.filter(polars.col("rank") == 1)["exposed_ns"].to_list() == EXPOSED_OF_RANK_1
        assert frame["trailing_ns"].is_null().to_list() == [False, False, False, True]


def test_duckdb_reads_them(parquet: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: pip install duckdb")
    connection = duckdb.connect()
    connection.register("steps", report().tables.steps)
    question = "select exposed_ns, trailing_ns is null from {} where rank = 1 order by step"
    for source in ("steps", f"read_parquet('{parquet}')"):
        found: list[tuple[Any, ...]] = connection.sql(question.format(source)).fetchall()
        assert found == [(9_000_000, False), (8_000_000, True)]
    connection.close()


def test_descriptions_are_in_the_file(parquet: Path) -> None:
    read = pq.read_schema(parquet)
    assert read.field("exposed_ns").metadata[b"description"] == b"time with communication but no computation"
    assert read.metadata[b"run"] == b"demo"


ALL = [pytest.param(column, id=f"{table.name}.{column.column}") for table in TABLES for column in table.columns]
NUMBERED = {"rank", "step", "module", "bucket", "number", "position", "late_rank"}
"""integers that name a thing"""


@pytest.mark.parametrize("column", ALL)
def test_a_number_says_its_unit(column: Declared) -> None:
    is_number = column.kind in (int, float)
    has_unit = column.column.endswith(UNITS) or column.column.startswith("num_")
    assert has_unit == (is_number and column.column not in NUMBERED)
    assert column.column.startswith("is_") == (column.kind is bool)


@pytest.mark.parametrize("column", ALL)
def test_a_column_is_described_in_one_line(column: Declared) -> None:
    assert 3 < len(column.meaning) < 120
    assert not set(column.meaning) & set("\n|")
    assert not column.meaning.endswith(".")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_names_of_a_table_are_unique(table: TableSchema) -> None:
    names = [column.column for column in table.columns]
    assert len(names) == len(set(names))


def test_the_documentation_has_every_table_and_column() -> None:
    text = schema_as_markdown(TABLES)
    assert text.startswith("## steps\n\nOne row per rank and profiled step.")
    assert "| `exposed_ns` | int64 | time with communication but no computation |" in text
    assert text.count("\n| `") == len(ALL)
