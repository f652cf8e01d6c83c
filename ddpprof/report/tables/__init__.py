"""The report as Arrow tables, for data frames and SQL: `Report.tables`.

arrow.py     all Arrow tables of a report, and their Parquet files
of_ranks.py  declarations of the tables of ranks and findings
of_steps.py  declarations of the tables of steps
of_work.py   declarations of the tables of buckets, collectives and kernels
schema.py    declarations of tables and their columns, from which tables, documentation and tests are made
"""

from ddpprof.report.tables.arrow import TABLES, Tables, make_tables, parquet_bytes, require_arrow
from ddpprof.report.tables.schema import schema_as_markdown

__all__ = ["TABLES", "Tables", "make_tables", "parquet_bytes", "require_arrow", "schema_as_markdown"]
