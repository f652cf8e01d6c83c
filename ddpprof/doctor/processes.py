"""Runs each check in a process of its own, ends it in time, and leaves no process of it behind."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddpprof.child_processes import adopt_orphans, end_with_parent, kill_descendants, python_command
from ddpprof.doctor.check import Check, Outcome, Setup, Verdict
from ddpprof.scratch import scratch_folder

RESULT_FILE = "result.json"


def run_check(check: Check, setup: Setup, out: Path, gpus: int | None) -> list[Outcome]:
    """Return the outcome for each of its names: failures where it ends without an answer."""
    adopt_orphans()
    where = str(setup) if check.trains else None
    with scratch_folder() as scratch:
        folder = scratch / "check"
        folder.mkdir()
        about = {"folder": str(folder), "out": str(out), "gpus": gpus, "setup": asdict(setup)}
        words = ["-m", "ddpprof.doctor.one", check.module, check.function, json.dumps(about)]
        with (scratch / "said").open("w+b") as said:
            problem = _run(python_command(words), check.limit_s, said)
            if problem is None:
                return _outcomes(folder / RESULT_FILE, where)
            said.seek(0)
            last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
    return [
        Outcome(name, Verdict.FAIL, reason=f"{problem}{f' {last}' if last else ''}", setup=where)
        for name in check.names
    ]


def _run(command: Sequence[str], limit_s: float, said: Any) -> str | None:
    """Return why there is no answer, or ``None``."""
    running = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a Ctrl-C is for the doctor, who ends the check
        preexec_fn=end_with_parent,  # noqa: PLW1509 (no threads here)
    )
    try:
        code = running.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"It took longer than {limit_s:g} s, and was ended."
    finally:
        kill_descendants()
        running.wait()
    return None if code == 0 else f"It ended with exit code {code}."


def _outcomes(path: Path, where: str | None) -> list[Outcome]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return [Outcome(**{**one, "verdict": Verdict(one["verdict"]), "setup": where}) for one in found]
