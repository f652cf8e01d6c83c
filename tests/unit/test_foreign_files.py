"""What lies in a run that somebody else made does no harm to who reads it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from experiments import PLAN

from ddpprof import own_files, rundir
from ddpprof.cli import main
from ddpprof.cli.tensorboard import _write_beside
from ddpprof.experiments.plan import write_plan
from ddpprof.record.run_directory import open_run
from ddpprof.record.settings import Settings

RUN = Path(__file__).parents[2] / "sample_traces" / "convnet-gloo-2ranks"
"""of two ranks"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that the test may spoil."""
    copy = tmp_path / "run"
    shutil.copytree(RUN, copy, ignore=shutil.ignore_patterns("tensorboard"))
    return copy


def _replace(run: Path) -> None:
    open_run(Settings(str(run), force=True), "id", 2)


def _report(run: Path) -> None:
    assert main(["report", str(run)]) == 0


def _append_exit(run: Path) -> None:
    with pytest.raises(OSError, match="symbolic links"):
        own_files.append_to(run / rundir.EXITS_FILE)


def _show_in_tensorboard(run: Path) -> None:
    assert _write_beside(run, False, None) is None  # type: ignore[arg-type] (nothing is read where nothing is written)


@pytest.mark.parametrize(
    ("link", "use"),
    [
        pytest.param("attempt-1", _replace, id="a-further-attempt-when-the-run-is-replaced"),
        pytest.param("tensorboard", _replace, id="tensorboard-when-the-run-is-replaced"),
        pytest.param("run.json", _replace, id="run-file-when-the-run-is-replaced"),
        pytest.param("attempt-1", _report, id="a-further-attempt-when-the-run-is-read"),
        pytest.param("tensorboard", _show_in_tensorboard, id="tensorboard-when-it-is-shown-there"),
        pytest.param("exits.jsonl", _append_exit, id="exits-when-a-rank-ends"),
    ],
)
def test_what_stands_behind_a_link_in_a_run_stays_as_it_is(run: Path, link: str, use: Callable[[Path], None]) -> None:
    elsewhere = run.with_name("elsewhere")
    shutil.copytree(run, elsewhere)
    is_file = (elsewhere / link).is_file()
    (run / link).unlink(missing_ok=True)
    (run / link).symlink_to(elsewhere / link if is_file else elsewhere)
    before = _content(elsewhere)
    use(run)
    assert _content(elsewhere) == before


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


STEERING = "\x1b]52;c;cm0gLXJm\x07\x1b[2J\x9b31m"
"""fills the clipboard, and clears the screen"""


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["report", f"absent{STEERING}"], id="no-such-run"),
        pytest.param(["report", f"bad{STEERING}.json"], id="bad-trace"),
        pytest.param(["report", "run", "--out", f"here{STEERING}.json"], id="output"),
        pytest.param(["sweep", "--resume", "experiment"], id="experiment"),
    ],
)
def test_nothing_that_is_printed_steers_the_terminal(
    run: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parent)
    Path(f"bad{STEERING}.json").write_text("{")
    Path("experiment").mkdir()
    write_plan(Path("experiment"), replace(PLAN, command=(STEERING,)))
    with (Path("experiment") / "experiment.json").open() as file:
        changed = {**json.load(file), "seal": None}
    (Path("experiment") / "experiment.json").write_text(json.dumps(changed))
    main(arguments)
    said = "".join(capfd.readouterr())
    assert said.strip()
    assert not [c for c in said if not c.isprintable() and c != "\n"]


def _a_pipe(file: Path) -> None:
    os.mkfifo(file)


def _endless_zeros(file: Path) -> None:
    file.symlink_to("/dev/zero")


def _a_huge_file(file: Path) -> None:
    file.touch()
    os.truncate(file, 1 << 40)


def _a_link_to_itself(file: Path) -> None:
    file.symlink_to(file.name)


@pytest.mark.parametrize(
    "name",
    [
        "rank-0.facts.json",
        "rank-0.steps.jsonl",
        "rank-0.last_step",
        "rank-0.pulse",
        "exits.jsonl",
        "slowdowns.json",
        "hang.json",
        "run.json",
    ],
)
@pytest.mark.parametrize("make", [_a_pipe, _endless_zeros, _a_huge_file, _a_link_to_itself, Path.mkdir])
def test_what_is_no_ordinary_file_is_a_note_or_one_line(
    run: Path, name: str, make: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    (run / name).unlink(missing_ok=True)
    make(run / name)
    is_the_run = (run / name).is_file() and name == "run.json"  # else it is a folder of traces
    code = main(["report", str(run), "--no-cache"])
    said = capfd.readouterr()
    assert (code, said.err.count("\n")) == ((2, 1) if is_the_run else (0, 0)), said


@pytest.mark.parametrize(
    "changes", [{"rounds": 10**12}, {"rounds": -1}, {"timed_steps": 10**12}, {"skip_first": -1}], ids=str
)
def test_a_plan_without_end_is_one_line(
    tmp_path: Path, changes: dict[str, int], capfd: pytest.CaptureFixture[str]
) -> None:
    write_plan(tmp_path, replace(PLAN, **changes))
    assert main(["report", str(tmp_path)]) == 2
    assert capfd.readouterr().err.count("\n") == 1
