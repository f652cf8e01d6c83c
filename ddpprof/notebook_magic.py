"""``%load_ext ddpprof``: the cell magic ``%%ddpprof``, which traces a cell as a training of several ranks.

    %%ddpprof --nproc-per-node 2
    import torch.distributed as dist
    dist.init_process_group("gloo")
    …

The cell is written to a script beside the run, since its ranks are processes of their own: they see none of the
notebook's variables. The words after ``%%ddpprof`` are options of ``ddpprof trace``; those after ``--`` are arguments
of the script. The result of the cell is the report.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpprof import rundir
from ddpprof.child_processes import guarded, python_command, start
from ddpprof.errors import DdpprofError, writing
from ddpprof.files import identity
from ddpprof.own_files import make_named_folder, write_whole

if TYPE_CHECKING:
    from ddpprof.report import Report

_WRITTEN_BY = "# written by %%ddpprof"
_GRACE_S = 10.0
"""seconds for the ranks to end after an interruption"""


def load_ipython_extension(shell: Any) -> None:
    """Add the magic to IPython, which calls this function for ``%load_ext ddpprof``."""
    shell.register_magic_function(_cell_magic, "cell", "ddpprof")


def _cell_magic(line: str, cell: str) -> Report:
    """Trace the cell. IPython shows a `UsageError` in one line."""
    from IPython.core.error import UsageError

    try:
        return trace_cell(line, cell)
    except DdpprofError as error:
        raise UsageError(f"ddpprof: {error}") from None


def trace_cell(line: str, cell: str) -> Report:
    """Write the cell to a script, trace it, and return the report. Raises `DdpprofError`."""
    from ddpprof.pipeline.analysis import analysed

    words = MagicLine.parse(line)
    script = words.out.with_name(f"{words.out.name}.py")
    write_script(script, cell)
    command = ["-m", "ddpprof", "trace", "--quiet", "--out", str(words.out), *words.options, str(script), *words.script]
    earlier = identity(words.out / rundir.RUN_FILE)
    code = _run(python_command(command))
    if code:
        sys.stderr.write(f"ddpprof: the cell's training ended with exit code {code}\n")
    if not rundir.is_run(words.out):
        raise DdpprofError(
            f"nothing was recorded in {words.out}: no DistributedDataParallel module finished enough steps."
        )
    if identity(words.out / rundir.RUN_FILE) == earlier:
        raise DdpprofError(f"nothing was recorded: {words.out} holds an earlier run. Replace it with --force.")
    with analysed(words.out) as analysis:
        return analysis.report


@dataclass(frozen=True, slots=True)
class MagicLine:
    """The words after ``%%ddpprof``."""

    out: Path
    options: tuple[str, ...]
    """options of ``ddpprof trace`` except ``--out``"""
    script: tuple[str, ...]
    """arguments of the script"""

    @classmethod
    def parse(cls, line: str) -> MagicLine:
        """Parse the line. Raises `DdpprofError`."""
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise DdpprofError(f"cannot read the options: {error}: {line}") from error
        at = words.index("--") if "--" in words else len(words)
        own, of_script = words[:at], words[at + 1 :]
        out = f"runs/cell-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
        kept: list[str] = []
        left = iter(own)
        for word in left:
            name, is_joined, value = word.partition("=")
            if name == "--out":
                out = value if is_joined else next(left, out)
            else:
                kept.append(word)
        if not Path(out).name:
            raise DdpprofError(f"--out {out} has no name for a new folder.")
        return cls(Path(out), tuple(kept), tuple(of_script))


def write_script(script: Path, cell: str) -> None:
    """Write the script, with one line before the cell, so that errors name the lines of the notebook's cell."""
    first = f"import sys; sys.path.insert(0, {str(Path.cwd())!r})  {_WRITTEN_BY}"
    with writing(script):
        if script.exists() and _WRITTEN_BY not in _first_line(script):
            raise DdpprofError(
                f"{script} is not of %%ddpprof, and would be replaced. Choose another folder with --out."
            )
        make_named_folder(script.parent)
        write_whole(script, f"{first}\n{cell}".encode())


def _first_line(script: Path) -> str:
    with script.open(encoding="utf-8", errors="replace") as file:
        return file.readline(10_000)


def _run(command: list[str]) -> int:
    """Run the command, and show what it prints as it comes. Interrupting the cell ends it."""
    process = start(
        guarded(command),
        os.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        bufsize=1,
    )
    try:
        for printed in process.stdout or ():
            sys.stdout.write(printed)
        return process.wait()
    except KeyboardInterrupt:
        with suppress(subprocess.TimeoutExpired):  # Jupyter interrupts the processes of the kernel, too
            process.wait(_GRACE_S)
        raise
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
