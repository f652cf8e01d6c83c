"""Write a report as TensorBoard events: one TensorBoard run per rank, with the same tags, and one run for all ranks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpprof import own_files
from ddpprof.comparison import medians_ns
from ddpprof.engine.numbers import metrics_of
from ddpprof.errors import DdpprofError, how_to_install
from ddpprof.layout import clean
from ddpprof.model import CollectiveKind
from ddpprof.render.markdown import render_markdown
from ddpprof.render.sections import sections
from ddpprof.report import LightStepReport, RankReport, Report, StepReport
from ddpprof.rundir import TENSORBOARD_OF_RUN, tensorboard_rank
from ddpprof.topics.steps.timeline import Drawing


def write_native(directory: Path, report: Report, drawings: Iterable[Drawing]) -> None:
    """Write scalars, histograms, heat maps, hyperparameters and the report's text. `drawings`: in rank order.

    Raises ``OSError``, and `DdpprofError` if TensorBoard is not installed.
    """
    with EventFile(directory / TENSORBOARD_OF_RUN) as file:
        write_report_text(file, report)
        write_layout(file)
        write_heat_maps(file, report)
        write_hparams(file, report)
    following = iter(drawings)
    drawn = next(following, None)
    for rank in report.ranks:
        with EventFile(directory / tensorboard_rank(rank.rank)) as file:
            write_scalars(file, rank, bool(report.times))
            if drawn is not None and drawn.about.rank == rank.rank:  # false for a rank without a trace
                write_histograms(file, drawn)
                drawn = next(following, None)


NS_PER_MS = 1e6

_TAG = "ddp/{}_ms"
STEP, EXPOSED = _TAG.format("step"), _TAG.format("exposed")
OVERLAP = "ddp/overlap_share"
OWN_WORK = "ddp/own_work_ms"
PART = "ddp_step/"
"""prefix of the tags of a step's parts: ``ddp_step/forward_ms``, …"""
LAUNCHES = "ddp_launches/"
"""prefix of the tags of a step's parts on an accelerator, if only the host's launch times are known"""


@dataclass(frozen=True, slots=True)
class Scalar:
    step: int
    tag: str
    value: float


_OF_STEP = {_TAG.format(name): one for name, one in metrics_of(StepReport).items() if len(one.path) == 1}
"""tag → measure of the whole step"""
DESCRIPTIONS = {
    **{tag: one.meaning for tag, one in _OF_STEP.items()},
    OVERLAP: "share of communication that overlaps with computation, 0 to 1",
    OWN_WORK: "DDP's own work on the training thread, on the host's clock",
}

_OF_LAUNCHES = "host time to launch this part of the step, which the accelerator executes later"


def write_scalars(file: EventFile, rank: RankReport, on_accelerator: bool) -> None:
    for scalar in scalars_of(rank, on_accelerator):
        description = _OF_LAUNCHES if scalar.tag.startswith(LAUNCHES) else DESCRIPTIONS.get(scalar.tag, "")
        write_scalar(file, scalar, description)


def write_scalar(file: EventFile, scalar: Scalar, description: str) -> None:
    from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR
    from tensorboard.plugins.scalar.metadata import create_summary_metadata

    metadata = create_summary_metadata("", description)
    metadata.data_class = DATA_CLASS_SCALAR  # otherwise TensorBoard's data server drops the description
    file.add(summary(scalar.tag, metadata, simple_value=scalar.value), scalar.step)


def scalars_of(rank: RankReport, on_accelerator: bool) -> Iterator[Scalar]:
    """Yield the scalars in step order, without unknown values."""
    prefix = LAUNCHES if on_accelerator else PART
    steps: list[StepReport | LightStepReport] = [*rank.steps, *rank.light_steps]
    for step in sorted(steps, key=lambda step: step.step):
        if isinstance(step, StepReport):
            values = _of_profiled(step)
        else:
            values = {STEP: _ms(step.duration_ns)} | _parts(step.parts, prefix)
        for tag, value in values.items():
            if value is not None:
                yield Scalar(step.step, tag, value)


def _of_profiled(step: StepReport) -> dict[str, float | None]:
    values = {tag: _ms(one.value(step)) for tag, one in _OF_STEP.items()}
    values[OWN_WORK] = _ms(step.wrapper.total_ns)
    values[OVERLAP] = step.overlap_ns / step.comm_ns if step.comm_ns else None
    return values | _parts(step.parts, PART)


def _parts(parts: object, prefix: str) -> dict[str, float | None]:
    if parts is None:
        return {}
    return {
        f"{prefix}{part.name.removesuffix('_ns')}_ms": _ms(getattr(parts, part.name))
        for part in fields(parts)  # type: ignore[arg-type] # either kind of breakdown
    }


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_MS


CHARTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "ddp": {
        "step": (STEP,),
        "communication": ("ddp/comm_ms", EXPOSED, "ddp/trailing_ms"),
        "overlap": (OVERLAP,),
        "cost of DDP": (OWN_WORK, EXPOSED),
    },
    "parts of a step": {"all": (f"{PART}.*", f"{LAUNCHES}.*")},
}
"""category → title of a chart → regular expressions for the tags that it shows"""


def write_layout(file: EventFile) -> None:
    from tensorboard.plugins.custom_scalar.layout_pb2 import Category, Chart, Layout, MultilineChartContent
    from tensorboard.plugins.custom_scalar.metadata import CONFIG_SUMMARY_TAG, create_summary_metadata

    categories = [
        Category(
            title=category,
            chart=[Chart(title=title, multiline=MultilineChartContent(tag=tags)) for title, tags in charts.items()],
        )
        for category, charts in CHARTS.items()
    ]
    layout = bytes_tensor(Layout(category=categories).SerializeToString())
    file.add(summary(CONFIG_SUMMARY_TAG, create_summary_metadata(), tensor=layout))


HEAT_MAP_TAG = "ddp_rank_by_step/"

_HEAT_OF_STEP: Mapping[str, Callable[[StepReport], int]] = {
    "step_ms": lambda step: step.duration_ns,
    "exposed_comm_ms": lambda step: step.exposed_ns,
}
_MAX_CELLS = 2000
"""maximum number of rows, and of columns, in a heat map"""
_WITH_NUMBERS = 40
"""a heat map shows the values as numbers if it has at most this many ranks and steps"""
_CELL, _WIDE_CELL, _MARGIN, _TOP = 6, 64, 70, 50
_LIGHT, _DARK, _NOTHING = np.array([247, 251, 255]), np.array([8, 48, 107]), (255, 255, 255)


def write_heat_maps(file: EventFile, report: Report) -> None:
    """Write the heat maps if Pillow is installed. TensorBoard has required Pillow since version 2.20."""
    if find_spec("PIL") is None:
        return
    from tensorboard.plugins.image.metadata import create_summary_metadata

    for name, value in _HEAT_OF_STEP.items():
        ranks, steps, values = cells(report, value)
        if len(ranks) and len(steps):
            png, width, height = draw(name, ranks, steps, values)
            metadata = create_summary_metadata("", "one row per rank, one column per step; ms")
            tensor = bytes_tensor([str(width).encode(), str(height).encode(), png])
            file.add(summary(f"{HEAT_MAP_TAG}{name}", metadata, tensor=tensor))


