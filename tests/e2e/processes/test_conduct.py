"""A script that starts its own ranks, tried as a trial of one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from experiments import PLAN

from ddpprof.errors import CannotRecord
from ddpprof.experiments.conduct import conduct
from ddpprof.experiments.plan import ExperimentKind, Trial, TrialEnd, Variant, write_end


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").touch()
    return str(tmp_path / "train.py")


def test_a_script_that_starts_ranks_of_its_own_is_not_measured_under_another_number(
    tmp_path: Path, script: str
) -> None:
    Path(script).write_text(
        "import json, os, pathlib\n"
        "out = pathlib.Path(json.loads(os.environ['DDPPROF_SETTINGS'])['out'])\n"
        "(out / 'run.json').write_text('{\"world_size\": 2}')\n"
    )
    asked = replace(PLAN, kind=ExperimentKind.SCALE, command=(script,), variants=(Variant(1),), rounds=1)
    with pytest.raises(CannotRecord, match="starts 2 ranks itself, but 1 were requested"):
        list(conduct(tmp_path / "o", asked, list(asked.trials())))
    not_asked = replace(asked, variants=(Variant(1, any_number=True),))
    ((_, ended),) = conduct(tmp_path / "o", not_asked, list(not_asked.trials()))
    assert ended is not None
    assert ended.problem is not None
    assert "training took fewer than 6 steps (12 on an accelerator). " in ended.problem


HANGS = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("child").write_text(str(child.pid))
time.sleep(600)
"""


def test_a_trial_that_hangs_is_ended_with_its_processes(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(script).write_text(HANGS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ddpprof.experiments.conduct._LEAST_LIMIT_S", 3.0)
    monkeypatch.setattr("ddpprof.record.launch._GRACE_S", 0.5)
    asked = replace(PLAN, command=(script,), variants=(Variant(1), Variant(1, "changed")), rounds=1)
    before = tmp_path / "o" / Trial(0, 0).name
    before.mkdir(parents=True)
    write_end(before, TrialEnd(0, 0.1, None))
    ((trial, ended),) = conduct(tmp_path / "o", asked, [Trial(1, 0)])
    assert (trial, ended is not None) == (Trial(1, 0), True)
    assert re.fullmatch(
        r"it was ended after [34] s, because it took more than 10 times as long as the other trials", ended.problem
    )
    assert not Path("/proc", (tmp_path / "child").read_text()).exists()


@pytest.mark.parametrize(("kind", "number"), [(ExperimentKind.TRY, 1), (ExperimentKind.SWEEP, 2)])
def test_without_a_change_that_works_the_unchanged_job_is_not_run_again(
    tmp_path: Path, script: str, kind: ExperimentKind, number: int
) -> None:
    Path(script).write_text("import sys; sys.exit(7)")
    asked = replace(PLAN, kind=kind, command=(script,), variants=(Variant(1), Variant(1, "changed")), rounds=2)
    ended = [trial for trial, _ in conduct(tmp_path / "o", asked, list(asked.trials()))]
    assert ended == [Trial(0, 0), Trial(1, 0)][:number]
