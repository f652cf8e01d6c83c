"""A run as a TensorBoard log directory. Writing replaces what was there of the same run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof import rundir
from ddpprof.files import location
from ddpprof.own_files import make_folder, make_named_folder, temporary_folder

if TYPE_CHECKING:
    from ddpprof.model import Rank, Run
    from ddpprof.report import Report
    from ddpprof.report.timeline import Drawing

_NOT_FOR_NAMES = re.compile(r"[^A-Za-z0-9-]+")


def write_log_directory(
    directory: Path, report: Report, drawings: Iterable[Drawing], for_plugin: Run | None = None
) -> tuple[str, ...]:
    """Write the log directory, and return what the profiler plugin cannot show.

    `for_plugin`: the run whose traces the plugin shows.
    Raises ``OSError``, and `DdpprofError` if TensorBoard is not installed.
    """
    from ddpprof.render.tensorboard.native import write_native

    with _replaced(directory) as part:
        write_native(part, report, drawings)
        return _write_plugin_traces(part / rundir.TENSORBOARD_TRACES, for_plugin) if for_plugin is not None else ()


@contextmanager
def _replaced(directory: Path) -> Iterator[Path]:
    """Give a folder whose content, once complete, replaces the old content of `directory`.

    Each TensorBoard run in it is moved as a directory, because the profiler plugin reads one when it first sees it.
    """
    make_named_folder(directory)
    directory = directory.resolve()  # keep a link of the user's, and replace what is behind it
    with temporary_folder(directory, rundir.TENSORBOARD_DIRECTORY) as part:
        yield part
        rundir.remove_tensorboard(directory)
        for made in part.iterdir():
            _move(made, directory / made.name)


def _move(made: Path, target: Path) -> None:
    """Move a directory. If the old one still holds other people's files, put the new files beside them."""
    if target.is_dir() and not target.is_symlink():
        for file in made.iterdir():
            file.rename(target / file.name)
    else:
        made.rename(target)


def _write_plugin_traces(directory: Path, run: Run) -> tuple[str, ...]:
    from ddpprof.load.plugin_trace import write_plugin_trace
    from ddpprof.render.tensorboard.plugin_view import plugin_views
    from ddpprof.report.ranks import modules_of

    modules = modules_of(run.ranks)
    missing: list[str] = []
    cycles = list(_cycles(run))
    for number, ranks in enumerate(cycles, 1):
        make_folder(directory)
        views = plugin_views(ranks, modules)
        missing += views.missing
        for rank in ranks:
            assert rank.trace is not None
            target = directory / _plugin_file(rank, number if len(cycles) > 1 else None)
            write_plugin_trace(location(rank.trace.files[0]), target, rank.trace, views.of_rank[rank.rank])
    return tuple(dict.fromkeys(missing))


def _cycles(run: Run) -> Iterator[Sequence[Rank]]:
    """Give the ranks with the first trace of each, then with the second, …: the profiler wrote one per window."""
    from dataclasses import replace

    from ddpprof.load.folder import load_trace

    ranks = [rank for rank in run.ranks if rank.trace is not None]
    files = {rank.rank: rank.trace.files for rank in ranks if rank.trace is not None}
    num_cycles = max(map(len, files.values()), default=0)
    if num_cycles == 1:
        yield ranks
        return
    for number in range(num_cycles):
        yield [
            replace(rank, trace=load_trace(location(files[rank.rank][number])))
            for rank in ranks
            if number < len(files[rank.rank])
        ]


def _plugin_file(rank: Rank, cycle: int | None) -> str:
    """Return a name from which the plugin reads host, process and, for several windows, a number."""
    known = rank.record.host if rank.record else rank.trace.host if rank.trace else None
    host = _NOT_FOR_NAMES.sub("-", known or "")[:60].strip("-") or "host"
    window = "" if cycle is None else f".{cycle}"
    return f"{host}_{rank.rank:04}{window}.pt.trace.json.gz"
