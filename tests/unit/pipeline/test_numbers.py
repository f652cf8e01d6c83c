"""Numbers that a user asked for."""

import pytest

from ddpprof.cli.arguments import numbers
from ddpprof.ranks_and_steps import Numbers


@pytest.mark.parametrize(
    ("asked", "there", "left"),
    [
        ("0-7,64", range(8), "64"),
        ("0-7", range(8), ""),
        ("0-999999999999", [0, 1, 5], "2-4, 6-999999999999"),
        ("3,1", [2], "3, 1"),
        ("2-4", [], "2-4"),
    ],
)
def test_what_was_asked_for_and_is_not_there(asked: str, there: list[int], left: str) -> None:
    lacking = numbers(asked).without(there)
    assert (str(lacking), bool(lacking)) == (left, bool(left))


def test_numbers_next_to_each_other_are_a_span() -> None:
    assert str(Numbers.of([4, 12, 6, 13, 14, 4])) == "4, 6, 12-14"
    assert [Numbers.of(some).are_several for some in ([3], [3, 4], [3, 5])] == [False, True, True]
