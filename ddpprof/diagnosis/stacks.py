"""Where do all threads of the ranks stand? py-spy reads that from outside, without stopping a process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from ddpprof.child_processes import helper_environment, start
from ddpprof.diagnosis.evidence import RankEvidence
from ddpprof.errors import DdpprofError, how_to_install

_PATIENCE_S = 20.0
"""seconds that py-spy gets for one process"""


def find_py_spy() -> str:
    """Return the path of py-spy. Raises `DdpprofError` if it is not installed."""
    beside_python = Path(sys.executable).with_name("py-spy")
    found = str(beside_python) if beside_python.exists() else shutil.which("py-spy")
    if found is None:
        raise DdpprofError(f"--dump-stacks needs py-spy. {how_to_install('py-spy')}")
    return found


def dump_stacks(evidence: Iterable[RankEvidence]) -> str:
    """Return the stacks of all threads of the ranks that run on this machine, or why one cannot be read.

    Raises `DdpprofError` if py-spy is not installed.
    """
    py_spy = find_py_spy()
    return "\n".join(_of_rank(py_spy, one) for one in evidence)


def _of_rank(py_spy: str, one: RankEvidence) -> str:
    if not one.is_here:
        return f"Rank {one.rank} runs on {one.identity.host}: run this command there, too.\n"
    if one.process is None:
        return f"Rank {one.rank} has no process any more.\n"
    command = [py_spy, "dump", "--nonblocking", "--full-filenames", "--pid", str(one.process.pid)]
    try:
        found, said = _output_of(command)
    except (OSError, subprocess.TimeoutExpired) as error:
        found, said = "", str(error)
    if not found:
        return f"Rank {one.rank}: py-spy cannot read process {one.process.pid}: {said}\n"
    return f"Rank {one.rank}, process {one.process.pid}:\n{found}\n"


def _output_of(command: list[str]) -> tuple[str, str]:
    """Return what a command prints, which is nothing if it fails, and the last thing that it complains of."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start(command, helper_environment(), begin=None, **options) as process:
        try:
            printed, complaints = process.communicate(timeout=_PATIENCE_S)
        finally:
            process.kill()
    last = (complaints.strip().splitlines() or ["it does not say why"])[-1].removeprefix("Reason: ")
    return ("" if process.returncode else printed.strip()), last