def cells(report: Report, value: Callable[[StepReport], int]) -> tuple[list[int], list[int], NDArray[np.float64]]:
    """Return ranks, step numbers, and values in ms of shape (ranks, steps); NaN where a rank lacks the step."""
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
    """Return a PNG image, its width and its height."""
    from PIL import Image, ImageDraw

    numbered = max(len(ranks), len(steps)) <= _WITH_NUMBERS
    across, down = (_WIDE_CELL, 24) if numbered else (_CELL, _CELL)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    shares = np.nan_to_num((values - low) / ((high - low) or 1.0))[..., None]
    colours = np.where(np.isnan(values)[..., None], _NOTHING, _LIGHT + (_DARK - _LIGHT) * shares).astype(np.uint8)
    map_ = Image.fromarray(colours.repeat(down, axis=0).repeat(across, axis=1))
    title = f"{title}: {low:.2f} (light) to {high:.2f} (dark); columns: steps"
    wide = int(ImageDraw.Draw(map_).textlength(title))
    image = Image.new("RGB", (_MARGIN + max(map_.width, wide) + 10, _TOP + map_.height + 10), _NOTHING)
    image.paste(map_, (_MARGIN, _TOP))
    canvas = ImageDraw.Draw(image)
    canvas.text((_MARGIN, 6), title, fill="black")
    every = 1 if numbered else 10
    for row in range(0, len(ranks), every):
        canvas.text((6, _TOP + row * down + down // 2 - 6), f"rank {ranks[row]}", fill="black")
    for column in range(0, len(steps), every):
        canvas.text((_MARGIN + column * across + 2, 32), str(steps[column]), fill="black")
    for row, column in np.argwhere(~np.isnan(values)).tolist() if numbered else []:
        at = (_MARGIN + column * across + 4, _TOP + row * down + down // 2 - 6)
        canvas.text(at, f"{values[row, column]:.2f}", fill="white" if shares[row, column] > 0.5 else "black")
    png = BytesIO()
    image.save(png, "PNG")
    return png.getvalue(), image.width, image.height


HISTOGRAM_TAG = "ddp_collective_ms/"


def write_histograms(file: EventFile, drawing: Drawing) -> None:
    from tensorboard.plugins.histogram.summary_v2 import histogram_pb

    for index in drawing.about.measured:
        step = drawing.draw(index)
        comm = step.collectives
        for number in np.unique(comm.kind).tolist():
            lasts_ns, kind = (comm.end_ns - comm.start_ns)[comm.kind == number], CollectiveKind(number).name.lower()
            about = f"durations of {kind} in a step, including waiting for other ranks"
            file.add(histogram_pb(f"{HISTOGRAM_TAG}{kind}", lasts_ns / NS_PER_MS, description=about), step.step)


METRIC = "ddp_run/"
"""prefix of the run's metrics, such as ``ddp_run/step_ms``; each is the median over steps of the mean over ranks"""
_LONGEST = 200
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,12})?")


def write_hparams(file: EventFile, report: Report) -> None:
    from tensorboard.plugins.hparams import summary_v2 as hparams

    settings, metrics = settings_of(report), run_metrics(report)
    file.add(hparams.hparams_pb(settings, trial_id=clean(report.job.name, most=_LONGEST)))
    for tag, value in metrics.items():
        write_scalar(file, Scalar(0, tag, value), "mean over ranks, median over steps")


def settings_of(report: Report) -> dict[str, str | int | float]:
    """Return the known settings. DDP's settings are taken from the first module."""
    job = report.job
    known: dict[str, str | int | float | None] = {
        "world_size": job.world_size,
        "hosts": len(job.hosts) or None,
        "backend": job.backend,
        "device": job.device,
        "torch": job.torch,
    }
    for module in job.modules[:1]:
        known |= {"comm_hook": module.comm_hook or "none", "buckets": module.num_buckets}
        known |= module.settings
    return {name: _value(value) for name, value in known.items() if value is not None}


def _value(value: str | float) -> str | int | float:
    """Convert text that is a number to a number, because TensorBoard sorts by this value."""
    if not isinstance(value, str):
        return value
    return float(value) if _NUMBER.fullmatch(value) else clean(value, most=_LONGEST)


def run_metrics(report: Report) -> dict[str, float]:
    """Return the metrics by tag. These are the numbers that `ddpprof compare` shows for this run."""
    return {f"{METRIC}{name.replace(' ', '_')}_ms": ns / NS_PER_MS for name, ns in medians_ns(report).items()}


TAG = "ddpprof/report"

_ESCAPED = re.compile(r"\\(.)")
_LIST_ITEM = re.compile(r"^ {3}(?=\S)", re.MULTILINE)


def write_report_text(file: EventFile, report: Report) -> None:
    from tensorboard.plugins.text.summary_v2 import text_pb

    file.add(text_pb(TAG, tensorboard_markdown(render_markdown(report.job.name, sections(report)))))


def tensorboard_markdown(markdown: str) -> str:
    """Convert GitHub-flavored Markdown to the dialect of Python-Markdown.

    Escapes become numeric character references, because Python-Markdown does not support all of GitHub's escapes. List
    items are continued with an indentation of 4 spaces.
    """
    numbered = _ESCAPED.sub(lambda match: f"&#{ord(match[1])};", markdown)
    return _LIST_ITEM.sub("    ", numbered)


HOW_TO_INSTALL = how_to_install("tensorboard")


class EventFile:
    """Event file of one TensorBoard run in `directory`; a context manager. Raises ``OSError`` and `DdpprofError`."""

    def __init__(self, directory: Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter
        except (ImportError, AttributeError) as error:  # an old TensorBoard uses removed features of numpy
            raise DdpprofError(f"TensorBoard cannot be used ({error}). {HOW_TO_INSTALL}") from error
        own_files.make_folder(directory)
        self._event = Event
        self._wall_time = time.time()
        path = directory / f"events.out.tfevents.{int(self._wall_time):010}.ddpprof"
        self._records = RecordWriter(os.fdopen(own_files.overwrite(path), "wb"))
        self._records.write(Event(wall_time=self._wall_time, file_version="brain.Event:2").SerializeToString())

    def add(self, summary: Any, step: int = 0) -> None:
        event = self._event(wall_time=self._wall_time, step=step, summary=summary)
        self._records.write(event.SerializeToString())

    def __enter__(self) -> EventFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._records.close()


def summary(tag: str, metadata: Any, **value: Any) -> Any:
    """Return a summary with one value. `value`: fields of its protocol buffer."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, **value)])


def bytes_tensor(content: bytes | Sequence[bytes]) -> Any:
    """Return a scalar tensor of bytes, or a 1-D tensor of several byte strings."""
    from tensorboard.util.tensor_util import make_tensor_proto

    return make_tensor_proto(content, dtype=np.object_)
