"""When the launcher speaks of a loss that is NaN or infinite."""

from __future__ import annotations

from pathlib import Path

import pytest
from pulse_files import MadeStep, write_pulse

from ddpprof.job_watch.loss_look import LossLook

BEGAN = "The loss has been NaN or infinite, first in step 5 on rank 1"
AT_THE_END = "The loss was NaN or infinite in 3 steps, first in step 5 on rank 1"


@pytest.fixture
def loss_look() -> tuple[LossLook, list[str]]:
    said: list[str] = []
    return LossLook(said.append), said


def train(folder: Path, num_steps: int, is_nan: bool = True) -> None:
    """Let two ranks have trained so many steps; the loss of rank 1 is NaN in step 5, and that of rank 0 in the next."""
    for rank, first in ((0, 6), (1, 5)):
        seen = {"nonfinite_step": first, "num_nonfinite": 3, "finite_step": first - 1} if is_nan else {}
        write_pulse(folder, rank, [MadeStep()] * num_steps, first_step=0, **seen)


def test_a_loss_is_told_once_the_other_ranks_had_a_step_to_follow(
    loss_look: tuple[LossLook, list[str]], tmp_path: Path
) -> None:
    look, said = loss_look
    train(tmp_path, 6)
    look.at(tmp_path, 0.0, is_over=False)
    assert said == []
    train(tmp_path, 7)
    look.at(tmp_path, 0.0, is_over=False)
    assert said == [], "ranks need a moment to tell their learning rates"
    for _ in range(2):
        look.at(tmp_path, 0.0, is_over=False)
    look.at(tmp_path, 0.0, is_over=True)
    (line,) = said
    assert line.startswith(f"{BEGAN}: the other rank followed in step 6, with gradients that DDP had averaged. Look at")


def test_a_loss_is_told_at_the_end_and_in_each_attempt(loss_look: tuple[LossLook, list[str]], tmp_path: Path) -> None:
    look, said = loss_look
    for folder in (tmp_path / "first", tmp_path / "second"):
        train(folder, 6)
        look.at(folder, 0.0, is_over=True)
    assert [line.split(":")[0] for line in said] == [AT_THE_END] * 2
    train(tmp_path / "third", 20, is_nan=False)
    look.at(tmp_path / "third", 0.0, is_over=True)
    assert len(said) == 2
