"""The example topic of the documentation, installed as a package, is in every form of the report."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import DDPPROF, environment

pytestmark = pytest.mark.e2e

CHECKOUT = Path(__file__).parents[2]
RUN = CHECKOUT / "sample_traces" / "convnet-gloo-2ranks"
BLOCK = re.compile(r'^```\w+ title="([\w.]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)

Report = Callable[..., str]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Run `ddpprof report` where the package is installed; it may write into the folder `out`."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("own-topic")
    package, installed = folder / "package", folder / "installed"
    package.mkdir()
    for name, content in BLOCK.findall((CHECKOUT / "docs/guides/own-topics.md").read_text(encoding="utf-8")):
        (package / name).write_text(content, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*pip, str(installed), str(package)], check=True, timeout=600)

    def run(*options: str) -> str:
        done = subprocess.run(
            [*DDPPROF, "report", str(RUN), *options],
            cwd=folder,
            env=environment(PYTHONPATH=str(installed), XDG_CACHE_HOME=str(folder / "cache")),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def rows(report: Report) -> list[dict[str, int]]:
    found: list[dict[str, int]] = json.loads(report("--format", "json"))["further"]["long-steps"]
    return found


def test_its_numbers_are_in_json_whoever_reads_the_ranks(report: Report) -> None:
    first = rows(report)
    assert [row["rank"] for row in first] == [0, 1]
    assert all(row["num_steps"] > 5 for row in first)
    assert rows(report) == first, "from the cache"
    again = json.loads(report("--format", "json", "--no-cache", "--jobs", "2"))
    assert again["further"]["long-steps"] == first


def test_its_section_is_in_the_terminal_and_on_the_page(report: Report, tmp_path: Path) -> None:
    shown = report("--full")
    assert "Long steps" in shown
    assert re.search(r"rank +steps +long +longest ms", shown), shown
    report("--out", str(tmp_path / "a.html"))
    assert "Long steps" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_its_table_has_its_numbers(report: Report, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    report("--out", f"{tmp_path / 'tables'}{os.sep}")
    table = parquet.read_table(tmp_path / "tables" / "long-steps.parquet")
    assert table.to_pylist() == rows(report)


def test_its_finding_is_among_the_others(report: Report) -> None:
    row = max(rows(report), key=lambda one: one["num_long"])
    rules = [finding["rule"] for finding in json.loads(report("--format", "json"))["findings"]]
    assert ("long-steps" in rules) is (row["num_long"] > 0.05 * row["num_steps"])


def test_a_report_in_json_is_read_without_the_package(report: Report, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(report("--format", "json"), encoding="utf-8")
    compare = [*DDPPROF, "compare", str(kept), str(kept)]
    done = subprocess.run(compare, env=environment(), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
