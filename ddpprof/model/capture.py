"""The request of ``ddpprof capture`` to a running job, and the job's answers: one JSON object per line."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class CaptureRequest(Struct, frozen=True):
    """A request to profile steps of a running job."""

    steps: Annotated[int, Meta(ge=1, le=1000)] = 5
    profiler: bool = True
    """``False`` for light recording only"""
    record_shapes: bool = False
    with_stack: bool = False
    profile_memory: bool = False
    slower_than: Annotated[float, Meta(gt=1.0, le=1000.0)] | None = None
    """wait until a step takes this many times as long as usual; ``None`` to begin at once"""


class CaptureAnswer(Struct, frozen=True):
    """One event of a request."""

    refused: str | None = None
    """why nothing will be captured"""
    armed: bool = False
    """True once the job waits for the next slow-down"""
    number: int | None = None
    """number of the capture, from 1"""
    first_step: int | None = None
    """first profiled step, known when all ranks have agreed on it"""
    folder: str | None = None
    """folder of the capture, once all ranks have written it"""
