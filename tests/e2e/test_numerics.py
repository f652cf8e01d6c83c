"""Training under `ddpprof trace` ends with the same parameters, bit for bit, as training without it.

Within the twenty steps ddpprof records lightly, with its process group in the reducer or around the comm hook, and then
with the profiler. Three ranks are where dividing by the world size differs from multiplying by its inverse.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from accelerator import first_recorded
from jobs import SCRIPTS, Run, on_ranks, script

Report = Callable[[str], dict[str, Any]]

VARIANTS = re.findall(
    r'^(?:    |    VARIANTS\[)"(\w+)"\]?(?::| =) ', (SCRIPTS / "variants.py").read_text(), re.MULTILINE
)
NEED_AN_ACCELERATOR = {"sync_batch_norm"}
AT_ONE = ["plain", "own_hook", "static_graph", "no_sync", "join"]
AT_THREE = [
    "plain",
    "allreduce_hook",
    "fp16_hook",
    "powersgd_hook",
    "own_hook",
    "static_graph",
    "no_sync",
    "join",
    "batched_grad_copy",
]
FAST = [("plain", 2), ("fp16_hook", 2)]
FURTHER = [
    *((variant, 2) for variant in VARIANTS if (variant, 2) not in FAST),
    *((variant, 1) for variant in AT_ONE),
    *((variant, 3) for variant in AT_THREE),
]
OFTEN = {
    ("own_hook", 2),
    ("find_unused_changing", 2),
    ("static_graph", 2),
    ("two_modules", 2),
    ("no_sync", 1),
    ("plain", 3),
}
"""those that stand for the others in `make test`"""
WINDOW = ["--skip-first", "2", "--cost-steps", "4", "--steps", "4"]


def listed(start: Run) -> list[str]:
    return start(sys.executable, *script("variants.py", "--list")).stdout.split()


def fingerprints(done: subprocess.CompletedProcess[str], variant: str) -> list[str]:
    assert done.returncode == 0, done.stderr
    return sorted(line for line in done.stdout.splitlines() if f" {variant} params-sha256 " in line)


def job(variants: Sequence[str], ranks: int) -> list[str]:
    return on_ranks(ranks, *script("variants.py", "--variant", *variants))


@pytest.fixture(scope="module")
def bare_jobs() -> dict[tuple[int, bool], subprocess.CompletedProcess[str]]:
    """Variants without ddpprof, one after the other in one job, by number of ranks and whether they are in `OFTEN`."""
    return {}


def train_with_ddpprof(variant: str, ranks: int, expected: list[str], ddpprof: Run, report: Report) -> None:
    traced = ddpprof("trace", "--quiet", "--out", "run", *WINDOW, *job([variant], ranks))
    assert len(expected) == ranks
    assert fingerprints(traced, variant) == expected
    shown = report("run")
    assert [rank["rank"] for rank in shown["ranks"]] == list(range(ranks))
    for rank in shown["ranks"]:
        assert [step["mode"] for step in rank["light_steps"]] == ["off", "light", "light", "off"]
        assert [step["step"] - first_recorded(2) for step in rank["steps"]] == [5, 6, 7, 8]


@pytest.mark.parametrize(("variant", "ranks"), FAST)
def test_parameters_are_identical(variant: str, ranks: int, start: Run, ddpprof: Run, report: Report) -> None:
    bare = start(sys.executable, *job([variant], ranks))
    train_with_ddpprof(variant, ranks, fingerprints(bare, variant), ddpprof, report)


@pytest.mark.parametrize(
    ("variant", "ranks"), [pytest.param(*one, marks=[pytest.mark.long] * (one not in OFTEN)) for one in FURTHER]
)
def test_parameters_are_identical_however_ddp_is_used(
    variant: str,
    ranks: int,
    start: Run,
    ddpprof: Run,
    report: Report,
    bare_jobs: dict[tuple[int, bool], subprocess.CompletedProcess[str]],
) -> None:
    if variant in NEED_AN_ACCELERATOR and variant not in listed(start):
        pytest.skip("no GPU here, and the variant needs one")
    which = ranks, (variant, ranks) in OFTEN
    if which not in bare_jobs:
        known = listed(start)
        variants = [one[0] for one in FURTHER if (one[1], one in OFTEN) == which and one[0] in known]
        bare_jobs[which] = start(sys.executable, *job(variants, ranks))
    train_with_ddpprof(variant, ranks, fingerprints(bare_jobs[which], variant), ddpprof, report)


@pytest.mark.long
def test_every_variant_is_tested(start: Run) -> None:
    assert set(listed(start)) | NEED_AN_ACCELERATOR == set(VARIANTS)
    assert set(AT_ONE) < set(AT_THREE) < set(VARIANTS)
    assert set(FURTHER) > OFTEN
