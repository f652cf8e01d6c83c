"""The list of all tables."""

from __future__ import annotations

from typing import Any

from ddpprof.report.tables.of_ranks import FINDINGS, RANKS
from ddpprof.report.tables.of_steps import LIGHT_STEPS, STEPS
from ddpprof.report.tables.of_work import BUCKETS, COLLECTIVES, KERNELS
from ddpprof.report.tables.schema import TableSchema

TABLES: tuple[TableSchema[Any], ...] = (STEPS, LIGHT_STEPS, RANKS, BUCKETS, COLLECTIVES, KERNELS, FINDINGS)
