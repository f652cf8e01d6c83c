"""The only place that prints sentences; names and texts in them may come from untrusted files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TextIO

_LONGEST_LINE = 2000
"""characters; long enough to show most command lines in full"""


class _Choices:
    """What the user chose for this process. No dataclass, whose import takes a fifth of the time of ``--help``."""

    is_quiet: bool = False
    is_verbose: bool = False
    prints_json: bool = False

    def forget(self) -> None:
        self.is_quiet = self.is_verbose = self.prints_json = False


CHOICES = _Choices()


def add_saying_options(parser: argparse.ArgumentParser) -> None:
    """Add ``-q`` and ``-v``."""
    parser.add_argument("-q", "--quiet", action=_Choose, dest="is_quiet", help="print only results and errors")
    parser.add_argument("-v", "--verbose", action=_Choose, dest="is_verbose", help="print the traceback of an error")


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``. All sentences then go to stderr, so that stdout has nothing but the JSON."""
    parser.add_argument("--json", action=_Choose, dest="prints_json", help="print the result as JSON")


class _Choose(argparse.Action):
    """Option without a value that sets one of `CHOICES`."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:  # noqa: A002 (argparse's name)
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, *_: object) -> None:
        setattr(CHOICES, self.dest, True)


def text_stream() -> TextIO:
    """Return the stream for sentences about what a command does: stderr if stdout is for JSON."""
    return sys.stderr if CHOICES.prints_json else sys.stdout


def say(*texts: object, file: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Print as ``print`` does, but shorten very long lines and remove control characters."""
    from ddpprof.layout import clean

    lines = [_shortened(line) for line in " ".join(map(str, texts)).split("\n")]
    print("\n".join(clean(line, _LONGEST_LINE) for line in lines), file=file or text_stream(), end=end, flush=flush)


def say_error(error: Exception) -> None:
    """Print an error in one line and, if ``-v`` is given, its traceback before."""
    if CHOICES.is_verbose:
        import traceback

        traceback.print_exception(error)
    say(f"ddpprof: {error}", file=sys.stderr)


def note(text: str) -> None:
    """Print a sentence that the user may do without, unless ``-q`` is given."""
    if not CHOICES.is_quiet:
        say(f"ddpprof: {text}", file=sys.stderr)


def progress(*texts: object) -> None:
    """Print what a long command does now, unless ``-q`` is given."""
    if not CHOICES.is_quiet:
        say(*texts, flush=True)


def _shortened(line: str) -> str:
    """Shorten a long line in the middle, because its end often says what went wrong."""
    half = _LONGEST_LINE // 2 - 1
    return line if len(line) <= _LONGEST_LINE else f"{line[:half]}…{line[-half:]}"
