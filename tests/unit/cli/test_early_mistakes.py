"""Mistakes are told at once, in one line that helps: before anything is read, run or written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ddpprof import own_files
from ddpprof.cli import main
from ddpprof.cli.commands import parsers
from ddpprof.cli.job import parse_job
from ddpprof.cli.trace import report_stream

SAMPLE = str(Path(__file__).parents[3] / "sample_traces" / "convnet-gloo-2ranks")
Capsys = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tarce", "train.py"], "there is no command tarce. Did you mean trace? List all commands with"),
        (["train.py", "--lr", "1"], "train.py is not a command. To trace it: ddpprof trace train.py --lr 1"),
        (["trace", "--nproc-per-node", "zero", "train.py"], "zero is neither a number of ranks, such as 2, nor gpu"),
        (["watch", "--nproc", "0", "train.py"], "0 is neither a number of ranks"),
        (["netbench", "--nproc=-1"], "-1 is neither a number of ranks"),
        (["tune", "--nproc-per-node", "zero", "train.py"], "zero is not a whole number"),
        (["scale", "--nproc_per_node", "1,x", "train.py"], "x is not a whole number"),
        (
            ["report", SAMPLE, "--out", "/nowhere/x.html"],
            ("cannot write /nowhere/x.html: there is no folder /nowhere."),
        ),
        (["whatif", SAMPLE, "--out", "/nowhere/x.json"], "cannot write /nowhere/x.json: there is no folder"),
        (["timeline", SAMPLE, "--out", "/nowhere/x.json"], "cannot write /nowhere/x.json: there is no folder"),
        (["compare", SAMPLE, SAMPLE, "--out", "/nowhere/x.md"], "cannot write /nowhere/x.md: there is no folder"),
        (["report", "nowhere"], "nowhere does not exist. Record a run with: ddpprof trace --out nowhere train.py"),
    ],
)
def test_a_mistake_is_told_before_any_work(
    words: list[str], says: str, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> None:
        pytest.fail("a run was read")

    monkeypatch.setattr("ddpprof.pipeline.analysis.analysed", read)
    assert main(words) == 2
    assert says in capsys.readouterr().err


def test_a_run_is_not_started_where_it_cannot_be_written(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpprof.record.launch.run_job", lambda *_, **__: pytest.fail("the job was started"))
    (tmp_path / "file").touch()
    (tmp_path / "train.py").touch()
    assert main(["trace", "--out", str(tmp_path / "file" / "run"), str(tmp_path / "train.py")]) == 2
    assert f"{tmp_path / 'file'} is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["--nproc", "--nproc-per-node", "--nproc_per_node"])
def test_the_number_of_processes_has_the_same_names_everywhere(name: str) -> None:
    for command in ("trace", "watch"):
        options = parse_job(parsers()[1][command], [name, "2", "train.py"], command).options
        assert options.torchrun[1] == "2"
        assert options.torchrun[0] in ("--nproc-per-node", "--nproc_per_node"), "torchrun does not know --nproc"
    assert parsers()[1]["netbench"].parse_args([name, "2"]).torchrun[1] == "2"
    for command in ("overhead", "tune"):
        assert parsers()[1][command].parse_args([name, "2"]).nproc == 2
    for command in ("scale", "sweep"):
        assert parsers()[1][command].parse_args([name, "1,2"]).nproc == [1, 2]


@pytest.mark.parametrize(
    ("words", "code"), [(["top"], 2), (["diagnose"], 0), (["capture"], 2), (["report"], 2), (["whatif"], 2)]
)
def test_a_job_that_was_just_started_is_said_to_start(
    words: list[str], code: int, tmp_path: Path, capsys: Capsys
) -> None:
    run = tmp_path / "run"
    with own_files.reserved(run):
        assert main([*words, str(run)]) == code
        said = capsys.readouterr().err
        assert f"the job that records into {run} is starting: no rank is training yet." in said
        assert "again in a few seconds" in said
    assert main([*words, str(run)]) == 2
    assert "is starting" not in capsys.readouterr().err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_stdout_is_the_jobs_alone_unless_a_person_reads_it(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open("w", encoding="utf-8") as stdout:
        monkeypatch.setattr(stdout, "isatty", lambda: is_terminal, raising=False)
        monkeypatch.setattr(sys, "stdout", stdout)
        assert report_stream() is (stdout if is_terminal else sys.stderr)
