"""Checks of the installation: versions, torch's devices and backends, the profiler, and other profilers."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata

from ddpprof.doctor.check import CheckResult, Context, judge, skip
from ddpprof.doctor.harmless import run_script
from ddpprof.model.backends import KNOWN

_OLDEST_PYTHON = (3, 11)
_LOOKED_AT = {None, "torch", "tensorboard", "html", "cluster"}
"""extras whose packages are checked although they are optional; packages in no extra are required"""
_BOUND = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(?:(<|>=)\s*([0-9.]+))?")
_OTHER_PROFILERS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
"""variables that nsys and ncu set in the processes they start"""


def check_versions(_context: Context) -> Iterator[CheckResult]:
    """Check that everything required is installed, in a suitable version."""
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
        "In this environment, use pip to install or upgrade whatever is missing or too old.",
    )


def _requirements() -> list[tuple[str, str, str, str | None]]:
    """Return name, operator, version and extra of each of ddpprof's requirements."""
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
    """Check that torch sees the devices, has the backends, and can profile an operation on each device type."""
    probe = run_script(context, "probe.py", *KNOWN, limit_s=60).told
    gpus = int(probe["num_gpus"])
    expected = context.gpus if context.gpus is not None else int(probe["num_gpu_files"])
    yield judge(
        "devices",
        gpus >= expected,
        f"{expected} GPU{'s' if expected != 1 else ''}",
        gpus,
        "torch does not see these GPUs. Check nvidia-smi, CUDA_VISIBLE_DEVICES and torch.version.cuda: a CPU build of "
        "torch sees no GPUs.",
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
        "This torch was built without them. Install a build from pytorch.org.",
    )


def _judge_profiler(probe: Mapping[str, object], gpus: int) -> CheckResult:
    what = "kernel" if gpus else "span"
    return judge(
        "profiler",
        bool(probe["profiled"]),
        f"a {what} from one profiled matmul",
        f"{probe['profiled']} of {probe['num_events']} events",
        f"The profiler records nothing, so traces have no {what}s. "
        + (
            str(probe["profiler_said"])
            or "It gives no reason: stop other profilers, and check the driver's permissions."
        ),
    )


def _judge_other_profilers(environment: Mapping[str, str], gpus: int) -> CheckResult:
    if not gpus:
        return skip("other-profilers", "it needs a GPU: only CUPTI is limited to one profiler at a time")
    there = [name for name in _OTHER_PROFILERS if environment.get(name)]
    return judge(
        "other-profilers",
        not there,
        "none",
        ", ".join(there) or "none",
        "nsys or ncu occupies CUPTI, so traces have no kernels. Record without it.",
    )
