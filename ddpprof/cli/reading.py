"""Reading a run, and showing on a terminal what is being read."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof.errors import DdpprofError

if TYPE_CHECKING:
    from ddpprof.events import Run

_SILENT_S = 0.5
"""What is read faster needs no bar."""
_SILENT_BYTES = 8_000_000


def read_run(path: Path) -> Run:
    """Raises `DdpprofError`."""
    from ddpprof.experiment.plan import is_experiment
    from ddpprof.load.run import load_run

    if is_experiment(path):
        raise DdpprofError(f"{path} is an experiment. Its trials are runs: {path / 'trial-0-0'}, for one.")
    with _progress() as watch:
        return load_run(path, watch)


@contextmanager
def _progress() -> Iterator[Callable[[Path, int, int], None] | None]:
    """A bar on stderr; nothing where that is no terminal, or one that cannot redraw a line."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

    from ddpprof.render.sections.layout import clean

    columns = (TextColumn("reading {task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, console=Console(stderr=True, no_color=bool(os.environ.get("NO_COLOR"))), transient=True)
    began = time.monotonic()
    tasks: list[TaskID] = []

    def watch(path: Path, done: int, number: int) -> None:
        if not tasks:
            if time.monotonic() - began < _SILENT_S and path.stat().st_size < _SILENT_BYTES:
                return
            tasks.append(bar.add_task("", total=number))
            bar.start()
        bar.update(tasks[0], description=clean(path.name, most=40), completed=done, total=number)

    try:
        yield watch
    finally:
        bar.stop()
