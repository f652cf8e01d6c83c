"""The profiled steps end by themselves, also where no step ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from ddpprof.record.bounds import Bounds


def bounds(most_seconds: float = 100.0, most_bytes: int = 1 << 40) -> tuple[Bounds, list[float]]:
    asked: list[float] = []

    def leave_out() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 1  # at the first time it was within a backward pass

    return Bounds(leave_out, most_seconds, most_bytes), asked


def work_for(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100))


def work_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end:
        sum(range(100))


def test_a_step_that_does_not_end_is_left_out_once() -> None:
    one, asked = bounds(most_seconds=0.1)
    one.step_begins(profiled=False)
    one.step_ends(usual=True)
    one.step_begins(profiled=True)
    work_until(lambda: len(asked) == 2)
    work_for(0.2)
    one.end()
    assert len(asked) == 2


def test_a_usual_step_is_profiled_to_its_end() -> None:
    one, asked = bounds()
    one.step_begins(profiled=False)
    work_for(1.0)
    one.step_ends(usual=True)
    one.step_begins(profiled=True)
    held = bytearray(32 << 20)
    held[:: 1 << 12] = b"x" * (len(held) >> 12)
    work_for(0.1)
    one.step_ends(usual=True)
    work_for(0.3)
    one.end()
    assert asked == []
    assert one.exceeded() is None


def test_what_all_profiled_steps_may_take_is_bounded() -> None:
    one, _ = bounds(most_bytes=16 << 20)
    assert one.exceeded() is None
    one.step_begins(profiled=True)
    one.step_ends(usual=True)
    held = bytearray(64 << 20)
    held[:: 1 << 12] = b"x" * (len(held) >> 12)
    assert "--most-memory" in (one.exceeded() or "")
    one.end()
    late, _ = bounds(most_seconds=0.01)
    late.step_begins(profiled=True)
    late.step_ends(usual=True)
    time.sleep(0.05)
    assert "--most-seconds" in (late.exceeded() or "")
    late.end()
