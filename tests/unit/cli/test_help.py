"""The help of each command, and hints at what a user may have meant."""

from __future__ import annotations

import pytest

from ddpprof.cli import main
from ddpprof.cli.commands import COMMANDS
from ddpprof.cli.report import TOPICS
from ddpprof.comparison import METRICS
from ddpprof.render import sections


@pytest.mark.parametrize("name", COMMANDS)
def test_help_begins_with_a_question_and_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    command, said = COMMANDS[name], capsys.readouterr().out
    assert said.startswith(f"{command.question}\n\n    {command.example}\n\nusage: ddpprof {name}")
    assert command.question.endswith("?")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        pytest.param(["reprot"], "Did you mean report?", id="command"),
        pytest.param(["report", "x", "--sectoin=job"], "Did you mean --section?", id="option-with-value"),
        pytest.param(["trace", "--stpes", "3", "x.py"], "Did you mean --steps?", id="before-a-script"),
        pytest.param(["trace", "--metric", "2", "x.py"], "Did you mean --metrics?", id="longer"),
        pytest.param(["tune", "--rounds-of", "2", "x.py"], "Did you mean --rounds?", id="shorter"),
        pytest.param(
            ["trace", "--set", "a=b", "x.py"],
            "--set is an option of ddpprof sweep, ddpprof overhead, ddpprof scale.",
            id="of-a-command",
        ),
        pytest.param(["report", "x", "--section", "bucket"], "Did you mean buckets?", id="value"),
        pytest.param(["netbench", "--collective", "allreduce"], "Did you mean all_reduce?", id="name"),
        pytest.param(["doctor", "--only", "sharedmemory"], "Did you mean shared-memory?", id="check"),
        pytest.param(["compare", "a", "b", "--fail-on", "setp>5%"], "Did you mean step?", id="measure"),
        pytest.param(["whatif", "x", "--algorithm", "rng"], "Did you mean ring?", id="algorithm"),
    ],
)
def test_the_nearest_word_is_named(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert hint in said
    assert said.count("\n") == 1


def test_nothing_is_named_where_nothing_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "x", "--zzz"]) == 2
    assert capsys.readouterr().err == "ddpprof: unrecognized arguments: --zzz. See: ddpprof report --help\n"


def test_what_is_written_twice_so_that_help_comes_fast_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert sections.TOPICS == TOPICS
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    named = text.partition("Measures: ")[2].partition("; units")[0]
    assert sorted(named.split(", ")) == sorted(METRICS)
