"""All checks, and their results as one document that does not reveal who ran it.

Checks that measure times run one after the other.
"""

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

from ddpprof import __version__
from ddpprof.doctor.catalogue import MACHINE, TRAINING
from ddpprof.doctor.check import Check, CheckResult, CheckStatus, Setup, setups
from ddpprof.doctor.machine import busy_share
from ddpprof.doctor.processes import run_checks
from ddpprof.redaction import without_secrets

DOCTOR_FORMAT = 1
_PATH = re.compile(r"(?<![\w.:/])(?:/[\w.+@~-]+)+/([\w.+@~-]+)")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
AT_ONCE = 3
"""number of concurrent checks that measure no times, on any number of cores: they mostly wait"""
_BUSY = 0.25
"""share of the processor time that other programs may use while times are measured"""
_IF_BUSY = " It failed twice, but the machine is busy with other work: stop that and check again with --only"
_OF_EVERYBODY = ("root", "localhost", "user")
"""names that reveal nothing"""


def examine(
    out: Path, gpus: int | None, only: Collection[str], watch: Callable[[str], None]
) -> Iterator[tuple[CheckResult, ...]]:
    """Yield the outcomes of each check.

    `gpus`: number of GPUs; ``None`` for as many as torch sees.
    `only`: names of outcomes; all if empty.
    `watch`: called with what is running.
    """
    chosen = [check for check in MACHINE if _wanted(check, only)]
    training = [check for check in TRAINING if _wanted(check, only)]
    seen = 0
    if training and not any("devices" in check.names for check in chosen):
        devices = next(one for one in MACHINE if "devices" in one.names)
        seen = max(map(_num_gpus, run_checks([devices], Setup(), out, gpus)))
    for outcomes in _run(chosen, AT_ONCE, Setup(), out, gpus, watch):
        seen = max(seen, _num_gpus(outcomes))
        yield _kept(outcomes, only)
    for setup in setups(min(seen, gpus) if gpus is not None else seen):
        able = [check for check in training if check.lacks(setup) is None]
        for checks, at_once in (
            ([check for check in able if not check.alone], AT_ONCE),
            ([check for check in able if check.alone], 1),
        ):
            for outcomes in _run(checks, at_once, setup, out, gpus, watch):
                yield _kept(outcomes, only)
        for check in training:
            if (lack := check.lacks(setup)) is not None:
                skipped = [CheckResult(name, CheckStatus.SKIP, reason=lack, setup=str(setup)) for name in check.names]
                yield _kept(skipped, only)


def _run(
    checks: Sequence[Check], at_once: int, setup: Setup, out: Path, gpus: int | None, watch: Callable[[str], None]
) -> Iterator[list[CheckResult]]:
    """Yield as `run_checks` does, and tell `watch` what is left.

    Failed measurements of times are repeated once, since the machine may have been busy for a moment.
    """
    found = run_checks(checks, setup, out, gpus, at_once)
    for number, check in enumerate(checks):
        where = f"on {setup}" if check.trains else "of the machine"
        watch(f"{number + 1} of {len(checks)} {where}: {', '.join(check.names)}")
        outcomes = next(found)
        if check.alone and any(one.verdict is CheckStatus.FAIL for one in outcomes):
            watch(f"{where}, again: {', '.join(check.names)}")
            before = busy_share()
            (again,) = run_checks([check], setup, out, gpus)
            outcomes = unsure(again) if max(before, busy_share()) > _BUSY else again
        yield outcomes


def unsure(outcomes: Sequence[CheckResult]) -> list[CheckResult]:
    """Return outcomes of a busy machine, on which a measurement of times that fails tells nothing."""
    return [
        replace(one, verdict=CheckStatus.UNSURE, reason=f"{one.reason}{_IF_BUSY} {one.name}.")
        if one.verdict is CheckStatus.FAIL
        else one
        for one in outcomes
    ]


def _wanted(check: Check, only: Collection[str]) -> bool:
    return not only or not set(only).isdisjoint(check.names)


def _kept(outcomes: Sequence[CheckResult], only: Collection[str]) -> tuple[CheckResult, ...]:
    return tuple(one for one in outcomes if not only or one.name in only)


def _num_gpus(outcomes: Sequence[CheckResult]) -> int:
    found = [one.found for one in outcomes if one.name == "devices"]
    return int(found[0]) if found and found[0] is not None else 0


def document(outcomes: Sequence[CheckResult]) -> dict[str, Any]:
    """Return the content of ``doctor.json``: no names of users and hosts, no addresses, and only the ends of paths."""
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
