"""Print messages.

Messages may contain text from untrusted files, so only this module prints, and it cleans all text.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TextIO

_LONGEST_LINE = 2000
"""maximum number of characters in a line; enough to show most command lines in full"""


class _Choices:
    """Output options of this process.

    Not a dataclass, because importing `dataclasses` accounts for a fifth of the run time of ``--help``.
    """

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
    """Add ``--json``. With it, messages go to stderr, so that stdout contains only JSON."""
    parser.add_argument("--json", action=_Choose, dest="prints_json", help="print the result as JSON")


class _Choose(argparse.Action):
    """Option without a value. It sets the attribute of `CHOICES` that is named in `dest`."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:  # noqa: A002 (argparse's name)
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, *_: object) -> None:
        setattr(CHOICES, self.dest, True)


def text_stream() -> TextIO:
    """Return the stream for messages: stderr if stdout is reserved for JSON, otherwise stdout."""
    return sys.stderr if CHOICES.prints_json else sys.stdout


def say(*texts: object, file: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Print like ``print``, but shorten very long lines and remove control characters."""
    from ddpprof.layout import clean

    lines = [_shortened(line) for line in " ".join(map(str, texts)).split("\n")]
    print("\n".join(clean(line, _LONGEST_LINE) for line in lines), file=file or text_stream(), end=end, flush=flush)


def say_error(error: Exception) -> None:
    """Print an error in one line, after its traceback if ``-v`` is given."""
    if CHOICES.is_verbose:
        import traceback

        traceback.print_exception(error)
    say(f"ddpprof: {error}", file=sys.stderr)


def note(text: str) -> None:
    """Print an optional message to stderr, unless ``-q`` is given."""
    if not CHOICES.is_quiet:
        say(f"ddpprof: {text}", file=sys.stderr)


def progress(*texts: object) -> None:
    """Print the progress of a long command, unless ``-q`` is given."""
    if not CHOICES.is_quiet:
        say(*texts, flush=True)


def _shortened(line: str) -> str:
    """Remove the middle of a long line, because the end of a line often says what went wrong."""
    half = _LONGEST_LINE // 2 - 1
    return line if len(line) <= _LONGEST_LINE else f"{line[:half]}…{line[-half:]}"
