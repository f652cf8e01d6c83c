"""A run as a TensorBoard log directory. Writing replaces earlier data of the same run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof import rundir
from ddpprof.own_files import make_folder, make_named_folder, temporary_folder

if TYPE_CHECKING:
    from ddpprof.pipeline.analysis import TracedRank
    from ddpprof.report import Report
    from ddpprof.report.rank_summary import RankSummary
    from ddpprof.report.timeline import Drawing

_NOT_FOR_NAMES = re.compile(r"[^A-Za-z0-9-]+")


def write_log_directory(
    directory: Path, report: Report, drawings: Iterable[Drawing], for_plugin: Sequence[TracedRank] = ()
) -> tuple[str, ...]:
    """Write the log directory. Return what the profiler plugin cannot show, in words.

    `for_plugin`: the ranks whose traces the plugin shows. Raises ``OSError``, and `DdpprofError` if TensorBoard is not
    installed.
    """
    from ddpprof.render.tensorboard.native import write_native

    with _replaced(directory) as part:
        write_native(part, report, drawings)
        return _write_plugin_traces(part / rundir.TENSORBOARD_TRACES, for_plugin)


@contextmanager
def _replaced(directory: Path) -> Iterator[Path]:
    """Yield a folder whose content, once complete, replaces the old content of `directory`.

    Each TensorBoard run in it is moved as a directory, because the profiler plugin reads a directory when it first sees
    it.
    """
    make_named_folder(directory)
    directory = directory.resolve()  # keep a user's link, and replace its target
    with temporary_folder(directory, rundir.TENSORBOARD_DIRECTORY) as part:
        yield part
        rundir.remove_tensorboard(directory)
        for made in part.iterdir():
            _move(made, directory / made.name)


def _move(made: Path, target: Path) -> None:
    """Move a directory. If the old one contains other files, put the new files next to them."""
    if target.is_dir() and not target.is_symlink():
        for file in made.iterdir():
            file.rename(target / file.name)
    else:
        made.rename(target)


def _write_plugin_traces(directory: Path, ranks: Sequence[TracedRank]) -> tuple[str, ...]:
    """Write the plugin's copies of the ranks' traces: one for each window recorded by the profiler."""
    from ddpprof.load.plugin_trace import write_plugin_trace
    from ddpprof.render.tensorboard.plugin_view import plugin_views

    if not ranks:
        return ()
    make_folder(directory)
    views = plugin_views((rank.summary, rank.about) for rank in ranks)
    are_several = any(len(rank.files) > 1 for rank in ranks)
    for rank in ranks:
        for number, file in enumerate(rank.files, 1):
            target = directory / _plugin_file(rank.summary, number if are_several else None)
            write_plugin_trace(file, target, views.of_rank[rank.about.rank])
    return views.missing


def _plugin_file(rank: RankSummary, window: int | None) -> str:
    """Return a name from which the plugin reads host, process and, for several windows, a number."""
    host = _NOT_FOR_NAMES.sub("-", rank.host or "")[:60].strip("-") or "host"
    number = "" if window is None else f".{window}"
    return f"{host}_{rank.rank:04}{number}.pt.trace.json.gz"
