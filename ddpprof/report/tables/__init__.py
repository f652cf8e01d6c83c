"""The report as Arrow tables, for data frames and SQL: `Report.tables`."""

from ddpprof.report.tables.arrow import TABLES, Tables, make_tables, parquet_bytes, require_arrow
from ddpprof.report.tables.schema import schema_as_markdown

__all__ = ["TABLES", "Tables", "make_tables", "parquet_bytes", "require_arrow", "schema_as_markdown"]
