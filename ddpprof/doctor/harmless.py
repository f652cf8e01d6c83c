"""Runs training scripts with and without ddpprof, and reads what they print."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpprof.child_processes import helper_environment, python_command, start
from ddpprof.doctor.check import CannotCheck, CheckResult, Context, judge, skip
from ddpprof.load.run import load_run

SCRIPTS = Path(__file__).parent / "scripts"
_OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "DDPPROF_SETTINGS")


@dataclass(frozen=True, slots=True)
class Trained:
    """A training that was completed."""

    told: Mapping[str, Any]
    """the script's own line of JSON"""
    run: Path
    """folder of its run, if it was recorded"""


def run_script(
    context: Context, script: str, *arguments: str, trace: Sequence[str] | None = None, limit_s: float = 90
) -> Trained:
    """Run a script to its end. With `trace`, run it under ``ddpprof trace`` with these options.

    Raises `CannotCheck`.
    """
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
    """Return the command that records into `run`. `words`: further options, and the script with its arguments."""
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


_WINDOW = ["--skip-first", "2", "--cost-steps", "4", "--warmup", "1", "--steps", "3"]
_AFTER_WINDOW = 12
"""first step after recording has ended"""
_PAUSE_SHARE = 10
"""minimum ratio of the process group's timeout to a pause; other ranks wait for a paused one until that timeout"""


def check_unchanged(context: Context) -> Iterator[CheckResult]:
    options = [*context.setup.options, f"--window={_AFTER_WINDOW}"]
    without = run_script(context, "plain.py", *options)
    traced = run_script(context, "plain.py", *options, trace=_WINDOW)
    yield judge(
        "parameters",
        traced.told["parameters"] == without.told["parameters"],
        without.told["parameters"][:12],
        traced.told["parameters"][:12],
        "Recording changes the result of training, which must never happen.",
    )
    yield judge(
        "collectives",
        traced.told["collectives"] == without.told["collectives"],
        f"{without.told['collectives']}, as without ddpprof",
        traced.told["collectives"],
        "Recording adds collectives of its own, which can make a job hang.",
    )
    yield from _on_devices(context, without, traced)
    yield _judge_pause(traced)


def _on_devices(context: Context, without: Trained, traced: Trained) -> list[CheckResult]:
    if context.setup.device == "cpu":
        reason = "it needs a GPU: a CPU has nothing to synchronize and no contexts"
        return [skip("synchronising-calls", reason), skip("foreign-contexts", reason)]
    calls = [trained.told["synchronising_calls"] for trained in (without, traced)]
    foreign = [trained.told["foreign_contexts"] for trained in (without, traced)]
    return [
        judge(
            "synchronising-calls",
            calls[1] <= calls[0],
            f"{calls[0]} outside the window, as without ddpprof",
            calls[1],
            "Recording waits for the device in steps that it does not profile, which slows them down.",
        ),
        judge(
            "foreign-contexts",
            set(foreign[1]) <= set(foreign[0]),
            f"on devices {foreign[0]}, as without ddpprof" if foreign[0] else "none",
            f"on devices {foreign[1]}" if foreign[1] else "none",
            "Recording creates contexts on other ranks' devices and uses memory there.",
        ),
    ]


def _judge_pause(traced: Trained) -> CheckResult:
    pauses_ns = [rank.record.profiler_pause_ns or 0 for rank in load_run(traced.run).ranks if rank.record]
    pause_s = max(pauses_ns, default=0) / 1e9
    most_s = float(traced.told["patience_s"]) / _PAUSE_SHARE
    return judge(
        "export-pause",
        pause_s < most_s,
        f"less than {most_s:g} s, a tenth of the process group's timeout",
        f"{pause_s:.2f} s",
        "Training pauses while the trace is written, and other ranks may time out. Profile fewer steps.",
    )
