"""A script that starts its own ranks, tried as a trial of one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from experiments import PLAN

from ddpprof.errors import CannotRecord
from ddpprof.experiments.conduct import conduct
from ddpprof.experiments.plan import ExperimentKind, Variant


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
    assert "trained for fewer than 6 steps (12 on an accelerator). " in ended.problem
