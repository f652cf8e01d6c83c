"""`ddpprof report RUN --out FOLDER/` writes tables, and says so where it cannot."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from reports import report

from ddpprof.cli import main
from ddpprof.render.json import render_json
from ddpprof.report.topics import TABLES

pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install 'ddpprof[tables]'")
GLOO = Path(__file__).parents[3] / "sample_traces" / "convnet-gloo-2ranks"
NAMES = {f"{table.name}.parquet" for table in TABLES}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_text(render_json(report()), encoding="utf-8")
    return path


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(GLOO), "--out", f"{tmp_path}/new/tables/"]) == 0
    folder = tmp_path / "new" / "tables"
    assert {path.name for path in folder.iterdir()} == NAMES
    steps = pq.read_table(folder / "steps.parquet")
    assert set(steps.column("rank").to_pylist()) == {0, 1}
    said = capsys.readouterr().out
    assert said.startswith(f"Wrote to {folder}: steps.parquet ({steps.num_rows} rows), ")


def test_the_ranks_that_are_asked_for(tmp_path: Path) -> None:
    assert main(["report", str(GLOO), "--only-ranks", "1", "--out", str(tmp_path)]) == 0
    assert pq.read_table(tmp_path / "ranks.parquet").column("rank").to_pylist() == [1]


def test_a_json_report_into_a_folder_that_is_there(written: Path, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "steps.parquet").write_text("of an earlier run")
    (folder / "notes.txt").write_text("mine")
    assert main(["report", str(written), "--out", str(folder)]) == 0
    assert pq.read_table(folder / "steps.parquet").num_rows == 4
    assert (folder / "notes.txt").read_text() == "mine"


def test_no_link_in_the_folder_is_followed(written: Path, tmp_path: Path) -> None:
    folder, precious = tmp_path / "there", tmp_path / "precious"
    folder.mkdir()
    precious.write_text("mine")
    (folder / "steps.parquet").symlink_to(precious)
    assert main(["report", str(written), "--out", f"{folder}/"]) == 0
    assert precious.read_text() == "mine"
    assert not (folder / "steps.parquet").is_symlink()


def said_by(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(list(map(str, arguments))) == 2
    return capsys.readouterr().err


def test_one_parquet_file_is_refused(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.parquet"
    assert said_by(capsys, "report", written, "--out", out) == (
        f"ddpprof: {out} is one file, but a report has several tables. Give a folder: --out {tmp_path}/\n"
    )


def test_a_table_of_times_has_no_such_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "times.csv"
    table.write_text("batch,ddp\n8,0.1\n16,0.2\n32,0.4\n")
    said = said_by(capsys, "report", table, "--out", f"{tmp_path}/")
    assert said == f"ddpprof: tables can be written for one run only, but {table} is a table of times.\n"


def test_a_table_of_times_has_no_sections(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "times.csv"
    table.write_text("batch,ddp\n8,0.1\n16,0.2\n32,0.4\n")
    assert said_by(capsys, "report", table, "--section", "step") == (
        f"ddpprof: --section prints a part of the report on one run, but {table} is a table of times.\n"
    )


@pytest.mark.parametrize("command", [["compare", "A", "A"], ["report", "A", "--format", "json"]])
def test_other_output_needs_a_file(
    command: list[str], written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(written) if word == "A" else word for word in command]
    said = said_by(capsys, *words, "--out", f"{tmp_path}/")
    assert said == f"ddpprof: {tmp_path} is a folder. Give a file: --out {tmp_path}/NAME.html\n"


def test_without_pyarrow_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = said_by(capsys, "report", GLOO, "--out", f"{tmp_path}/new/")
    assert said == "ddpprof: tables need pyarrow. Install it with: pip install pyarrow\n"
    assert not (tmp_path / "new").exists()
