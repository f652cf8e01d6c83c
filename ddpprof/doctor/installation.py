"""Checks of the installation: versions, devices, backends, the profiler, and the effect of recording on training."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ddpprof.child_processes import helper_environment, python_command, start
from ddpprof.doctor.checks import CannotCheck, CheckResult, Context, judge, skip
from ddpprof.load.run import load_run
from ddpprof.model.backends import KNOWN

SCRIPTS = Path(__file__).parent / "scripts"
_OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "DDPPROF_SETTINGS")


@dataclass(frozen=True, slots=True)
class Trained:
    """Result of a completed training script."""

    told: Mapping[str, Any]
    """the JSON line that the script printed"""
    run: Path
    """run directory, if ddpprof recorded the training"""


def run_script(
    context: Context, script: str, *arguments: str, trace: Sequence[str] | None = None, limit_s: float = 90
) -> Trained:
    """Run a script. With `trace`, run it under ``ddpprof trace`` with these options.

    Raises `CannotCheck` if the script fails or takes longer than `limit_s`.
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
    """Return the command that records into `run`. `words`: further options, the script, and its arguments."""
    return ddpprof_command("trace", "--quiet", "--out", str(run), *words)


def ddpprof_command(*words: str) -> list[str]:
    return python_command(["-m", "ddpprof", *words])


def run_command(context: Context, command: Sequence[str], limit_s: float) -> str:
    """Return the output of a command. Raises `CannotCheck` if it fails or takes longer than `limit_s`."""
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
        why = next((line for line in reversed(last) if "rror" in line), last[-1] if last else "it printed no error")
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
"""number of the first step after the recorded steps"""
_PAUSE_SHARE = 10
"""the check passes if recording pauses training for at most the process group's timeout divided by this number"""


def check_unchanged(context: Context) -> Iterator[CheckResult]:
    options = [*context.setup.options, f"--window={_AFTER_WINDOW}"]
    without = run_script(context, "plain.py", *options)
    traced = run_script(context, "plain.py", *options, trace=_WINDOW)
    yield judge(
        "parameters",
        traced.told["parameters"] == without.told["parameters"],
        without.told["parameters"][:12],
        traced.told["parameters"][:12],
        "Recording changes the result of training. This must never happen: please report it.",
    )
    yield judge(
        "collectives",
        traced.told["collectives"] == without.told["collectives"],
        f"{without.told['collectives']}, as without ddpprof",
        traced.told["collectives"],
        "Recording calls additional collectives. This can make a job hang.",
    )
    yield from _on_devices(context, without, traced)
    yield _judge_pause(traced)


