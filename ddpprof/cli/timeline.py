"""`ddpprof timeline`: export a run for Perfetto."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof.cli.arguments import duration_ns, numbers
from ddpprof.cli.output import refuse_unwritable
from ddpprof.cli.reading import add_choosing_options, add_reading_options, analysed_run, refuse_missing
from ddpprof.cli.saying import say
from ddpprof.errors import DdpprofError, writing
from ddpprof.files import Location, RemotePath, location
from ddpprof.own_files import scratch_folder, whole_file

if TYPE_CHECKING:
    from ddpprof.report import Report


def add_timeline_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", type=location, metavar="RUN", help="a run or torch.profiler traces")
    add("--out", type=location, metavar="FILE", help="default: RUN.perfetto.json.gz; uncompressed without .gz")
    add("--only-steps", type=numbers, metavar="N-M", help="export only steps with these numbers, such as 15-17,19")
    add(
        "--min-duration",
        type=duration_ns,
        default=0,
        metavar="TIME",
        help="leave out kernels, copies and ops shorter than this, such as 10us; communication is always kept",
    )
    add_choosing_options(parser)
    add_reading_options(parser)
    parser.set_defaults(run=run_timeline)


def run_timeline(options: argparse.Namespace) -> int:
    refuse_missing(options.path)
    refuse_unwritable(options.out)
    from ddpprof.layout import count
    from ddpprof.render.perfetto import render_perfetto

    with analysed_run(options.path, options) as analysis:
        report, timeline = analysis.report, analysis.timeline(options.only_steps)
        steps = {number for rank in timeline.ranks for number in rank.numbers}
        if not steps:
            raise DdpprofError(f"{options.path}: {_why_nothing(report)}")
        name = report.job.name.removesuffix(".gz").removesuffix(".json")
        out: Location = options.out or Path(f"{name}.perfetto.json.gz")
        num_bytes = _write(out, render_perfetto(timeline, report, options.min_duration))
    ranks = sum(bool(rank.numbers) for rank in timeline.ranks)
    what = f"{count(ranks, 'rank')}, {count(len(steps), 'step')}, {num_bytes / 1e6:.1f} MB"
    say(f"Wrote {out} ({what}). Open it in https://ui.perfetto.dev")
    return 0


def _why_nothing(report: Report) -> str:
    known = sorted({step.step for rank in report.ranks for step in rank.steps})
    if not known:
        return "no steps were profiled. Record some with: ddpprof trace train.py"
    ranks = [rank.rank for rank in report.ranks if rank.steps]
    return (
        f"the selected ranks do not have these steps. The run has steps {known[0]}-{known[-1]} of ranks "
        f"{ranks[0]}-{ranks[-1]}"
    )


def _write(path: Location, pieces: Iterable[bytes]) -> int:
    """Write to a temporary file, and rename or upload it. Return the size in bytes. Raises `DdpprofError`."""
    with writing(path):
        if isinstance(path, RemotePath):
            with scratch_folder() as folder:
                part = folder / path.name
                num_bytes = _fill(part, pieces, path.suffix == ".gz")
                path.upload(part)
                return num_bytes
        with whole_file(path) as part:
            return _fill(part, pieces, path.suffix == ".gz")


def _fill(path: Path, pieces: Iterable[bytes], is_compressed: bool) -> int:
    """Write the pieces to a file. Return its size in bytes."""
    import gzip

    with gzip.open(path, "wb", compresslevel=5) if is_compressed else path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
    return path.stat().st_size
