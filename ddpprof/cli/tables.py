"""`ddpprof report RUN --out FOLDER/`: write the report's tables as Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ddpprof.cli.saying import say
from ddpprof.errors import writing
from ddpprof.layout import count
from ddpprof.own_files import make_named_folder, write_whole

if TYPE_CHECKING:
    from ddpprof.files import Location
    from ddpprof.report import Report


def write_tables(report: Report, folder: Location) -> None:
    """Write one file per table. Raises `DdpprofError`."""
    from ddpprof.report.tables import parquet_bytes

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
