"""The command line as a process: what it imports, closed pipes, signals and terminals."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from one_step import write_one_step

from ddpprof.cli import commands
from ddpprof.cli.commands import COMMANDS


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    return write_one_step(tmp_path)


def loaded_by(*arguments: str) -> set[str]:
    """Return the names of all modules that a command imports."""
    code = (
        "import sys; from ddpprof.cli import main\n"
        f"try: main({list(arguments)!r})\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["trace", "--help"], ["report", "--help"], ["timeline", "--help"], []]
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    assert not loaded_by(*arguments) & {"torch", "numpy", "rich", "msgspec", "isal", "fsspec", "shtab"}


def test_only_the_given_command_is_imported() -> None:
    modules = {f"ddpprof.cli.{command.module or command.name}" for command in COMMANDS.values()} - {commands.__name__}
    assert not loaded_by("--help") & {*modules, "dataclasses"}  # whose import takes a fifth of the time
    assert loaded_by("sweep", "--help") & modules == {"ddpprof.cli.experiments"}


def test_report_on_a_run_imports_no_experiments(trace_file: Path) -> None:
    assert not loaded_by("report", str(trace_file)) & {"ddpprof.experiments.tuning", "ddpprof.comparison"}


@pytest.mark.parametrize("form", ["terminal", "json", "markdown"])
def test_report_imports_no_torch(trace_file: Path, form: str) -> None:
    assert "torch" not in loaded_by("report", str(trace_file), "--format", form)


def test_a_closed_pipe_is_no_error(trace_file: Path) -> None:
    command = f'"{sys.executable}" -m ddpprof report "{trace_file}" --format json | head -n 1; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("{\n0\n", "")


def test_a_terminal_without_the_bars_characters_gets_others(trace_file: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "ddpprof", "report", str(trace_file)]
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert done.stderr == b""
    assert b"+ forward" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_clean_up_that_drops_exceptions_comes_again(number: signal.Signals) -> None:
    program = f"""
import os, signal, sys, time
from ddpprof import cli

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), {number})

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
cli.main(["explain", "bucket"])
try:
    Dropped()
    time.sleep(600)
except KeyboardInterrupt:
    sys.exit(130)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (128 + number, "")
