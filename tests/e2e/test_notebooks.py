"""The example notebooks run in a real Jupyter kernel, from beginning to end, and show what they say."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from jobs import environment
from processes import is_gone, wait_until

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install nbclient ipykernel")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install nbclient ipykernel")
pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install ipykernel")

CHECKOUT = Path(__file__).parents[2]
NOTEBOOKS = CHECKOUT / "docs" / "notebooks"


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run all cells of a notebook in a copy of its folder; an exception in a cell fails the test."""
    folder = tmp_path / "docs" / "notebooks"
    folder.mkdir(parents=True)
    for sample in ("convnet-gloo-2ranks", "transformer-gloo-4ranks"):
        shutil.copytree(CHECKOUT / "sample_traces" / sample, tmp_path / "sample_traces" / sample)
    for name, value in environment(IPYTHONDIR=str(tmp_path / "ipython")).items():
        monkeypatch.setenv(name, value)

    def run(cells: list[Any], **options: Any) -> list[Any]:
        notebook = nbformat.v4.new_notebook(cells=cells)
        resources = {"metadata": {"path": str(folder)}}
        chosen = {"timeout": 180, "kernel_name": "python3", **options}
        nbclient.NotebookClient(notebook, resources=resources, **chosen).execute()
        return list(notebook.cells)

    return run


def result(cell: Any, kind: str) -> str:
    """Return the cell's result in one of its forms."""
    (found,) = (output.data for output in cell.outputs if output.output_type == "execute_result")
    return str(found[kind])


def cells_of(name: str) -> list[Any]:
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    nbformat.validate(notebook)
    assert not [cell for cell in notebook.cells if cell.get("outputs")], "outputs would grow stale"
    return list(notebook.cells)


@pytest.mark.long
def test_reading_a_run(execute: Any) -> None:
    for package in ("pandas", "duckdb", "pyarrow"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install {package}")
    code = [cell for cell in execute(cells_of("read_a_run.ipynb")) if cell.cell_type == "code"]
    shown, printed, described, pivot, answer, prediction, comparison = code
    assert "A step takes " in result(shown, "text/html")
    assert "<details><summary>Where the time of a step goes" in result(shown, "text/html")
    assert result(shown, "text/plain") == printed.outputs[0].text.rstrip("\n")
    assert "size_bytes                   size of the bucket\n" in described.outputs[0].text
    assert [word for word in result(pivot, "text/plain").split() if word.isdecimal()][:2] == ["0", "1"]
    assert "waits_ms" in result(answer, "text/plain")
    assert "bucket_cap_mb=2" in result(prediction, "text/plain")
    assert "Differences between the runs" in result(comparison, "text/html")


@pytest.mark.long
def test_tracing_a_cell(execute: Any, tmp_path: Path) -> None:
    code = [cell for cell in execute(cells_of("trace_a_cell.ipynb")) if cell.cell_type == "code"]
    _, traced, counted = code
    assert "trained\n" in "".join(output.text for output in traced.outputs if output.output_type == "stream")
    assert "A step takes " in result(traced, "text/html")
    assert result(traced, "text/plain").startswith("runs/cell-")
    assert result(counted, "text/plain") == "[(0, 3), (1, 3)]"
    (script,) = (tmp_path / "docs" / "notebooks" / "runs").glob("cell-*.py")
    assert (script.with_suffix("") / "run.json").exists()


@pytest.mark.long
def test_a_cell_that_fails_says_so_in_a_line(execute: Any) -> None:
    code = nbformat.v4.new_code_cell
    # Only rank 0 fails: torchrun starts ranks unbuffered, and two tracebacks in pieces would mix in one pipe.
    fails = "import os\nif os.environ['RANK'] == '0':\n    1 / 0\n"
    failing = code(f"%%ddpprof --nproc-per-node 2\n{fails}", metadata={"tags": ["raises-exception"]})
    load, failed = execute([code("%load_ext ddpprof"), failing])
    assert load.outputs == []
    text = "".join(output.text for output in failed.outputs)
    assert "line 4, in <module>\n    1 / 0\n" in text
    assert "ddpprof: the cell's training ended with exit code 1\n" in text
    assert "UsageError: ddpprof: nothing was recorded in runs/cell-" in text


@pytest.mark.long
def test_interrupting_a_cell_ends_its_ranks(execute: Any, tmp_path: Path) -> None:
    code, started = nbformat.v4.new_code_cell, tmp_path / "started"
    endless = f"import os, time\nopen({str(started)!r}, 'a').write(f'{{os.getpid()}}\\n')\ntime.sleep(600)\n"
    cells = [
        code("%load_ext ddpprof"),
        code(f"%%ddpprof --nproc-per-node 2\n{endless}", metadata={"tags": ["raises-exception"]}),
        code("1 + 1"),
    ]
    _, interrupted, after = execute(cells, timeout=40, interrupt_on_timeout=True)
    assert [output.ename for output in interrupted.outputs if output.output_type == "error"] == ["KeyboardInterrupt"]
    assert result(after, "text/plain") == "2"
    ranks = [int(line) for line in started.read_text().split()]
    assert len(ranks) == 2
    wait_until(lambda: all(map(is_gone, ranks)), "the ranks are gone")
