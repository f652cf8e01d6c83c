"""What is made of a training's own words on how it used its devices, which only a machine with GPUs tells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ddpprof.doctor import Context, Setup, installation
from ddpprof.doctor.installation import Trained

GPUS = Context(Path("folder"), Path(), 2, Setup("nccl", 2, "cuda", 2))


@pytest.mark.parametrize(
    ("with_ddpprof", "verdicts"),
    [
        pytest.param({"synchronising_calls": 4, "foreign_contexts": []}, ["PASS", "PASS"], id="as-without"),
        pytest.param({"synchronising_calls": 5, "foreign_contexts": []}, ["FAIL", "PASS"], id="waits-for-the-device"),
        pytest.param({"synchronising_calls": 4, "foreign_contexts": [0]}, ["PASS", "FAIL"], id="a-context-elsewhere"),
    ],
)
def test_devices_are_left_alone(with_ddpprof: Mapping[str, Any], verdicts: list[str]) -> None:
    run = Path("run")
    without = Trained({"synchronising_calls": 4, "foreign_contexts": []}, run)
    found = installation._on_devices(GPUS, without, Trained(with_ddpprof, run))
    assert [one.verdict for one in found] == verdicts
