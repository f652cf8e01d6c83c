"""All native data of a run: one TensorBoard run per rank, with the same tags, and one for data of all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ddpprof.render.tensorboard.chart_groups import write_layout
from ddpprof.render.tensorboard.event_file import EventFile
from ddpprof.render.tensorboard.heat_map import write_heat_maps
from ddpprof.render.tensorboard.histograms import write_histograms
from ddpprof.render.tensorboard.hparams import write_hparams
from ddpprof.render.tensorboard.scalars import write_scalars
from ddpprof.render.tensorboard.text import write_report_text
from ddpprof.report import Report
from ddpprof.report.timeline import Drawing
from ddpprof.rundir import TENSORBOARD_OF_RUN, tensorboard_rank


def write_native(directory: Path, report: Report, drawings: Iterable[Drawing]) -> None:
    """Write all native data. `drawings` ascend by rank. Raises ``OSError``, and `DdpprofError` without TensorBoard."""
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
