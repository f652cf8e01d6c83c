"""Each step of a recorded training has a mode."""

from __future__ import annotations

from enum import StrEnum


class StepMode(StrEnum):
    """What the recorder did in a step."""

    SKIP = "skip"
    OFF = "off"
    LIGHT = "light"
    WARMUP = "warmup"
    PROFILED = "profiled"
    BASELINE = "baseline"
    """profiled, without gradient communication"""
    ALONE = "alone"
    """like `LIGHT`, without gradient communication"""
    WITHOUT_DDP = "without_ddp"
    """like `OFF`, with DDP only calling its module"""
    CUT = "cut"
    """a profiled step that took too long, so that only its beginning is profiled"""
    DONE = "done"


DETAILED_MODES = (StepMode.LIGHT, StepMode.PROFILED, StepMode.BASELINE, StepMode.ALONE)
"""modes that record the inside of a step; for other steps, only the length is known"""
