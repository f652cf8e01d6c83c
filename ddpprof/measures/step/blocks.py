"""What did an accelerator do, one stretch of time after the other? All at once would take much memory.

A stretch begins with every 100,000th start of the longest table, so that it has as many rows of that one at most. Of
another it has about its share, unless that one's work crowds into one stretch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddpprof.model import Collectives, Int64Column, Work

BLOCK_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of several tables; sorted by start, of what starts at once by table."""

    start_ns: Int64Column
    end_ns: Int64Column
    launched_ns: Int64Column
    """or `UNKNOWN`"""
    phase: NDArray[np.int8]
    table: NDArray[np.int8]
    """which of the tables"""


def blocks_of(*tables: Work | Collectives) -> Iterator[Block]:
    """In order of time, none empty; all that starts at once is in one."""
    cuts = np.unique(max(tables, key=len).start_ns[BLOCK_ROWS::BLOCK_ROWS])
    bounds = [[0, *np.searchsorted(table.start_ns, cuts).tolist(), len(table)] for table in tables]
    for block in range(len(cuts) + 1):
        rows = [slice(of_table[block], of_table[block + 1]) for of_table in bounds]
        if any(some.stop > some.start for some in rows):
            yield _block(tables, rows)


def _block(tables: Sequence[Work | Collectives], rows: Sequence[slice]) -> Block:
    of_tables = list(zip(tables, rows, strict=True))
    start = np.concatenate([table.start_ns[some] for table, some in of_tables])
    end = np.concatenate([table.end_ns[some] for table, some in of_tables])
    launched = np.concatenate([table.launched_ns[some] for table, some in of_tables])
    phase = np.concatenate([table.phase[some] for table, some in of_tables])
    which = np.repeat(np.arange(len(tables), dtype=np.int8), [some.stop - some.start for some in rows])
    order = np.argsort(start, kind="stable")
    return Block(start[order], end[order], launched[order], phase[order], which[order])
