"""Callbacks of frameworks record what `ddpprof trace` would, change no result, and end with the training."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs import SCRIPTS, TORCHRUN, Run, assert_two_ranks_recorded_four_steps, fingerprint, outside_checkout, script

pytestmark = pytest.mark.long
Report = Callable[[str], dict[str, Any]]

OFFLINE = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
WINDOW = "'run', skip_first=2, cost_steps=4, steps=4"


@dataclass(frozen=True)
class Framework:
    package: str
    script: str
    launcher: tuple[str, ...]
    recorded: Mapping[str, str]
    """what to replace in the script so that it records"""
    failing: Mapping[str, str]
    """what to replace, too, so that an exception ends the training in its 13th step"""


LIGHTNING = Framework(
    "lightning",
    "lightning_train.py",
    (sys.executable,),
    {
        "import lightning\n": "import lightning\nfrom ddpprof.integrations import LightningCallback\n",
        "logger=False,": f"logger=False, callbacks=[LightningCallback({WINDOW})],",
    },
    {"(x,) = batch\n": "(x,) = batch\n        if batch_idx == 12:\n            raise ValueError(f'at {batch_idx}')\n"},
)
TRANSFORMERS = Framework(
    "transformers",
    "hf_trainer.py",
    (*TORCHRUN, "--standalone", "--nproc-per-node=2"),
    {
        "import torch\n": "import torch\nfrom ddpprof.integrations import TransformersCallback\n",
        "train_dataset=Parity())": f"train_dataset=Parity(), callbacks=[TransformersCallback({WINDOW})])",
    },
    {
        "class Parity": "class Fails(__import__('transformers').TrainerCallback):\n"
        "    def on_step_end(self, args, state, control, **about):\n"
        "        if state.global_step == 12:\n"
        "            raise ValueError(f'at {state.global_step}')\n\n\nclass Parity",
        "callbacks=[": "callbacks=[Fails(), ",
    },
)


BOTH = pytest.mark.parametrize("framework", [pytest.param(one, id=one.package) for one in (LIGHTNING, TRANSFORMERS)])


def write(folder: Path, framework: Framework, *changes: Mapping[str, str]) -> Path:
    """Write the framework's script with these changes; skip the test if the framework is not installed."""
    if importlib.util.find_spec(framework.package) is None:
        pytest.skip(f"{framework.package} is not installed: pip install 'ddpprof[frameworks]'")
    text = (SCRIPTS / framework.script).read_text(encoding="utf-8")
    for old, new in (pair for change in changes for pair in change.items()):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / framework.script
    path.write_text(text, encoding="utf-8")
    return path


@BOTH
def test_a_callback_records_the_training(framework: Framework, start: Run, report: Report, tmp_path: Path) -> None:
    done = start(*framework.launcher, write(tmp_path, framework, framework.recorded), **OFFLINE)
    assert fingerprint(done) == fingerprint(start(*framework.launcher, *script(framework.script), **OFFLINE))
    assert "ddpprof: " not in outside_checkout(done.stderr)
    shown = report("run")
    assert_two_ranks_recorded_four_steps(shown)


@BOTH
def test_an_exception_ends_the_recording(framework: Framework, start: Run, report: Report, tmp_path: Path) -> None:
    done = start(*framework.launcher, write(tmp_path, framework, framework.recorded, framework.failing), **OFFLINE)
    assert done.returncode != 0
    assert "at 12" in done.stderr  # nothing longer: torchrun starts ranks unbuffered, and lines in pieces mix
    # The launcher may end the second rank before it is through with its own exception.
    ended = [rank["ended"] for rank in report("run")["ranks"]]
    assert "failed: ValueError: at 12" in ended
    assert all(rank["steps"] for rank in report("run")["ranks"])


@BOTH
def test_under_trace_the_callback_makes_no_run_of_its_own(
    framework: Framework, ddpprof: Run, report: Report, tmp_path: Path
) -> None:
    path = write(tmp_path, framework, framework.recorded)
    launcher = framework.launcher[len(TORCHRUN) :]
    window = ["--skip-first", "2", "--cost-steps", "4", "--steps", "3"]
    done = ddpprof("trace", "--quiet", "--out", "traced", *window, *launcher, path, **OFFLINE)
    assert done.returncode == 0, done.stderr
    assert "ddpprof: " not in outside_checkout(done.stderr)
    assert not (tmp_path / "run").exists()
    assert [len(rank["steps"]) for rank in report("traced")["ranks"]] == [3, 3]
