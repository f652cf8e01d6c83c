"""Definitions of checks, their context and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class CheckStatus(StrEnum):
    PASS = "PASS"  # noqa: S105 (not a password)
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    name: str
    verdict: CheckStatus
    expected: str | None = None
    found: str | None = None
    reason: str | None = None
    """why the check was skipped, or what a failure means and what to do about it"""
    setup: str | None = None
    """backend, number of ranks and devices of the training; ``None`` for a check without training"""


def judge(name: str, holds: bool, expected: object, found: object, reason: str) -> CheckResult:
    """Return a pass, or a failure with its reason."""
    verdict = CheckStatus.PASS if holds else CheckStatus.FAIL
    return CheckResult(name, verdict, str(expected), str(found), None if holds else reason)


def skip(name: str, reason: str) -> CheckResult:
    return CheckResult(name, CheckStatus.SKIP, reason=reason)


class CannotCheck(Exception):
    """A check could not be completed. It fails with this message."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Backend, number of ranks and devices of a training."""

    backend: str = "gloo"
    num_ranks: int = 2
    device: str = "cpu"
    num_gpus: int = 0
    """number of GPUs that the ranks share"""

    def __str__(self) -> str:
        where = "CPU" if self.device == "cpu" else "1 GPU" if self.num_gpus == 1 else f"{self.num_gpus} GPUs"
        return f"{self.backend}, {self.num_ranks} rank{'s' if self.num_ranks > 1 else ''}, {where}"

    @property
    def options(self) -> list[str]:
        """Command-line options for the training scripts."""
        return [f"--ranks={self.num_ranks}", f"--backend={self.backend}", f"--device={self.device}"]


def setups(num_gpus: int) -> list[Setup]:
    """Return the setups in which training is checked. CPU is only used if there is no GPU."""
    if not num_gpus:
        return [Setup()]
    shared = [Setup("nccl", 1, "cuda", 1), Setup("gloo", 2, "cuda", 1)]
    return shared + ([Setup("nccl", num_gpus, "cuda", num_gpus)] if num_gpus > 1 else [])


@dataclass(frozen=True, slots=True)
class Context:
    """Input of a check."""

    folder: Path
    """empty temporary folder for this check"""
    out: Path
    """the user's folder for runs"""
    gpus: int | None = None
    """number of GPUs given by the user"""
    setup: Setup = Setup()


@dataclass(frozen=True, slots=True)
class Check:
    """A function that returns the results of one or more named checks."""

    names: tuple[str, ...]
    run: Callable[[Context], Iterable[CheckResult]]
