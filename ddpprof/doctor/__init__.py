"""Run all checks, and return their results as an anonymized document."""

from __future__ import annotations

import getpass
import platform
import re
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ddpprof.child_processes import adopt_orphans, kill_descendants
from ddpprof.doctor.checks import (
    CannotCheck,
    Check,
    CheckResult,
    CheckStatus,
    Context,
    Setup,
    check_clock,
    check_disk,
    check_gloo_interface,
    check_limits,
    check_nccl_interface,
    check_shared_memory,
    setups,
)
from ddpprof.doctor.installation import check_torch, check_unchanged, check_versions
from ddpprof.errors import DdpprofError
from ddpprof.own_files import scratch_folder
from ddpprof.redaction import without_secrets
from ddpprof.version import __version__

DOCTOR_FORMAT = 2
_TORCH = Check(("devices", "backends", "profiler", "other-profilers"), check_torch)
_MACHINE = (
    Check(("versions",), check_versions),
    _TORCH,
    Check(("disk",), check_disk),
    Check(("shared-memory",), check_shared_memory),
    Check(("clock",), check_clock),
    Check(("cores", "memory"), check_limits),
    Check(("gloo-interface",), check_gloo_interface),
    Check(("nccl-interface",), check_nccl_interface),
)
_TRAINING = Check(
    ("parameters", "collectives", "synchronizing-calls", "foreign-contexts", "export-pause"), check_unchanged
)
"""checks that run once per setup"""
NAMES = tuple(name for check in (*_MACHINE, _TRAINING) for name in check.names)
_PATH = re.compile(r"(?<![\w.:/])(?:/[\w.+@~-]+)+/([\w.+@~-]+)")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_OF_EVERYBODY = ("root", "localhost", "user")
"""common names of users and hosts, which are not anonymized"""


def examine(
    out: Path, gpus: int | None, only: Collection[str], watch: Callable[[str], None]
) -> Iterator[list[CheckResult]]:
    """Run the checks, and yield the results of each check.

    `gpus`: expected number of GPUs; ``None`` for as many as PyTorch finds. `only`: names of the checks to run; all if
    empty. `watch`: called with a description of the check that is running.
    """
    adopt_orphans()
    trains = _is_wanted(_TRAINING, only)
    seen = 0
    for check in _MACHINE:
        if _is_wanted(check, only) or (check is _TORCH and trains):
            watch(", ".join(check.names))
            outcomes = _outcomes(check, out, gpus)
            seen = max(seen, _num_gpus(outcomes))
            yield [one for one in outcomes if not only or one.name in only]
    for setup in setups(min(seen, gpus) if gpus is not None else seen) if trains else ():
        watch(f"training with and without ddpprof on {setup}")
        outcomes = _outcomes(_TRAINING, out, gpus, setup)
        yield [replace(one, setup=str(setup)) for one in outcomes if not only or one.name in only]


def _outcomes(check: Check, out: Path, gpus: int | None, setup: Setup | None = None) -> list[CheckResult]:
    """Return the results of a check. If the check cannot be completed, all of its results are failures."""
    with scratch_folder() as folder:
        try:
            return list(check.run(Context(folder, out, gpus, setup or Setup())))
        except (CannotCheck, DdpprofError, OSError) as error:
            return [CheckResult(name, CheckStatus.FAIL, reason=str(error)) for name in check.names]
        finally:
            kill_descendants()


def _is_wanted(check: Check, only: Collection[str]) -> bool:
    return not only or not set(only).isdisjoint(check.names)


def _num_gpus(outcomes: Collection[CheckResult]) -> int:
    found = [one.found for one in outcomes if one.name == "devices"]
    return int(found[0]) if found and found[0] is not None else 0


def document(outcomes: Sequence[CheckResult]) -> dict[str, Any]:
    """Return the content of ``doctor.json``. User names, host names, IP addresses and directories are removed."""
    counts = Counter(one.verdict for one in outcomes)
    return {
        "format": DOCTOR_FORMAT,
        "ddpprof": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "counts": {verdict.value: counts[verdict] for verdict in CheckStatus},
        "outcomes": [
            {name: anonymous(value) if isinstance(value, str) else value for name, value in asdict(one).items()}
            for one in outcomes
        ],
    }


def anonymous(text: str) -> str:
    text = _ADDRESS.sub("ADDRESS", _PATH.sub(r"…/\1", without_secrets(text)))
    for name, instead in _names():
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", instead, text)
    return text


def _names() -> Iterator[tuple[str, str]]:
    host = socket.gethostname()
    yield from ((name, "HOST") for name in {host, host.partition(".")[0]} if name and name not in _OF_EVERYBODY)
    with suppress(OSError, KeyError):
        if (user := getpass.getuser()) not in _OF_EVERYBODY:
            yield user, "USER"
