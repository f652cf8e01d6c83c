"""Every operation against a set of small integers, which is what a set of spans means."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpprof.intervals import Spans, clip, intersect, merge, subtract, union

PAIRS = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20)), max_size=12)


def spans(*pairs: tuple[int, int]) -> Spans:
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return union(columns[:, 0], columns[:, 1])


def instants(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for start, end in pairs for t in range(start, end)}


def pairs_of(s: Spans) -> list[tuple[int, int]]:
    return list(zip(s.start_ns.tolist(), s.end_ns.tolist(), strict=True))


def assert_holds(s: Spans, expected: set[int]) -> None:
    """``s`` holds the expected instants and is in normal form."""
    assert instants(pairs_of(s)) == expected
    assert s.total_ns == len(expected)
    assert (s.end_ns > s.start_ns).all()
    assert (s.start_ns[1:] > s.end_ns[:-1]).all(), "sorted, disjoint, neighbours merged"
    assert s.start_ns.dtype == s.end_ns.dtype == np.int64


@given(PAIRS)
def test_union_holds_what_any_span_holds(pairs: list[tuple[int, int]]) -> None:
    assert_holds(spans(*pairs), instants(pairs))


@given(PAIRS, PAIRS)
def test_set_operations_agree_with_sets_of_instants(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    assert_holds(merge(spans(*a), spans(*b)), instants(a) | instants(b))
    assert_holds(intersect(spans(*a), spans(*b)), instants(a) & instants(b))
    assert_holds(subtract(spans(*a), spans(*b)), instants(a) - instants(b))


@given(PAIRS, st.integers(-25, 25), st.integers(-25, 25))
def test_clip_keeps_what_the_window_holds(pairs: list[tuple[int, int]], start: int, end: int) -> None:
    assert_holds(clip(spans(*pairs), start, end), instants(pairs) & set(range(start, end)))


@given(PAIRS)
def test_contains_agrees_with_the_instants(pairs: list[tuple[int, int]]) -> None:
    times = np.arange(-25, 25)
    assert spans(*pairs).contains(times).tolist() == [t in instants(pairs) for t in times.tolist()]


@given(PAIRS, PAIRS)
def test_within_agrees_with_the_instants_that_both_hold(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    columns = np.array(b, dtype=np.int64).reshape(-1, 2)
    shared = [len(instants(a) & set(range(*pair))) for pair in b]
    assert spans(*a).within(columns[:, 0], columns[:, 1]).tolist() == shared


@given(PAIRS, PAIRS)
def test_lengths_add_up(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    one, other = spans(*a), spans(*b)
    assert intersect(one, other).total_ns + subtract(one, other).total_ns == one.total_ns
    assert merge(one, other).total_ns == one.total_ns + subtract(other, one).total_ns


@given(PAIRS, PAIRS, st.integers(0, 1 << 60))
def test_operations_do_not_depend_on_the_clock(a: list[tuple[int, int]], b: list[tuple[int, int]], shift: int) -> None:
    def shifted(pairs: list[tuple[int, int]]) -> Spans:
        return spans(*((start + shift, end + shift) for start, end in pairs))

    for operation in (merge, intersect, subtract):
        here, there = operation(spans(*a), spans(*b)), operation(shifted(a), shifted(b))
        assert pairs_of(there) == [(start + shift, end + shift) for start, end in pairs_of(here)]


@pytest.mark.parametrize(
    ("given_pairs", "normal"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([(5, 5), (7, 3)], [], id="empty-and-reversed"),
        pytest.param([(0, 2), (2, 4)], [(0, 4)], id="touching-merge"),
        pytest.param([(0, 10), (2, 3), (9, 12)], [(0, 12)], id="nested-and-overlapping"),
        pytest.param([(5, 6), (0, 1)], [(0, 1), (5, 6)], id="unsorted"),
        pytest.param([(1 << 60, (1 << 60) + 1)], [(1 << 60, (1 << 60) + 1)], id="absolute-nanoseconds"),
    ],
)
def test_union_is_in_normal_form(given_pairs: list[tuple[int, int]], normal: list[tuple[int, int]]) -> None:
    assert pairs_of(spans(*given_pairs)) == normal


def test_equal_sets_are_equal() -> None:
    assert spans((0, 2), (1, 3)) == spans((0, 3))
    assert spans((0, 2)) != spans((0, 3))
    assert spans((0, 2)) != "spans"
