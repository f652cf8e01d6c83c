"""Execution of training scripts, with and without ddpprof, and reading of what they print."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpprof.child_processes import helper_environment, python_command, start
from ddpprof.doctor.check import CannotCheck, Context

SCRIPTS = Path(__file__).parent / "scripts"
_OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "DDPPROF_SETTINGS")


@dataclass(frozen=True, slots=True)
class Trained:
    """A training that ran to its end."""

    told: Mapping[str, Any]
    """script's own line of JSON"""
    run: Path
    """folder of its run, if it was recorded"""


def run_script(
    context: Context, script: str, *arguments: str, trace: Sequence[str] | None = None, limit_s: float = 90
) -> Trained:
    """Run a script to its end; with `trace`, under ``ddpprof trace`` with these options. Raises `CannotCheck`."""
    run = context.folder / f"run-of-{script.removesuffix('.py')}-{len(list(context.folder.iterdir()))}"
    words = [str(SCRIPTS / script), *arguments]
    command = [sys.executable, *words] if trace is None else trace_command(run, *trace, *words)
    done = run_command(context, command, limit_s)
    lines = [line for line in done.splitlines() if line.startswith("{")]
    if not lines:
        raise CannotCheck(f"{script} printed no result")
    told: dict[str, Any] = json.loads(lines[-1])
    return Trained(told, run)


def trace_command(run: Path, *words: str) -> list[str]:
    """Return the command that records into `run`; `words` are further options, and the script with its arguments."""
    return ddpprof_command("trace", "--quiet", "--out", str(run), *words)


def ddpprof_command(*words: str) -> list[str]:
    return python_command(["-m", "ddpprof", *words])


def run_command(context: Context, command: Sequence[str], limit_s: float) -> str:
    """Return what the command prints. Raises `CannotCheck` if it fails or takes too long."""
    running = start(
        command,
        job_environment(),
        cwd=context.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        said, errors = running.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise CannotCheck(f"{_shown(command)} took longer than {limit_s:g} s") from error
    finally:
        running.kill()
        running.wait()
    if running.returncode:
        last = [line.strip() for line in errors.splitlines() if line.strip()]
        why = next((line for line in reversed(last) if "rror" in line), last[-1] if last else "it gives no reason")
        raise CannotCheck(f"{_shown(command)} ended with exit code {running.returncode}: {why}")
    return str(said)


def job_environment() -> dict[str, str]:
    kept = {name: value for name, value in helper_environment().items() if name not in _OF_A_LAUNCHER}
    return {"OMP_NUM_THREADS": "1", **kept, "PYTHONSAFEPATH": ""}


def _shown(command: Sequence[str]) -> str:
    script = next((Path(word).name for word in command if word.endswith(".py")), command[-1])
    return f"ddpprof trace {script}" if "ddpprof" in command and "trace" in command else script
