"""What ``import ddpprof`` offers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ddpprof

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "convnet-gloo-2ranks"


def test_the_public_names_are_these() -> None:
    types, functions = {"DdpprofError", "Report", "Run"}, {"build_report", "compare_reports", "load_run", "whatif"}
    assert set(ddpprof.__all__) == {"__version__", "hooks", "profile", *types, *functions}


def test_every_public_name_is_there() -> None:
    assert all(getattr(ddpprof, name) is not None for name in ddpprof.__all__)


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ddpprof.nothing


def test_importing_it_imports_nothing_heavy() -> None:
    program = "import sys, ddpprof; assert not {'torch', 'numpy', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_run_read_and_measured() -> None:
    run = ddpprof.load_run(str(SAMPLE))
    assert isinstance(run, ddpprof.Run)
    report = ddpprof.build_report(run)
    assert isinstance(report, ddpprof.Report)
    assert [rank.rank for rank in report.ranks] == [0, 1]
