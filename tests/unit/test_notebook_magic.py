"""The words after ``%%ddpprof``, and the script that a cell becomes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fleets import SAMPLE

from ddpprof import notebook_magic
from ddpprof.errors import DdpprofError
from ddpprof.notebook_magic import MagicLine, trace_cell, write_script


def test_options_and_arguments_of_the_script() -> None:
    line = MagicLine.parse("--nproc-per-node 2 --out runs/a --steps=3 -- --epochs 1 --out models")
    assert line.out == Path("runs/a")
    assert line.options == ("--nproc-per-node", "2", "--steps=3")
    assert line.script == ("--epochs", "1", "--out", "models")


@pytest.mark.parametrize("text", ["--out=runs/b c", "c --out runs/b"])
def test_the_run_may_be_named_anywhere(text: str) -> None:
    line = MagicLine.parse(text)
    assert (line.out, line.options) == (Path("runs/b"), ("c",))


def test_a_run_without_a_name_gets_one() -> None:
    out = MagicLine.parse("").out
    assert out.parent == Path("runs")
    assert out.name.startswith("cell-")


@pytest.mark.parametrize(
    ("text", "said"),
    [("--out 'a", r"^cannot read the options: No closing quotation: --out 'a$"), ("--out .", "no name for a new")],
)
def test_a_mistake_in_the_line(text: str, said: str) -> None:
    with pytest.raises(DdpprofError, match=said):
        MagicLine.parse(text)


def test_lines_of_the_script_are_those_of_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of the magic is the first of the cell."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "runs" / "a.py"
    write_script(script, "x = 1\n1 / 0\n")
    assert script.read_text().splitlines()[1:] == ["x = 1", "1 / 0"]
    found: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path / "other"))
        with pytest.raises(ZeroDivisionError) as error:
            exec(compile(script.read_text(), "a.py", "exec"), found)
        assert found["sys"].path[0] == str(tmp_path)  # type: ignore[attr-defined]
    assert error.traceback[-1].lineno == 2


def test_a_cell_replaces_its_own_script_only(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    write_script(script, "x = 1\n")
    write_script(script, "x = 2\n")
    assert script.read_text().endswith("x = 2\n")
    script.write_text("print('mine')\n")
    with pytest.raises(DdpprofError, match=r"would be replaced. Choose another folder with --out"):
        write_script(script, "x = 3\n")
    assert script.read_text() == "print('mine')\n"


def test_a_folder_of_the_script_s_name_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DdpprofError, match=r"cannot write .*: Is a directory"):
        write_script(tmp_path, "x = 1\n")


def test_an_earlier_run_is_not_shown_as_that_of_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``ddpprof trace`` ends with 2, without touching the run."""
    run = tmp_path / "run"
    shutil.copytree(SAMPLE, run)
    monkeypatch.setattr(notebook_magic, "_run", lambda _command: 2)
    with pytest.raises(DdpprofError, match=r"nothing was recorded: .* holds an earlier run"):
        trace_cell(f"--out {run}", "x = 1\n")
