"""Pages from the command line: of runs, JSON reports, comparisons and tables of times."""

from pathlib import Path

import pytest
from pages import data_of
from reports import report

from ddpprof.cli import main
from ddpprof.render.json import render_json

GLOO = Path(__file__).parents[3] / "sample_traces" / "convnet-gloo-2ranks"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_text(render_json(report()), encoding="utf-8")
    return path


def page_of(*arguments: str | Path, out: Path) -> str:
    assert main([*map(str, arguments), "--out", str(out)]) == 0
    return out.read_text(encoding="utf-8")


def test_a_run_has_its_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = page_of("report", GLOO, out=tmp_path / "page.html")
    assert 'id="timeline-data"' in page
    assert capsys.readouterr().out == f"Wrote {tmp_path / 'page.html'}.\n"


def test_a_run_has_the_timeline_of_the_ranks_that_are_asked_for(tmp_path: Path) -> None:
    page = page_of("report", GLOO, "--only-ranks", "1-5", out=tmp_path / "page.html")
    assert [one["rank"] for one in data_of(page, "timeline-data")["ranks"]] == [1]


def test_ranks_that_the_run_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(GLOO), "--only-ranks", "7", "--out", str(tmp_path / "page.html")]) == 2
    assert capsys.readouterr().err == "ddpprof: no such rank: the run has ranks 0-1.\n"


def test_a_json_report_has_none(written: Path, tmp_path: Path) -> None:
    page = page_of("report", written, out=tmp_path / "page.htm")
    assert 'id="timeline-data"' not in page
    assert "There is no timeline, because this page was made from a JSON report" in page


def test_a_comparison(written: Path, tmp_path: Path) -> None:
    assert "What changed" in page_of("compare", written, GLOO, out=tmp_path / "page.html")


def test_a_table_of_times(tmp_path: Path) -> None:
    table = tmp_path / "times.csv"
    table.write_text("batch,ddp\n8,0.1\n16,0.2\n32,0.4\n")
    assert "Step time by size" in page_of("report", table, out=tmp_path / "page.html")


def test_a_table_of_times_whose_line_comes_to_nothing(tmp_path: Path) -> None:
    table = tmp_path / "times.csv"
    table.write_text("workers,a,b\n1,10,1\n2,10,2\n4,1,4\n8,100,8\n")
    page = page_of("report", table, out=tmp_path / "page.html")
    traces = data_of(page, "charts-0-figure")["data"]
    assert [trace["name"] for trace in traces] == ["a", "model of a", "b", "model of b"]
    assert all(y > 0 for trace in traces for y in trace["y"])
    assert 0 < len(traces[1]["x"]) == len(traces[1]["y"]) < len(traces[3]["x"])


def test_on_standard_output(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(written), "--format", "html"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>\n")
