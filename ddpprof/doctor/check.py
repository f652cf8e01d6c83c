"""Defines a check: its questions, where it runs, and how it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Verdict(StrEnum):
    PASS = "PASS"  # noqa: S105 (no password)
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to one question."""

    name: str
    verdict: Verdict
    expected: str | None = None
    found: str | None = None
    reason: str | None = None
    """why it was skipped, or what a failure means and what to do"""
    setup: str | None = None
    """where the ranks trained; ``None`` where none did"""


def judge(name: str, holds: bool, expected: object, found: object, reason: str) -> Outcome:
    """Return a pass, or a failure with its reason."""
    verdict = Verdict.PASS if holds else Verdict.FAIL
    return Outcome(name, verdict, str(expected), str(found), None if holds else reason)


def skip(name: str, reason: str) -> Outcome:
    return Outcome(name, Verdict.SKIP, reason=reason)


class CannotCheck(Exception):
    """Says why a check could not come to an answer: it fails with that."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How many ranks train, on what, and through which backend."""

    backend: str = "gloo"
    num_ranks: int = 2
    device: str = "cpu"
    num_gpus: int = 0
    """that the ranks share"""

    def __str__(self) -> str:
        where = "CPU" if self.device == "cpu" else "1 GPU" if self.num_gpus == 1 else f"{self.num_gpus} GPUs"
        return f"{self.backend}, {self.num_ranks} rank{'s' if self.num_ranks > 1 else ''}, {where}"

    @property
    def options(self) -> list[str]:
        """The options of the training scripts."""
        return [f"--ranks={self.num_ranks}", f"--backend={self.backend}", f"--device={self.device}"]


def setups(num_gpus: int) -> list[Setup]:
    """Return where training is checked: on the CPU only where there is no GPU."""
    if not num_gpus:
        return [Setup()]
    shared = [Setup("nccl", 1, "cuda", 1), Setup("gloo", 2, "cuda", 1)]
    return shared + ([Setup("nccl", num_gpus, "cuda", num_gpus)] if num_gpus > 1 else [])


@dataclass(frozen=True, slots=True)
class Context:
    """A running check is told this."""

    folder: Path
    """empty, and the check's own"""
    out: Path
    """where the user stands: runs would be written below"""
    gpus: int | None = None
    """as many as the user says that there are"""
    setup: Setup = Setup()


Run = Callable[[Context], Sequence[Outcome]]


@dataclass(frozen=True, slots=True)
class Check:
    """Some questions that are answered together."""

    names: tuple[str, ...]
    module: str
    function: str
    limit_s: float
    trains: bool = False
    """once for each setup"""
    least_ranks: int = 1
    least_gpus: int = 0
    alone: bool = False
    """it measures times that another training beside it would make longer"""
    why_gpus: str = ""
    """what a machine with fewer GPUs cannot tell"""

    def lacks(self, setup: Setup) -> str | None:
        """Return why the setup does not do for this check."""
        if self.least_ranks > setup.num_ranks:
            return f"it needs {self.least_ranks} ranks"
        if self.least_gpus > setup.num_gpus:
            return f"it needs {self.least_gpus} GPU{'s' if self.least_gpus > 1 else ''}: {self.why_gpus}"
        return None
