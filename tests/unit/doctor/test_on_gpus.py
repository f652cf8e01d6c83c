"""Checks that only a machine with GPUs can make: what their scripts would tell, and what is made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpprof.doctor import counted, fabric, harmless
from ddpprof.doctor.check import CannotCheck, Context, Setup
from ddpprof.doctor.training import Trained

Patch = pytest.MonkeyPatch
GPUS = Context(Path("folder"), Path(), 2, Setup("nccl", 2, "cuda", 2))


def trained(**told: Any) -> Trained:
    return Trained(told, Path("run"))


@pytest.mark.parametrize(
    ("with_ddpprof", "verdicts"),
    [
        pytest.param({"synchronising_calls": 4, "foreign_contexts": []}, ["PASS", "PASS"], id="as-without"),
        pytest.param({"synchronising_calls": 5, "foreign_contexts": []}, ["FAIL", "PASS"], id="waits-for-the-device"),
        pytest.param({"synchronising_calls": 4, "foreign_contexts": [0]}, ["PASS", "FAIL"], id="a-context-elsewhere"),
    ],
)
def test_devices_are_left_alone(with_ddpprof: Mapping[str, Any], verdicts: list[str]) -> None:
    without = trained(synchronising_calls=4, foreign_contexts=[])
    assert [one.verdict for one in harmless._on_devices(GPUS, without, trained(**with_ddpprof))] == verdicts


@pytest.mark.parametrize(("grown_bytes", "verdict"), [(3_000_000, "PASS"), (435_000_000, "FAIL")])
def test_memory_under_graph_replay(grown_bytes: int, verdict: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(counted, "run_script", lambda *_, **__: trained(num_steps=31, grown_bytes=grown_bytes))
    (found,) = counted.check_graph_replay(GPUS)
    assert (found.name, found.verdict) == ("graph-memory", verdict)


@pytest.mark.parametrize(("exposed_ms", "verdict"), [(5.0, "PASS"), (2.0, "FAIL"), (8.0, "FAIL")])
def test_exposed_time_against_no_sync(exposed_ms: float, verdict: str, monkeypatch: Patch) -> None:
    told = {
        "with_ns": [25_000_000 + 1000 * n for n in range(40)],
        "without_ns": [20_000_000 + 990 * n for n in range(40)],
    }
    rank = SimpleNamespace(measured_steps=[SimpleNamespace(exposed_ns=exposed_ms * 1e6)])
    monkeypatch.setattr(fabric, "run_script", lambda *_, **__: trained(**told))
    monkeypatch.setattr(fabric, "load_run", lambda path: path)
    monkeypatch.setattr(fabric, "build_report", lambda _run: SimpleNamespace(ranks=[rank]))
    (found,) = fabric.check_exposed(GPUS)
    assert found.verdict == verdict, found


@pytest.mark.parametrize(("apart", "verdict"), [((1.04, 1.08), "PASS"), ((1.2, 1.3), "FAIL")])
def test_overhead_by_two_methods(apart: tuple[float, float], verdict: str, monkeypatch: Patch) -> None:
    asked: list[str] = []

    def run_command(_context: Context, command: list[str], _limit_s: float) -> str:
        asked.append(" ".join(command))
        low, high = apart if "apart" in command[-3] else (1.03, 1.05)
        return json.dumps({"ratio": {"low": low, "high": high}})

    monkeypatch.setattr(fabric, "run_command", run_command)
    (found,) = fabric.check_overhead(GPUS)
    assert found.verdict == verdict, found
    assert ["--apart" in command for command in asked if " overhead " in command] == [False, True]


@pytest.mark.parametrize(
    ("compute_ns", "missing", "verdict"),
    [
        pytest.param(7, (), "PASS", id="kernels"),
        pytest.param(0, ("rank 0: the trace has no kernels: another profiler runs",), "PASS", id="says-so"),
        pytest.param(0, (), "FAIL", id="silent"),
    ],
)
def test_beside_nsys(compute_ns: int, missing: tuple[str, ...], verdict: str, monkeypatch: Patch) -> None:
    rank = SimpleNamespace(steps=[SimpleNamespace(compute_ns=compute_ns)])
    monkeypatch.setattr(fabric.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(fabric, "run_command", lambda *_: "")
    monkeypatch.setattr(fabric, "load_run", lambda path: path)
    monkeypatch.setattr(fabric, "build_report", lambda _run: SimpleNamespace(ranks=[rank], missing=missing))
    (found,) = fabric.check_beside_nsys(GPUS)
    assert found.verdict == verdict, found


def test_the_bandwidth_that_nccl_tests_print() -> None:
    row = "    16777216       4194304     float     sum      -1    123.4   135.96   135.96      0    120.1   139.7"
    assert fabric._of_nccl_tests(f"# nThread 1\n{row}\n# Avg bus bandwidth : 1.0\n") == 135.96
    with pytest.raises(CannotCheck):
        fabric._of_nccl_tests("# nothing\n")
