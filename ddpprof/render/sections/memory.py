"""Memory per rank and device."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.layout import ABSENT, MAX_RANKS, Section, Table, clean, columns, cut_off, notes
from ddpprof.measures.ranks.memory import RankMemory
from ddpprof.report import Report


def memory_table(report: Report) -> Iterable[Section]:
    rows = [row for rank in report.memory for row in _rows(rank)]
    if not rows:
        return
    has_devices = any(rank.devices for rank in report.memory)
    names = ("rank", "of", "steady", "peak", "reserved") if has_devices else ("rank", "of", "steady", "peak")
    yield Table(
        "Memory, MB",
        columns(*names, words=("of",)),
        tuple(row[: len(names)] for row in rows[:MAX_RANKS]),
        notes(
            "steady: at the end of recorded steps (median); peak: since the process began",
            "GPU: memory of tensors; reserved: by torch's allocator" if has_devices else "",
            cut_off(len(rows), what="rows"),
        ),
    )


def _rows(rank: RankMemory) -> Iterable[tuple[str, ...]]:
    yield (str(rank.rank), "process", _mb(rank.steady_rss_bytes), _mb(rank.peak_rss_bytes), ABSENT)
    for use in rank.devices:
        where = clean(f"GPU {use.index}{'' if use.is_own else ', not its own'}")
        yield (str(rank.rank), where, _mb(use.steady_bytes), _mb(use.peak_bytes), _mb(use.reserved_bytes))


def _mb(num_bytes: int | None) -> str:
    return ABSENT if num_bytes is None else f"{num_bytes / 1e6:.0f}"
