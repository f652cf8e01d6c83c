"""What ``import ddpprof`` offers."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import ddpprof
from ddpprof.errors import how_to_install

PACKAGE = Path(ddpprof.__file__).parent
CHECKOUT = Path(__file__).parents[2]
SAMPLE = Path(__file__).parents[2] / "sample_traces" / "convnet-gloo-2ranks"


def test_the_public_names_are_these() -> None:
    read = {"Report", "Run", "Trace", "build_report", "give_back_large_arrays", "load_run", "load_trace"}
    measured = {"Overlap", "Shift", "between_runs", "compare_reports", "measure_overlap", "shift_between", "whatif"}
    others = {"DdpprofError", "__version__", "hooks", "integrations", "main", "profile", "watch"}
    assert set(ddpprof.__all__) == read | measured | others


def test_every_public_name_is_there() -> None:
    assert all(getattr(ddpprof, name) is not None for name in ddpprof.__all__)


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ddpprof.nothing


def test_a_run_read_and_measured() -> None:
    run = ddpprof.load_run(str(SAMPLE))
    assert isinstance(run, ddpprof.Run)
    report = ddpprof.build_report(run)
    assert isinstance(report, ddpprof.Report)
    assert [rank.rank for rank in report.ranks] == [0, 1]


def test_a_trace_read_and_measured() -> None:
    trace = ddpprof.load_trace(SAMPLE / "rank-0.trace.json.gz")
    assert isinstance(trace, ddpprof.Trace)
    overlap = ddpprof.measure_overlap(trace, None)
    assert isinstance(overlap, ddpprof.Overlap)
    assert overlap.comm_ns > 0


def test_two_samples_compared() -> None:
    shift = ddpprof.shift_between([10.0] * 5, [12.0] * 5)
    assert isinstance(shift, ddpprof.Shift)
    assert shift.shift == 2.0
    assert ddpprof.between_runs.difference_between([10.0] * 6, [12.0] * 6, 8.0).is_beyond_noise


def test_the_command_line_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert ddpprof.main(["explain", "bucket"]) == 0
    assert capsys.readouterr().out


def test_public_names_are_listed_for_completion() -> None:
    assert set(dir(ddpprof)) == set(ddpprof.__all__)


def _texts() -> Iterator[tuple[Path, str]]:
    """Yield the texts of the package's code, without its docstrings."""
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        described = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
                yield path, node.value


def test_no_message_names_what_only_the_source_has() -> None:
    """Neither extras, for which pip would need ddpprof on PyPI, nor files of docs/."""
    for path, text in _texts():
        assert "ddpprof[" not in text, path
        assert "docs/" not in text, path


def test_missing_packages_are_named_as_the_extras_name_them() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    known = {re.split(r"[<>=\[;]", one)[0] for extra in project["optional-dependencies"].values() for one in extra}
    calls = [
        node
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "how_to_install"
    ]
    asked = {word.value for call in calls for word in call.args if isinstance(word, ast.Constant)}
    assert {"torch", "plotly", "pyarrow", "py-spy"} <= asked <= known
    assert how_to_install("prometheus-client") == "Install it with: pip install prometheus-client"


def test_what_the_readme_shows_works_with_all_extras() -> None:
    """It serves metrics, draws pages and tables, and starts TensorBoard."""
    extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [included] = [re.findall(r"[a-z]+", one.partition("[")[2]) for one in extras["all"]]
    assert set(included) >= {"html", "tensorboard", "tables", "metrics"}
