"""What runs at the same time shares the link evenly; what runs alone has it all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import call, calls

from ddpprof.intervals import union
from ddpprof.measures.collectives.time_alone import shared_durations_ns


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        pytest.param([], [], id="none"),
        pytest.param([(3, 10)], [7], id="alone"),
        pytest.param([(0, 10), (10, 14)], [10, 4], id="one-after-the-other"),
        pytest.param([(0, 10), (0, 10)], [5, 5], id="together"),
        pytest.param([(0, 10), (4, 20)], [7, 13], id="overlap"),
        pytest.param([(0, 12), (0, 12), (0, 6)], [2 + 3, 2 + 3, 2], id="three-then-two"),
        pytest.param([(0, 10), (5, 5)], [10, 0], id="of-no-length"),
    ],
)
def test_shared_durations(spans: list[tuple[int, int]], expected: list[int]) -> None:
    assert shared_durations_ns(calls(*(call(*span) for span in spans))).tolist() == expected


SPAN = st.tuples(st.integers(0, 10**12), st.integers(0, 10**10)).map(lambda s: (s[0], s[0] + s[1]))


@given(st.lists(SPAN, max_size=8))
def test_the_shares_add_up_to_the_time_in_which_anything_ran(spans: list[tuple[int, int]]) -> None:
    comm = calls(*(call(*span) for span in spans))
    shared = shared_durations_ns(comm)
    assert abs(int(shared.sum()) - union(comm.start_ns, comm.end_ns).total_ns) <= len(spans)
    assert (shared <= comm.end_ns - comm.start_ns).all()
