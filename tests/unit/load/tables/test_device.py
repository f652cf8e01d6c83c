"""Joins of kernels with what the host did, each against a search one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ddpprof.load.host import holder_of, last_begun, launch_of
from ddpprof.model import UNKNOWN

TIMES = st.lists(st.integers(0, 20), max_size=8)


def column(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


@given(TIMES, st.lists(st.tuples(st.integers(0, 20), st.integers(0, 99)), max_size=8, unique_by=lambda pair: pair[1]))
def test_a_kernels_launch_is_the_first_of_its_correlation(kernels: list[int], launches: list[tuple[int, int]]) -> None:
    correlation, start = zip(*launches, strict=True) if launches else ((), ())
    found = launch_of(column(kernels), column(list(correlation)), column(list(start)))
    for kernel, launch in zip(kernels, found.tolist(), strict=True):
        mine = [start[i] for i in range(len(launches)) if correlation[i] == kernel and kernel]
        assert (start[launch] == min(mine)) if mine else launch == UNKNOWN


SPAN = st.tuples(st.integers(0, 20), st.integers(0, 6), st.integers(1, 2))


@given(st.lists(st.tuples(st.integers(0, 26), st.integers(1, 2)), max_size=6),
       st.lists(SPAN, max_size=6, unique_by=lambda span: (span[0], span[2])))  # fmt: skip
def test_the_holder_of_an_instant_is_the_last_span_of_its_thread_that_began(
    instants: list[tuple[int, int]], spans: list[tuple[int, int, int]]
) -> None:
    table = np.array(spans, np.int64).reshape(-1, 3)
    given_instants = np.array(instants, np.int64).reshape(-1, 2)
    found = holder_of(given_instants[:, 0], given_instants[:, 1], table[:, 0], table[:, 0] + table[:, 1], table[:, 2])
    for (time, thread), span in zip(instants, found.tolist(), strict=True):
        last = max(((s, i) for i, (s, _, t) in enumerate(spans) if t == thread and s <= time), default=None)
        holds = last is not None and time < last[0] + spans[last[1]][1]
        assert span == (last[1] if last and holds else UNKNOWN)


@given(TIMES, st.lists(st.integers(0, 20), max_size=8, unique=True))
def test_the_last_begun_began_before(times: list[int], starts: list[int]) -> None:
    for time, index in zip(times, last_begun(column(times), column(starts)).tolist(), strict=True):
        before = [start for start in starts if start < time]
        assert (starts[index] == max(before)) if before else index == UNKNOWN
