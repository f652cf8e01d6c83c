"""What did an accelerator do, block of time by block of time? All at once would take much memory.

A block begins with every 100,000th start of the longest table, and so has at most as many of its rows. It has about
the same share of other tables, unless their work is concentrated in one block.
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
    """Rows of several tables, sorted by start, and by table for equal starts."""

    start_ns: Int64Column
    end_ns: Int64Column
    launched_ns: Int64Column
    """launch time, or `UNKNOWN`"""
    phase: NDArray[np.int8]
    table: NDArray[np.int8]
    """index of the table"""


def blocks_of(*tables: Work | Collectives) -> Iterator[Block]:
    """Yield non-empty blocks in order of time; equal starts are in one block."""
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
