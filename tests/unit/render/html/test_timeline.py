"""Which spans of a timeline stand apart, and that merging them loses nothing of their sums."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import ints

from ddpprof.render.html.timeline import SpanColumns, coarsen, grain_for, lane


def spans(*rows: tuple[int, int] | tuple[int, int, int], most_rows: int = 1) -> SpanColumns:
    """start, end, kind; each has its number as its name."""
    whole = [(*row, 0)[:3] for row in rows]
    start, end, kind = (ints([row[column] for row in whole]) for column in range(3))
    return lane(start, end, kind, np.arange(len(whole)), most_rows)


def shown(some: SpanColumns) -> list[tuple[int, int, int, int, int]]:
    """start, end, busy, count, name"""
    columns = (some.start_ns, some.end_ns, some.busy_ns, some.count, some.name)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_narrow_spans_of_one_grain_become_one_named_after_the_longest() -> None:
    fine = spans((0, 2), (3, 7), (8, 9), (10, 12), (20, 45), (46, 47))
    assert shown(coarsen(fine, 10)) == [(0, 9, 7, 3, 1), (10, 12, 2, 1, 3), (20, 45, 25, 1, 4), (46, 47, 1, 1, 5)]


def test_kinds_merge_each_by_itself() -> None:
    fine = spans((0, 2, 0), (2, 4, 1), (4, 5, 0), (5, 6, 1))
    assert shown(coarsen(fine, 10)) == [(0, 5, 3, 2, 0), (2, 6, 3, 2, 1)]


def test_spans_that_overlap_stand_in_rows_and_the_last_row_takes_the_rest() -> None:
    fine = spans((0, 10), (1, 5), (2, 6), (12, 13), most_rows=2)
    assert sorted(zip(fine.start_ns.tolist(), fine.row.tolist(), strict=True)) == [(0, 0), (1, 1), (2, 1), (12, 0)]


@pytest.mark.parametrize("some", [spans(), spans((0, 5))])
def test_what_cannot_merge_stays(some: SpanColumns) -> None:
    assert shown(coarsen(some, 100)) == shown(some)


@given(
    rows=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 30), st.integers(0, 2)), max_size=40),
    grain=st.integers(1, 60),
)
def test_the_sums_of_every_kind_stay(rows: list[tuple[int, int, int]], grain: int) -> None:
    fine = spans(*((start, start + length, kind) for start, length, kind in rows), most_rows=3)
    merged = coarsen(fine, grain)
    for kind in range(3):
        assert merged.busy_ns[merged.kind == kind].sum() == fine.busy_ns[fine.kind == kind].sum()
        assert merged.count[merged.kind == kind].sum() == (fine.kind == kind).sum()
    assert len(merged) <= len(fine)


def test_the_finest_grain_that_has_room() -> None:
    many = spans(*((index * 100, index * 100 + 50) for index in range(1000)))
    assert grain_for([many], 1000, 100_000) == 0
    grain = grain_for([many], 100, 100_000)
    assert len(coarsen(many, grain)) <= 100 < len(coarsen(many, grain // 2))
