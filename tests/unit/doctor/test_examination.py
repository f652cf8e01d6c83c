"""Checks that cannot find their answer fail with the reason, and each choice runs what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpprof import doctor
from ddpprof.doctor import NAMES, examine
from ddpprof.doctor.checks import CannotCheck, Check, CheckResult, CheckStatus, Context, judge


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The setups of training; nothing really runs."""
    seen: list[str] = []

    def see_gpus(_context: Context) -> Iterator[CheckResult]:
        yield judge("devices", True, "1 GPU", 1, "")

    def train(context: Context) -> Iterator[CheckResult]:
        seen.append(str(context.setup))
        raise CannotCheck("plain.py took longer than 90 s")
        yield

    torch_sees = Check(doctor._TORCH.names, see_gpus)
    monkeypatch.setattr(doctor, "kill_descendants", lambda: None)
    monkeypatch.setattr(doctor, "adopt_orphans", lambda: None)
    monkeypatch.setattr(doctor, "_TORCH", torch_sees)
    monkeypatch.setattr(doctor, "_MACHINE", (torch_sees,))
    monkeypatch.setattr(doctor, "_TRAINING", Check(doctor._TRAINING.names, train))
    return seen


def test_a_training_that_takes_too_long_fails_for_all_its_questions(trained_on: list[str], tmp_path: Path) -> None:
    [machine, *training] = examine(tmp_path, None, (), lambda _text: None)
    assert [one.name for one in machine] == ["devices"]
    assert trained_on == ["nccl, 1 rank, 1 GPU", "gloo, 2 ranks, 1 GPU"]
    assert [one.setup for of_setup in training for one in of_setup[:1]] == trained_on
    assert {(one.verdict, one.reason) for of_setup in training for one in of_setup} == {
        (CheckStatus.FAIL, "plain.py took longer than 90 s")
    }


def test_what_was_not_asked_for_is_not_told(trained_on: list[str], tmp_path: Path) -> None:
    """How many GPUs there are is looked up all the same."""
    found = [one for outcomes in examine(tmp_path, None, ["parameters"], lambda _text: None) for one in outcomes]
    assert [one.name for one in found] == ["parameters"] * 2
    assert not [one for one in examine(tmp_path, None, ["devices"], lambda _text: None) for one in one[1:]]
    assert len(trained_on) == 2


def test_fewer_gpus_than_there_are(trained_on: list[str], tmp_path: Path) -> None:
    assert list(examine(tmp_path, 0, (), lambda _text: None))
    assert trained_on == ["gloo, 2 ranks, CPU"]


def test_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)
