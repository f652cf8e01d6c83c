"""Frameworks that nobody here wrote to suit ddpprof: recorded as they are, and numerically untouched."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import pytest
from jobs import TORCHRUN, Run, assert_two_ranks_recorded_four_steps, fingerprint, outside_checkout, script

LONG = pytest.mark.long
Report = Callable[[str], dict[str, Any]]

OFFLINE = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
# Accelerate's name for its launcher of several processes is --multi_gpu; with --cpu it starts a single one.
ACCELERATE = [
    *(sys.executable, "-m", "accelerate.commands.launch"),
    *("--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--main_process_port", "0"),
    *("--mixed_precision", "no", "--dynamo_backend", "no", "--num_cpu_threads_per_process", "1"),
]
TWO_RANKS = ["--standalone", "--nproc-per-node=2"]


SAMPLES = {"same-samples", "unequal-batches"}


@pytest.mark.parametrize(
    ("framework", "name", "bare", "traced"),
    [
        pytest.param("accelerate", "accelerate_train.py", ACCELERATE, ["--", *ACCELERATE], id="accelerate-launch"),
        pytest.param(
            "accelerate",
            "accelerate_train.py",
            [*TORCHRUN, *TWO_RANKS],
            TWO_RANKS,
            id="accelerate-torchrun",
            marks=LONG,
        ),
        pytest.param("lightning", "lightning_train.py", [sys.executable], [], id="lightning", marks=LONG),
        pytest.param(
            "transformers", "hf_trainer.py", [*TORCHRUN, *TWO_RANKS], TWO_RANKS, id="transformers", marks=LONG
        ),
    ],
)
def test_a_framework(
    framework: str, name: str, bare: list[str], traced: list[str], start: Run, ddpprof: Run, report: Report
) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: pip install 'ddpprof[frameworks]'")
    window = ["--skip-first", "2", "--cost-steps", "4", "--steps", "4"]
    expected = start(*bare, *script(name), **OFFLINE)
    done = ddpprof("trace", "--quiet", "--out", "run", *window, *traced, *script(name), **OFFLINE)
    assert fingerprint(done) == fingerprint(expected)
    assert "ddpprof: " not in outside_checkout(done.stderr)
    shown = report("run")
    assert_two_ranks_recorded_four_steps(shown)
    rules = {finding["rule"] for finding in shown["findings"]}
    assert ("same-random-numbers" in rules, rules & SAMPLES) == (True, set())
    assert all("." in bucket["first_parameter"] and "." in bucket["last_parameter"] for bucket in shown["buckets"])


@LONG
def test_lightning_starts_its_own_ranks_in_trials_too(ddpprof: Run) -> None:
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed: pip install 'ddpprof[frameworks]'")
    trials = ["--rounds", "1", "--skip-first", "2", "--timed-steps", "4", "--vary", "bucket_cap_mb=1"]
    done = ddpprof("sweep", *trials, *script("lightning_train.py"), **OFFLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 processes" in done.stdout


@LONG
@pytest.mark.parametrize(
    ("framework", "name", "traced"),
    [
        pytest.param("accelerate", "accelerate_train.py", TWO_RANKS, id="accelerate"),
        pytest.param("lightning", "lightning_train.py", [], id="lightning"),
        pytest.param("transformers", "hf_trainer.py", TWO_RANKS, id="transformers"),
    ],
)
def test_ranks_with_seeds_of_their_own(
    framework: str, name: str, traced: list[str], ddpprof: Run, report: Report
) -> None:
    """Given as ddpprof advises; the ranks still divide the samples among them."""
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: pip install 'ddpprof[frameworks]'")
    fingerprint(ddpprof("trace", "--quiet", "--out", "run", *traced, *script(name, "--own-seeds"), **OFFLINE))
    rules = {finding["rule"] for finding in report("run")["findings"]}
    assert not rules & {"same-random-numbers", *SAMPLES}
