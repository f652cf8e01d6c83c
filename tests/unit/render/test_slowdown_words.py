"""A slow-down in a sentence."""

from __future__ import annotations

import msgspec
import pytest

from ddpprof.model.slowdown import Pause, PauseKind, SlowdownCause, StepPart, StepSlowdown
from ddpprof.render.slowdown_words import pause_sentence, slowdown_sentence

MS = 1_000_000
SLOW = StepSlowdown(4200, None, 61 * MS, 72 * MS, 40, None, None, SlowdownCause.OWN_TIME, (3,), StepPart.FORWARD)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        pytest.param(
            {}, "since step 4,200 steps take 18% longer, 61.0 → 72.0 ms: rank 3 needs longer in forward", id="one-rank"
        ),
        pytest.param(
            {"last_step": 4300, "cause": SlowdownCause.LINK, "ranks": (0, 1, 2, 3)},
            "from step 4,200 to 4,300 steps took 18% longer, 61.0 → 72.0 ms: all ranks wait longer for "
            "each other in collectives, and none needs longer by itself",
            id="link-and-over",
        ),
        pytest.param(
            {"cause": SlowdownCause.DATA, "part": StepPart.DATA, "ranks": (0, 1, 2, 3), "is_coarse": True},
            "since about step 4,200 steps take 18% longer, 61.0 → 72.0 ms: every rank waits longer for batches",
            id="data-of-all",
        ),
        pytest.param(
            {"ranks": (0, 2), "part": StepPart.BACKWARD, "first_gradient_later_ns": 9 * MS},
            "since step 4,200 steps take 18% longer, 61.0 → 72.0 ms: ranks 0, 2 need longer in backward, and their "
            "first gradients come 9.00 ms later",
            id="late-gradients",
        ),
    ],
)
def test_a_slow_down_is_one_sentence(changes: dict[str, object], sentence: str) -> None:
    assert slowdown_sentence(msgspec.structs.replace(SLOW, **changes), 4) == sentence


@pytest.mark.parametrize("cause", list(SlowdownCause))
def test_every_cause_has_words(cause: SlowdownCause) -> None:
    assert slowdown_sentence(msgspec.structs.replace(SLOW, cause=cause), 4).startswith("since step 4,200 steps take")


def test_times_of_day_follow_the_steps() -> None:
    began_ns, ended_ns = 1_700_000_000 * 10**9, 1_700_000_007 * 10**9
    timed = msgspec.structs.replace(SLOW, began_ns=began_ns, last_step=4300, ended_ns=ended_ns)
    words = slowdown_sentence(timed, 4)
    assert ":20) to 4,300 (" in words
    assert ":27) steps took" in words


def test_pauses_are_told_apart() -> None:
    pause = Pause(PauseKind.SAVE, 12, 3_400 * MS)
    assert pause_sentence(pause) == "checkpoints took 3.4 s in 12 steps"
    recorded = Pause(PauseKind.RECORDING, 15, 3_100 * MS)
    assert (
        pause_sentence(recorded)
        == "the 15 steps that ddpprof recorded took 3.1 s longer than the same number of others"
    )
