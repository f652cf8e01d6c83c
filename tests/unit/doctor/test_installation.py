"""What is installed, what else profiles, and what an answer may tell of who asked."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from ddpprof.doctor import anonymous, document, installation
from ddpprof.doctor.checks import CheckResult, CheckStatus, Context, Setup, setups
from ddpprof.doctor.installation import Trained

HERE = Context(Path(), Path())


def test_what_is_installed_here_does() -> None:
    (found,) = installation.check_versions(HERE)
    assert found.verdict == "PASS", found
    assert f"torch {metadata.version('torch')}" in str(found.found)


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [("torch", "2.5.1", "torch 2.5.1 (needs >=2.6)"), ("pandas", "4.0.0", "pandas 4.0.0 (needs <4)")],
)
def test_a_version_that_does_not_do(name: str, version: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = metadata.version
    monkeypatch.setattr(metadata, "version", lambda asked: version if asked == name else honest(asked))
    (found,) = installation.check_versions(HERE)
    assert (found.verdict, found.found) == ("FAIL", said)


def test_a_version_may_have_fewer_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = metadata.version
    monkeypatch.setattr(metadata, "version", lambda asked: {"torch": "2.6", "pandas": "4"}.get(asked) or honest(asked))
    (found,) = installation.check_versions(HERE)
    assert found.found == "pandas 4 (needs <4)"


def test_what_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("msgspec", "plotly"):
            raise metadata.PackageNotFoundError
        return "99"

    monkeypatch.setattr(metadata, "version", version)
    (found,) = installation.check_versions(HERE)
    assert "msgspec is not installed" in str(found.found)
    assert "plotly" not in str(found.found)


def test_other_profilers() -> None:
    judge = installation._judge_other_profilers
    assert judge({"NSYS_PROFILING_SESSION_ID": "1"}, 1).verdict == "FAIL"
    assert judge({}, 1).verdict == "PASS"
    assert judge({"NSYS_PROFILING_SESSION_ID": "1"}, 0).verdict == "SKIP"


def test_where_training_is_checked() -> None:
    assert [str(one) for one in setups(0)] == ["gloo, 2 ranks, CPU"]
    assert [str(one) for one in setups(1)] == ["nccl, 1 rank, 1 GPU", "gloo, 2 ranks, 1 GPU"]
    assert [str(one) for one in setups(4)] == ["nccl, 1 rank, 1 GPU", "gloo, 2 ranks, 1 GPU", "nccl, 4 ranks, 4 GPUs"]


def test_the_document_tells_nothing_of_who_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "titan7.lab.example")
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    said = "ada on titan7: /home/ada/work/train.py from 10.1.2.3, https://ada:pass@host/x?token=1, adamant"
    assert anonymous(said) == "USER on HOST: …/train.py from ADDRESS, https://USER@host/x adamant"
    told = document([CheckResult("disk", CheckStatus.FAIL, "much", "/home/ada/runs is full", "titan7 lacks room")])
    assert "ada" not in str(told)
    assert "titan7" not in str(told)
    assert told["counts"] == {"PASS": 0, "FAIL": 1, "SKIP": 0}


GPUS = Context(Path("folder"), Path(), 2, Setup("nccl", 2, "cuda", 2))


@pytest.mark.parametrize(
    ("with_ddpprof", "verdicts"),
    [
        pytest.param({"synchronizing_calls": 4, "foreign_contexts": []}, ["PASS", "PASS"], id="as-without"),
        pytest.param({"synchronizing_calls": 5, "foreign_contexts": []}, ["FAIL", "PASS"], id="waits-for-the-device"),
        pytest.param({"synchronizing_calls": 4, "foreign_contexts": [0]}, ["PASS", "FAIL"], id="a-context-elsewhere"),
    ],
)
def test_devices_are_left_alone(with_ddpprof: Mapping[str, Any], verdicts: list[str]) -> None:
    run = Path("run")
    without = Trained({"synchronizing_calls": 4, "foreign_contexts": []}, run)
    found = installation._on_devices(GPUS, without, Trained(with_ddpprof, run))
    assert [one.verdict for one in found] == verdicts
