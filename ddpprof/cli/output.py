"""Where a command writes its result, and in which format."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof.cli.saying import say
from ddpprof.errors import DdpprofError
from ddpprof.files import Location, location
from ddpprof.own_files import write_named

if TYPE_CHECKING:
    from ddpprof.layout import Section

_BY_SUFFIX = {"": "terminal", ".txt": "terminal", ".json": "json", ".md": "markdown", ".html": "html", ".htm": "html"}


def add_output_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=["terminal", "json", "markdown", "html"],
        help="output format (default: terminal, or by the suffix of --out)",
    )
    parser.add_argument("--out", type=_file, metavar="FILE", help="write to FILE; .html, .json and .md set the format")


def _file(text: str) -> Location | None:
    """Return the location, or ``None`` for ``-``, which is standard output."""
    return None if text == "-" else location(text)


def chosen_form(options: argparse.Namespace) -> str:
    suffix = options.out.suffix if options.out is not None and options.format is None else ""
    by_name = _BY_SUFFIX.get(suffix)
    if by_name is None:
        raise DdpprofError(f"{options.out} has no known suffix. Use one of: {', '.join(filter(None, _BY_SUFFIX))}")
    return str(options.format or by_name)


def show(options: argparse.Namespace, title: str, sections: Iterable[Section]) -> None:
    from ddpprof.render.markdown import render_markdown
    from ddpprof.render.terminal import render_terminal

    if chosen_form(options) == "markdown":
        write(options, render_markdown(title, sections))
    elif options.out is not None:
        buffer = StringIO()
        render_terminal(sections, buffer, width=120)
        write(options, buffer.getvalue())
    else:
        render_terminal(sections, sys.stdout)


def write(options: argparse.Namespace, text: str) -> None:
    if options.out is None:
        sys.stdout.write(text)
        return
    try:
        if isinstance(options.out, Path):
            write_named(options.out, text.encode())
        else:
            options.out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DdpprofError(f"cannot write {options.out}: {error.strerror}.") from error
    say(f"Wrote {options.out}.")
