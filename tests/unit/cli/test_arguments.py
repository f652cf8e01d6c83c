"""Options given in the environment and in pyproject.toml."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpprof.cli.arguments import PRESET_NAMES, presets
from ddpprof.cli.commands import parsers
from ddpprof.errors import DdpprofError


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder of a project; return its pyproject.toml."""
    inside = tmp_path / "src"
    inside.mkdir()
    monkeypatch.chdir(inside)
    monkeypatch.delenv("DDPPROF_COLOR", raising=False)
    presets.cache_clear()
    yield tmp_path / "pyproject.toml"
    presets.cache_clear()


def trace_options(*words: str) -> argparse.Namespace:
    return parsers(("trace",))[1]["trace"].parse_args(words)


def test_the_command_line_comes_before_the_environment_and_that_before_the_file(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trace_options().steps == 5
    project.write_text("[tool.ddpprof]\nsteps = 20\nskip_first = 7\n")
    presets.cache_clear()
    assert (trace_options().steps, trace_options().skip_first) == (20, 7)
    monkeypatch.setenv("DDPPROF_STEPS", "30")
    presets.cache_clear()
    assert (trace_options().steps, trace_options().skip_first) == (30, 7)
    assert trace_options("--steps", "40").steps == 40
    assert {name: (one.value, Path(one.source).name) for name, one in presets().items()} == {
        "steps": ("30", "DDPPROF_STEPS"),
        "skip-first": ("7", "pyproject.toml"),
    }


def test_other_commands_with_an_option_of_that_name_keep_their_default(project: Path) -> None:
    project.write_text("[tool.ddpprof]\nsteps = 20\nskip-first = 7\n")
    assert parsers(("sweep",))[1]["sweep"].get_default("skip_first") == 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[tool.ddpprof]\nstep = 3", r"has no option step\. Did you mean steps\?"),
        ("[tool.ddpprof]\nsteps = 0", r"steps in .*pyproject.toml: must be at least 1"),
        ("[tool.ddpprof]\ncolor = 'red'", r"color in .*pyproject.toml is red\. Choose from: auto, always, never"),
    ],
)
def test_a_mistake_in_the_file_is_reported_with_its_place(project: Path, content: str, message: str) -> None:
    project.write_text(content)
    with pytest.raises(DdpprofError, match=message):
        trace_options()


@pytest.mark.parametrize("content", ["", "[project]\nname = 'x'", "[tool]\nddpprof = 3", "not toml", "tool = 1"])
def test_other_files_set_nothing(project: Path, content: str) -> None:
    project.write_text(content)
    assert presets() == {}


def test_every_name_is_an_option_of_trace_or_documented() -> None:
    options = parsers(("trace",))[1]["trace"]._option_string_actions
    assert {name for name in PRESET_NAMES if f"--{name}" not in options} == {"runs"}
