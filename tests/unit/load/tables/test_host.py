import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpprof.intervals import union
from ddpprof.load.host import awaited_until, compute_pieces, cut_out, outermost

SPAN = st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda span: (span[0], span[0] + span[1]))
OPS = st.lists(st.tuples(SPAN, st.integers(1, 2), st.booleans()), max_size=12)


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@given(st.lists(SPAN, max_size=6), st.lists(SPAN, max_size=6))
def test_cut_out_leaves_each_span_without_the_holes(spans: list[tuple[int, int]], holes: list[tuple[int, int]]) -> None:
    hole_instants = {t for start, end in holes for t in range(start, end)}
    start, end, owner = cut_out(*columns(spans), union(*columns(holes)))
    assert (end > start).all()
    for number, span in enumerate(spans):
        left = [t for s, e in zip(start[owner == number], end[owner == number], strict=True) for t in range(s, e)]
        assert left == sorted(set(range(*span)) - hole_instants)


@given(st.lists(st.tuples(SPAN, st.integers(1, 2)), max_size=10))
def test_outermost_spans_are_held_by_no_other_of_their_thread(ops: list[tuple[tuple[int, int], int]]) -> None:
    start, end = columns([span for span, _ in ops])
    kept = [ops[row] for row in outermost(start, end, np.array([thread for _, thread in ops], np.int64))]
    maximal = {
        (span, thread)
        for span, thread in ops
        if span[1] > span[0]
        and not any(
            thread == t and s[0] <= span[0] and span[1] <= s[1] and s != span for s, t in ops
        )
    }  # fmt: skip
    assert kept == sorted(maximal, key=lambda op: (op[1], op[0]))


@given(OPS)
def test_compute_is_what_ops_cover_and_calls_do_not(ops: list[tuple[tuple[int, int], int, bool]]) -> None:
    start, end = columns([span for span, _, _ in ops])
    thread = np.array([thread for _, thread, _ in ops], np.int64)
    is_call = np.array([call for _, _, call in ops], np.bool_)
    starts, ends, rows = compute_pieces(start, end, thread, is_call, end)
    for number in (1, 2):
        on_thread = thread[rows] == number
        pieces = [t for s, e in zip(starts[on_thread], ends[on_thread], strict=True) for t in range(s, e)]
        covered = {t for span, lane, _ in ops if lane == number for t in range(*span)}
        called = {t for span, lane, call in ops if lane == number and call for t in range(*span)}
        assert sorted(pieces) == sorted(covered - called), "each instant once: pieces of a thread are disjoint"


@pytest.mark.parametrize(
    ("over", "until"),
    [
        pytest.param(60, 60, id="until-the-collective-is-over"),
        pytest.param(90, 70, id="until-the-next-op-of-the-thread"),
        pytest.param(15, 20, id="not-after-its-end-if-it-is-over-by-then"),
    ],
)
def test_a_call_is_awaited(over: int, until: int) -> None:
    start, end = columns([(0, 100), (10, 20), (70, 80), (30, 40)])
    thread, is_call = np.array([1, 1, 1, 2], np.int64), np.array([False, True, False, False])
    awaited = awaited_until(end, start, thread, is_call, np.array([100, over, 80, 40], np.int64))
    assert awaited.tolist() == [100, until, 80, 40]
    _, ends, _ = compute_pieces(start, end, thread, is_call, awaited)
    assert ends.tolist() == [10, 100, 40]
