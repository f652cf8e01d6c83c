"""Options for output files and formats, and functions that write results."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof.cli.saying import say
from ddpprof.errors import DdpprofError, writing
from ddpprof.files import Location, location
from ddpprof.layout import count
from ddpprof.own_files import make_named_folder, write_named, write_whole

if TYPE_CHECKING:
    from ddpprof.layout import Section
    from ddpprof.render.json_documents import Written
    from ddpprof.report import Report

_BY_SUFFIX = {"": "terminal", ".txt": "terminal", ".json": "json", ".md": "markdown", ".html": "html", ".htm": "html"}


def add_output_options(parser: argparse.ArgumentParser, *, has_tables: bool = False) -> None:
    """Add ``--format`` and ``--out``. `has_tables`: the command writes tables if ``--out`` is a folder."""
    parser.add_argument(
        "--format",
        choices=["terminal", "json", "markdown", "html"],
        help="output format (default: from the suffix of --out, otherwise terminal)",
    )
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="short for --format json")
    tables = "; FOLDER/ writes each table as a Parquet file" if has_tables else ""
    parser.add_argument(
        "--out", action=_Out, metavar="FILE", help=f"write to FILE; .html, .json and .md set the format{tables}"
    )
    parser.set_defaults(has_tables=has_tables, out_is_folder=False)


class _Out(argparse.Action):
    """Option that stores the location of the output; ``-`` stands for standard output, and is stored as ``None``."""

    def __call__(
        self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, _option: object = None
    ) -> None:
        text = str(values)
        namespace.out = None if text == "-" else location(text)
        namespace.out_is_folder = text.endswith("/") or (isinstance(namespace.out, Path) and namespace.out.is_dir())


def chosen_form(options: argparse.Namespace) -> str:
    """Return the output format. It is ``"tables"`` if the output is a folder. Raises `DdpprofError`."""
    if options.out is not None and options.out_is_folder:
        if not options.has_tables or options.format is not None:
            raise DdpprofError(f"{options.out} is a folder. Give a file: --out {options.out}/NAME.html")
        return "tables"
    suffix = options.out.suffix if options.out is not None and options.format is None else ""
    by_name = _BY_SUFFIX.get(suffix)
    if suffix == ".parquet" and options.has_tables:
        raise DdpprofError(
            f"{options.out} is one file, but a report has several tables. Give a folder: --out {options.out.parent}/"
        )
    if by_name is None:
        raise DdpprofError(f"{options.out} has no known suffix. Use one of: {', '.join(filter(None, _BY_SUFFIX))}")
    return str(options.format or by_name)


def check_output(options: argparse.Namespace) -> None:
    """Raise `DdpprofError` if the result cannot be written to ``--out``. Call this before doing any work."""
    form = chosen_form(options)
    if form != "tables":
        refuse_unwritable(options.out)


def refuse_unwritable(path: Location | None) -> None:
    """Raise `DdpprofError` if the permissions of the folder that contains `path` do not allow writing a file."""
    if not isinstance(path, Path) or (path.exists() and not path.is_file()):
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise DdpprofError(f"cannot write {path}: there is no folder {folder}. Create it first.")
    if not os.access(folder, os.W_OK):
        raise DdpprofError(f"cannot write {path}: no permission to write to {folder}.")


def refuse_unwritable_folder(folder: Path) -> None:
    """Raise `DdpprofError` if the permissions of the parent folders of `folder` do not allow creating it."""
    above = next(one for one in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(one))
    if not above.is_dir():
        raise DdpprofError(f"cannot write {folder}: {above} is not a folder.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise DdpprofError(f"cannot write {folder}: no permission to write to {above}.")


def deliver(options: argparse.Namespace, title: str, result: Written, sections: Iterable[Section]) -> None:
    """Write a result in the chosen format. `sections`: the result as text."""
    from ddpprof.render.json import render_json

    form = chosen_form(options)
    if form == "json":
        write(options, render_json(result))
    elif form == "html":
        from ddpprof.render.html.result_pages import result_page

        write(options, result_page(title, result, sections))
    else:
        show(options, title, sections)


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
    with writing(options.out):
        if isinstance(options.out, Path):
            write_named(options.out, text.encode())
        else:
            options.out.write_bytes(text.encode())
    say(f"Wrote {options.out}.")


def write_tables(report: Report, folder: Location) -> None:
    """Write one file per table. Raises `DdpprofError`."""
    from ddpprof.report.topics import parquet_bytes

    tables = dict(report.tables)
    with writing(folder):
        if isinstance(folder, Path):
            make_named_folder(folder)
        for name, table in tables.items():
            path, content = folder / f"{name}.parquet", parquet_bytes(table)
            if isinstance(path, Path):
                write_whole(path, content)
            else:
                path.write_bytes(content)
    rows = ", ".join(f"{name}.parquet ({count(table.num_rows, 'row')})" for name, table in tables.items())
    say(f"Wrote to {folder}: {rows}.")
