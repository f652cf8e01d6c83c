"""The command line on real terminals of several kinds, and in a pipe."""

import gzip
import os
import pty
import select
import shutil
import struct
import subprocess
import termios
from fcntl import ioctl
from pathlib import Path

import pytest
from jobs import DDPPROF, environment

CHECKOUT = Path(__file__).parents[2]
GLOO = CHECKOUT / "sample_traces" / "convnet-gloo-2ranks"
ESCAPE = "\x1b"


def on_a_terminal(*arguments: str | Path, columns: int = 80, **variables: str) -> str:
    """What ddpprof writes to a terminal of so many columns: both streams, as one sees them."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    kept = {name: value for name, value in environment().items() if name not in ("COLUMNS", "NO_COLOR", "LINES")}
    command = [*DDPPROF, *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**kept, "TERM": "xterm-256color", **variables}
    ) as job:
        os.close(theirs)
        written = b""
        while select.select([ours], [], [], 60)[0]:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            written += piece
        os.close(ours)
    assert job.returncode == 0, written
    return written.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [80, pytest.param(200, marks=pytest.mark.long)])
def test_a_report_fits_the_terminal(columns: int) -> None:
    shown = on_a_terminal("report", GLOO, columns=columns, NO_COLOR="1")
    assert ESCAPE not in shown
    drawn, commands = shown.split("\nNext\n")
    assert columns * 0.9 < max(map(len, drawn.splitlines())) <= columns
    assert f" ddpprof report {GLOO} --full\n" in commands
    assert "over time, ms: all ranks on one clock" in shown


@pytest.mark.long
def test_colours_where_they_are_wanted_and_nowhere_else(tmp_path: Path) -> None:
    in_colour = on_a_terminal("report", GLOO)
    assert f"{ESCAPE}[34m" in in_colour  # blue, of the step bar
    assert ESCAPE not in on_a_terminal("report", GLOO, TERM="dumb")
    piped = subprocess.run(
        [*DDPPROF, "report", GLOO], env={**environment(), "COLUMNS": "80"}, capture_output=True, text=True, check=True
    )
    assert ESCAPE not in piped.stdout + piped.stderr
    assert piped.stdout == on_a_terminal("report", GLOO, NO_COLOR="1")


def large(tmp_path: Path) -> Path:
    """A trace that takes long enough to say that it is being read."""
    path = tmp_path / "trace_rank0.json"
    path.write_bytes(gzip.decompress((GLOO / "rank-0.trace.json.gz").read_bytes()) + b" " * 9_000_000)
    return path


@pytest.mark.long
def test_long_work_says_what_is_being_read_and_takes_it_away(tmp_path: Path) -> None:
    shown = on_a_terminal("report", large(tmp_path))
    assert "reading trace_rank0.json" in shown
    assert shown.rindex("reading trace_rank0.json") < shown.rindex(f"{ESCAPE}[2K") < shown.index("1 of 2 ranks")


@pytest.mark.long
@pytest.mark.parametrize("term", ["dumb", None])
def test_no_progress_where_a_line_cannot_be_redrawn(tmp_path: Path, term: str | None) -> None:
    path = large(tmp_path)
    if term is not None:
        assert "reading" not in on_a_terminal("report", path, TERM=term)
    else:
        piped = subprocess.run(
            [*DDPPROF, "report", path], env=environment(), capture_output=True, text=True, check=True
        )
        assert (piped.stderr, "reading" in piped.stdout) == ("", False)


COMPLETE = """
source <(ddpprof completion bash)
complete_() {
    COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMPREPLY=()
    $(complete -p ddpprof | sed 's/.*-F \\([^ ]*\\).*/\\1/')
    echo "${COMPREPLY[@]}"
}
complete_ ddpprof tra; complete_ ddpprof report --form; complete_ ddpprof report --format mark
complete_ ddpprof explain expos; complete_ ddpprof report convnet-; complete_ ddpprof trace --stop-a
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not on PATH")
def test_bash_completes_commands_options_values_terms_and_files(tmp_path: Path) -> None:
    (tmp_path / "ddpprof").write_text(f'#!/bin/sh\nexec {" ".join(DDPPROF)} "$@"\n')
    (tmp_path / "ddpprof").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", COMPLETE],
        cwd=GLOO.parent,
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "trace", "--format", "markdown", "exposed", "convnet-gloo-2ranks", "--stop-after"
    ]  # fmt: skip
