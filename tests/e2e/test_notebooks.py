"""The example notebooks run in a real Jupyter kernel, from beginning to end, and show what they say."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from jobs import environment

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
