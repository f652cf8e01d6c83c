"""Rank × step as a picture: the darker a cell, the longer the time. Its numbers are those of the scalars, in ms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpprof.render.tensorboard.event_file import EventFile, summary, text_tensor
from ddpprof.render.tensorboard.scalars import NS_PER_MS
from ddpprof.report import Report, StepReport

TAG = "ddp_rank_by_step/"

_OF_STEP: Mapping[str, Callable[[StepReport], int]] = {
    "step_ms": lambda step: step.duration_ns,
    "exposed_comm_ms": lambda step: step.exposed_ns,
}
_MAX_CELLS = 2000
"""most cells in one direction; a larger image would be useless"""
_WITH_NUMBERS = 40
"""most ranks and steps for which a cell is wide enough for its number"""
_CELL, _WIDE_CELL, _MARGIN = 6, 64, 70
_LIGHT, _DARK = np.array([247, 251, 255]), np.array([8, 48, 107])
_NOTHING = (255, 255, 255)


def write_heat_maps(file: EventFile, report: Report) -> None:
    """Write the heat maps, if there is Pillow, which TensorBoard includes from 2.20 on: the scalars say the same."""
    if find_spec("PIL") is None:
        return
    from tensorboard.plugins.image.metadata import create_summary_metadata

    for name, value in _OF_STEP.items():
        ranks, steps, values = cells(report, value)
        if len(ranks) and len(steps):
            png, width, height = draw(name, ranks, steps, values)
            metadata = create_summary_metadata("", "one row per rank, one column per step; ms")
            tensor = text_tensor(str(width), str(height), png)
            file.add(summary(f"{TAG}{name}", metadata, tensor=tensor))


def cells(report: Report, value: Callable[[StepReport], int]) -> tuple[list[int], list[int], NDArray[np.float64]]:
    """Return ranks, step numbers, and values [ranks, steps] in ms, with NaN where the rank has no such step."""
    ranks = [rank for rank in report.ranks if rank.steps][:_MAX_CELLS]
    steps = sorted({step.step for rank in ranks for step in rank.steps})[:_MAX_CELLS]
    column = {number: index for index, number in enumerate(steps)}
    values = np.full((len(ranks), len(steps)), np.nan)
    for row, rank in enumerate(ranks):
        for step in rank.steps:
            if step.step in column:
                values[row, column[step.step]] = value(step) / NS_PER_MS
    return [rank.rank for rank in ranks], steps, values


def draw(title: str, ranks: Sequence[int], steps: Sequence[int], values: NDArray[np.float64]) -> tuple[bytes, int, int]:
    """Return a PNG, its width and its height."""
    from PIL import Image, ImageDraw

    numbered = max(len(ranks), len(steps)) <= _WITH_NUMBERS
    across, down = (_WIDE_CELL, 24) if numbered else (_CELL, _CELL)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    title = f"{title}: {low:.2f} (light) to {high:.2f} (dark); columns: steps"
    width = _MARGIN + max(across * len(steps), int(ImageDraw.Draw(Image.new("RGB", (1, 1))).textlength(title))) + 10
    size = (width, 50 + down * len(ranks) + 10)
    image = Image.new("RGB", size, _NOTHING)
    canvas = ImageDraw.Draw(image)
    canvas.text((_MARGIN, 6), title, fill="black")
    for row, rank in enumerate(ranks):
        top = 50 + row * down
        if numbered or row % 10 == 0:
            canvas.text((6, top + down // 2 - 6), f"rank {rank}", fill="black")
        for column, value in enumerate(values[row].tolist()):
            if value == value:  # not NaN
                _cell(canvas, (_MARGIN + column * across, top, across, down), value, (low, high), numbered)
    for column, step in enumerate(steps):
        if numbered or column % 10 == 0:
            canvas.text((_MARGIN + column * across + 2, 32), str(step), fill="black")
    png = BytesIO()
    image.save(png, "PNG")
    return png.getvalue(), *size


def _cell(
    canvas: Any, at: tuple[int, int, int, int], value: float, bounds: tuple[float, float], numbered: bool
) -> None:
    left, top, across, down = at
    share = (value - bounds[0]) / (bounds[1] - bounds[0]) if bounds[1] > bounds[0] else 0.0
    colour = tuple(int(channel) for channel in _LIGHT + (_DARK - _LIGHT) * share)
    canvas.rectangle((left, top, left + across - 1, top + down - 1), fill=colour)
    if numbered:
        canvas.text((left + 4, top + down // 2 - 6), f"{value:.2f}", fill="white" if share > 0.5 else "black")