def _on_devices(context: Context, without: Trained, traced: Trained) -> list[CheckResult]:
    if context.setup.device == "cpu":
        reason = "this check needs a GPU: on a CPU, there are no synchronizing calls and no contexts"
        return [skip("synchronizing-calls", reason), skip("foreign-contexts", reason)]
    calls = [trained.told["synchronizing_calls"] for trained in (without, traced)]
    foreign = [trained.told["foreign_contexts"] for trained in (without, traced)]
    return [
        judge(
            "synchronizing-calls",
            calls[1] <= calls[0],
            f"{calls[0]} in steps that are not profiled, as many as without ddpprof",
            calls[1],
            "Recording waits for the device in steps that are not profiled. This slows these steps down.",
        ),
        judge(
            "foreign-contexts",
            set(foreign[1]) <= set(foreign[0]),
            f"on devices {foreign[0]}, as without ddpprof" if foreign[0] else "none",
            f"on devices {foreign[1]}" if foreign[1] else "none",
            "Recording creates contexts on the devices of other ranks, and these contexts use memory.",
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


_OLDEST_PYTHON = (3, 11)
_LOOKED_AT = {None, "torch", "tensorboard", "html", "cluster"}
"""packages of these extras are checked only if they are installed; packages outside all extras are required"""
_BOUND = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(?:(<|>=)\s*([0-9.]+))?")
_OTHER_PROFILERS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
"""environment variables that nsys and ncu set in the processes that they start"""


def check_versions(_context: Context) -> Iterator[CheckResult]:
    """Check that all required packages are installed in a supported version."""
    versions = {"Python": ".".join(map(str, sys.version_info[:3]))}
    wrong = [] if sys.version_info >= _OLDEST_PYTHON else [f"Python {versions['Python']} (needs 3.11)"]
    for name, sign, bound, extra in _requirements():
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong += [] if extra is not None and extra != "torch" else [f"{name} is not installed"]
            continue
        if sign and not _satisfies(versions[name], sign, bound):
            wrong.append(f"{name} {versions[name]} (needs {sign}{bound})")
    shown = {name: versions[name] for name in ("Python", "torch", "numpy", "torch-tb-profiler") if name in versions}
    yield judge(
        "versions",
        not wrong,
        "the requirements of pyproject.toml",
        "; ".join(wrong) or ", ".join(f"{name} {version}" for name, version in shown.items()),
        "Install or upgrade these packages in this environment with pip.",
    )


def _requirements() -> list[tuple[str, str, str, str | None]]:
    """Return the name, operator, version and extra of each requirement of ddpprof."""
    found = []
    for line in metadata.requires("ddpprof") or []:
        what, _, marker = line.partition(";")
        extra = re.search(r"extra == ['\"]([^'\"]+)", marker)
        match = _BOUND.match(what.strip())
        if match is None or (extra and extra.group(1) not in _LOOKED_AT) or match.group(1) == "ddpprof":
            continue
        python = re.search(r"python_version < ['\"]3\.(\d+)", marker)
        if python is None or sys.version_info < (3, int(python.group(1))):
            found.append(
                (match.group(1), match.group(2) or "", match.group(3) or "", extra.group(1) if extra else None)
            )
    return found


def _satisfies(version: str, sign: str, bound: str) -> bool:
    numbers = (re.findall(r"\d+", text) for text in (version.split("+")[0], bound))
    has, wants = ([int(digits) for digits in (*found, 0, 0)][:3] for found in numbers)
    return has >= wants if sign == ">=" else has < wants


def check_torch(context: Context) -> Iterator[CheckResult]:
    """Check that PyTorch finds the devices, has the backends, and can profile an operation."""
    probe = run_script(context, "probe.py", *KNOWN, limit_s=60).told
    gpus = int(probe["num_gpus"])
    expected = context.gpus if context.gpus is not None else int(probe["num_gpu_files"])
    yield judge(
        "devices",
        gpus >= expected,
        f"{expected} GPU{'s' if expected != 1 else ''}",
        gpus,
        "PyTorch does not find these GPUs. Check nvidia-smi, CUDA_VISIBLE_DEVICES and torch.version.cuda: a CPU build "
        "of PyTorch finds no GPUs.",
    )
    yield _judge_backends(probe["backends"], gpus)
    yield _judge_profiler(probe, gpus)
    yield _judge_other_profilers(os.environ, gpus)


def _judge_backends(backends: Sequence[str], gpus: int) -> CheckResult:
    wanted = ["gloo", *(["nccl"] if gpus else [])]
    return judge(
        "backends",
        set(wanted) <= set(backends),
        ", ".join(wanted),
        ", ".join(backends) or "none",
        "This build of PyTorch lacks a backend. Install a build from pytorch.org.",
    )


def _judge_profiler(probe: Mapping[str, object], gpus: int) -> CheckResult:
    what = "kernel" if gpus else "span"
    return judge(
        "profiler",
        bool(probe["profiled"]),
        f"a {what} from one profiled matmul",
        f"{probe['profiled']} of {probe['num_events']} events",
        f"The profiler recorded nothing, so traces have no {what}s. "
        + (
            str(probe["profiler_said"])
            or "It printed no reason. Stop other profilers, and check the permissions of the driver."
        ),
    )


def _judge_other_profilers(environment: Mapping[str, str], gpus: int) -> CheckResult:
    if not gpus:
        return skip("other-profilers", "this check needs a GPU: only CUPTI is limited to one profiler at a time")
    there = [name for name in _OTHER_PROFILERS if environment.get(name)]
    return judge(
        "other-profilers",
        not there,
        "none",
        ", ".join(there) or "none",
        "nsys or ncu is using CUPTI, so traces have no kernels. Record without nsys and ncu.",
    )
