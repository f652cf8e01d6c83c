"""`ddpprof top`: show the ranks of a running job."""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof.cli.arguments import seconds
from ddpprof.cli.reading import sigterm_as_exit
from ddpprof.cli.saying import say

if TYPE_CHECKING:
    from rich.console import Console

    from ddpprof.monitor.overview import Overview
    from ddpprof.render.top import Order, Shown

_MOST_SLOWDOWNS = 5
_KEYS = "q quit  p pause  sort: o own  r rank  w wait  d data"
"""line that explains the keys; it fits into 80 columns together with the sort order and ``PAUSED``"""


def add_top_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="RUN", help="run directory of a running or finished job")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--once", action="store_true", help="print the view once, and exit")
    shown.add_argument(
        "--plain", action="store_true", help="print one line per refresh (default if the output is not a terminal)"
    )
    parser.add_argument(
        "--every", type=seconds, default=1.0, metavar="S", help="seconds between refreshes (default: 1)"
    )
    parser.set_defaults(run=run_top)


def run_top(options: argparse.Namespace) -> int:
    from ddpprof.monitor.overview import find_pulses
    from ddpprof.render.terminal import console_on

    find_pulses(options.path)  # raises if there is nothing to show
    console = console_on(sys.stdout)
    if options.once:
        _print_once(options.path, console)
    elif options.plain or not sys.stdout.isatty() or console.is_dumb_terminal:
        _print_lines(options.path, options.every)
    else:
        _show_live(options.path, options.every, console)
    return 0


def _look(path: Path) -> tuple[Overview, Shown]:
    """Return the current state of the job, and the launcher's reports on slowdowns and hangs."""
    from ddpprof.monitor.overview import find_pulses, look_at
    from ddpprof.render.top import Shown

    directory = find_pulses(path)
    now = look_at(directory, time.time_ns())
    return now, Shown(slowdowns=_slowdown_lines(directory, len(now.ranks)), hang=_hang_lines(directory, now))


def _print_once(path: Path, console: Console) -> None:
    from ddpprof.render.top import rows_that_fit, top_view

    overview, shown = _look(path)
    if console.is_terminal:
        shown = replace(shown, most_rows=rows_that_fit(overview, shown, console))
    else:
        console.width = max(console.width, _PIPE_COLUMNS)
    console.print(top_view(overview, shown, console))
    if overview.is_over:
        say(f"\n{_about_end(path, overview)}")


_PIPE_COLUMNS = 160


def _print_lines(path: Path, every_s: float) -> None:
    from ddpprof.render.top import one_line

    while True:
        overview, _ = _look(path)
        say(time.strftime("%H:%M:%S"), one_line(overview), flush=True)
        if overview.is_over:
            say(f"\n{_about_end(path, overview)}")
            return
        time.sleep(every_s)


def _about_end(path: Path, overview: Overview) -> str:
    """Return a message saying that the job has ended, with the command to run next."""
    from ddpprof.monitor.overview import Standing

    if any(one.standing.is_trouble for one in overview.ranks):
        return f"All ranks have ended, and some failed. Find out why with: ddpprof diagnose {path}"
    if any(one.standing is Standing.UNWATCHED for one in overview.ranks):
        return (
            "ddpprof has stopped watching, but the job may still be running. View the recorded part with: ddpprof "
            f"report {path}"
        )
    return f"All ranks have ended. View the whole run with: ddpprof report {path}"


def _show_live(path: Path, every_s: float, console: Console) -> None:
    """Show the view until the user presses q. The terminal is always restored."""
    from rich.live import Live

    from ddpprof.render.top import ORDERS, rows_that_fit, top_view

    order, paused = ORDERS["o"], False
    overview, said = _look(path)
    with (
        sigterm_as_exit(),
        _single_keys() as next_key,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            if not paused:
                overview, said = _look(path)
            shown = replace(said, order=order, keys=_about_keys(path, order, paused, overview))
            shown = replace(shown, most_rows=rows_that_fit(overview, shown, console))
            live.update(top_view(overview, shown, console), refresh=True)
            key = next_key(every_s)
            if key == "q":
                return
            paused = not paused if key == "p" else paused
            order = ORDERS.get(key, order)


def _about_keys(path: Path, order: Order, paused: bool, overview: Overview) -> str:
    state = "  PAUSED" if paused else ""
    over = f"\n{_about_end(path, overview)}" if overview.is_over else ""
    return f"{_KEYS}  (sorted by {order.name}){state}{over}"


@contextmanager
def _single_keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for a key.

    Its argument is the maximum time in seconds. It returns the key or an empty string.
    """
    if not sys.stdin.isatty():
        yield _no_key
        return
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def next_key(at_most_s: float) -> str:
        if not select.select([keyboard], [], [], at_most_s)[0]:
            return ""
        pressed = os.read(keyboard, 1)
        return pressed.decode(errors="replace") if pressed else "q"  # the terminal was closed

    try:
        tty.setcbreak(keyboard)
        yield next_key
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _no_key(at_most_s: float) -> str:
    time.sleep(at_most_s)
    return ""


def _hang_lines(directory: Path, now: Overview) -> list[str]:
    """If the job hangs, return the verdict as lines of text."""
    from msgspec import structs

    from ddpprof.monitor.pulse_files import read_verdict
    from ddpprof.topics.hang_words import verdict_lines

    verdict = read_verdict(directory)
    if verdict is None or verdict.resumed_unix_ns is not None or now.is_over:
        return []
    return verdict_lines(structs.replace(verdict, at_unix_ns=time.time_ns()))  # ranks have waited for longer since then


def _slowdown_lines(directory: Path, world_size: int) -> list[str]:
    """Return a sentence for each of the most recent slowdowns that the launcher has found, and for growing steps."""
    from ddpprof.monitor.looks import recent_growth
    from ddpprof.monitor.pulse_files import read_pulses, read_slowdowns
    from ddpprof.topics.whole_run import slowdown_sentence

    found = read_slowdowns(directory)
    growths = [recent_growth(pulse, found) for pulse in read_pulses(directory, 1).values()]
    lines = [] if found is None else [slowdown_sentence(one, world_size) for one in found.slowdowns[-_MOST_SLOWDOWNS:]]
    return [*lines, *(growth.sentence("now") for growth in growths if growth is not None)]
