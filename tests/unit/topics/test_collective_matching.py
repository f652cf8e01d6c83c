"""Rows of several ranks are paired where they are surely one collective, and nowhere else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import call, job, rank, shifted, without
from shared import TRACES

from ddpprof.load.run import load_run
from ddpprof.model import NO_STEP, UNKNOWN, CollectiveKind, ProcessGroup, Step
from ddpprof.topics.collective_matching import MatchedCollectives, RankCollectives, match_collectives, rank_collectives

CHECKOUT = Path(__file__).parents[3]
SUM, CAST, GATHER, PAIR = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.BROADCAST,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.SEND_RECV,
)
X = UNKNOWN


def rows(*ranks: RankCollectives) -> list[list[int]]:
    found: list[list[int]] = match_collectives(ranks).rows.tolist()
    return found


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        pytest.param([rank(0, call(0, 9), call(9, 12)), rank(1, call(3, 9), call(9, 11))], [[0, 0], [1, 1]], id="two"),
        pytest.param(
            [rank(0, call(5, 9, launched=1), call(4, 8, launched=2)), rank(1, call(0, 5), call(6, 9))],
            [[1, 0], [0, 1]],
            id="by-launch-not-by-start",
        ),
        pytest.param(
            [rank(0, call(5, 9, launched=X), call(4, 8, launched=X)), rank(1, call(0, 5), call(6, 9))],
            [[0, 0], [1, 1]],
            id="by-start-where-no-launch-is-known",
        ),
        pytest.param(
            [rank(0, call(0, 9, step=1), steps=[10, 11]), rank(1, call(0, 9, step=0), steps=[11, 12])],
            [[0, 0]],
            id="steps-of-one-number",
        ),
        pytest.param([rank(0, call(0, 9, step=0)), rank(1, call(0, 9, step=1))], [], id="steps-of-different-numbers"),
        pytest.param([rank(0, call(0, 9, step=NO_STEP)), rank(1, call(0, 9, step=NO_STEP))], [], id="no-step"),
        pytest.param([rank(0, call(0, 9, PAIR)), rank(1, call(0, 9, PAIR))], [], id="sends-and-receives"),
        pytest.param(
            [rank(0, call(0, 2, PAIR), call(3, 5)), rank(1, call(0, 4))], [[1, 0]], id="a-collective-beside-a-send"
        ),
        pytest.param([rank(0, call(0, 9))], [], id="one-rank"),
        pytest.param([], [], id="no-rank"),
        pytest.param([rank(0, call(0, 9)), rank(1)], [], id="a-rank-without-collectives"),
    ],
)
def test_by_order_of_launch_in_a_step(ranks: list[RankCollectives], expected: list[list[int]]) -> None:
    assert rows(*ranks) == expected
    assert match_collectives(ranks).mismatches == () or not expected


def seq(number: int, kind: CollectiveKind = SUM, **more: Any) -> dict[str, int]:
    return call(number * 10, number * 10 + 5, kind, sequence=number, group=0, **more)


WORLD2 = [ProcessGroup("0", 2, (0, 1))]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        pytest.param(
            [rank(0, seq(3), seq(4), groups=WORLD2), rank(1, seq(4), seq(5), groups=WORLD2)], [[1, 0]], id="overlap"
        ),
        pytest.param(
            [rank(0, seq(3, step=NO_STEP), groups=WORLD2), rank(1, seq(3, step=1), groups=WORLD2)],
            [[0, 0]],
            id="needs-no-step",
        ),
        pytest.param(
            [rank(0, seq(3), groups=WORLD2), rank(1, seq(3), groups=[ProcessGroup("1", 2, (0, 1))])],
            [],
            id="another-group",
        ),
        pytest.param(
            [rank(0, seq(3), groups=[ProcessGroup("0", 2)]), rank(1, seq(3), groups=WORLD2)],
            [[0, 0]],
            id="ranks-of-the-group-cut-off",
        ),
        pytest.param([rank(0, seq(3, PAIR), groups=WORLD2), rank(1, seq(3, PAIR), groups=WORLD2)], [], id="sends"),
        pytest.param(
            [rank(0, seq(3, size=8), groups=WORLD2), rank(1, seq(3), groups=WORLD2)], [[0, 0]], id="size-unknown"
        ),
    ],
)
def test_by_sequence_number(ranks: list[RankCollectives], expected: list[list[int]]) -> None:
    assert rows(*ranks) == expected


def test_a_group_is_expected_on_its_own_ranks_only() -> None:
    pairs = [ProcessGroup("1", 2, (0, 1)), ProcessGroup("2", 2, (2, 3))]
    ranks = [rank(r, call(r, 9, group=0), groups=[pairs[r // 2]]) for r in range(4)]
    matched = match_collectives(ranks)
    assert matched.rows.tolist() == [[0, 0, X, X], [X, X, 0, 0]]
    assert matched.mismatches == ()


def test_rows_without_a_group_are_of_that_in_which_the_rank_averages_gradients() -> None:
    """The pairs of ranks send messages of other sizes, and one of them sends more of them."""
    numbers = {0: (9,), 1: (9,), 2: (7, 7), 3: (7, 7)}
    ranks = [
        replace(
            rank(r, *(call(r + at, 9, size=size) for at, size in enumerate(sizes))),
            own_group=ProcessGroup(size=2, ranks=(0, 1) if r < 2 else (2, 3)),
        )
        for r, sizes in numbers.items()
    ]
    matched = match_collectives(ranks)
    assert matched.rows.tolist() == [[0, 0, X, X], [X, X, 0, 0], [X, X, 1, 1]]
    assert matched.mismatches == ()


def test_a_group_that_does_not_list_its_own_rank_is_known_by_its_name() -> None:
    pair = ProcessGroup("0", 2, (0, 1))
    matched = match_collectives([rank(r, call(r, 9, group=0), groups=[pair]) for r in range(3)])
    assert matched.rows.tolist() == [[0, 0, 0]]
    assert matched.mismatches == (
        "process group 0 lists ranks 0, 1, but rank 2 also called its collectives, so the list is not used",
    )


def test_a_group_without_a_name_that_does_not_list_its_own_rank() -> None:
    pair = ProcessGroup(None, 2, (0, 1))
    matched = match_collectives([rank(r, call(r, 9, group=0), groups=[pair]) for r in range(3)])
    assert matched.mismatches[0].startswith("a process group lists ranks 0, 1, but rank 2 also called its collectives")


def test_ranks_that_were_not_read_are_not_missed() -> None:
    world = [ProcessGroup("0", 4, (0, 1, 2, 3))]
    matched = match_collectives([rank(r, call(r, 9, group=0), groups=world) for r in (3, 1)])
    assert (matched.ranks, matched.rows.tolist(), matched.mismatches) == ((1, 3), [[0, 0]], ())


def test_steps_that_are_counted_anew_in_each_window_are_told_apart() -> None:
    steps = (Step(0, 0, 50, cycle=0), Step(0, 100, 150, cycle=1))
    two = [replace(rank(r, call(0, 9, step=0), call(100, 109, step=1)), steps=steps) for r in range(2)]
    assert rows(*two) == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        pytest.param(
            [rank(0, call(0, 2), call(3, 5)), rank(1, call(0, 2)), rank(2, call(0, 1), call(3, 4))],
            "step 10: 1 collective on rank 1, 2 collectives on ranks 0, 2; none of the step's collectives are matched",
            id="another-number",
        ),
        pytest.param(
            [rank(0, call(0, 2, SUM), call(3, 5, CAST)), rank(1, call(0, 2, CAST), call(3, 5, SUM))],
            "step 10: collective 1 differs: broadcast on rank 1, all-reduce on rank 0; "
            "none of the step's collectives are matched",
            id="another-order",
        ),
        pytest.param(
            [rank(r, call(0, 2, size=size)) for r, size in enumerate((8, UNKNOWN, 8, 12))],
            "step 10: collective 1 differs: all-reduce of 12 bytes on rank 3, all-reduce of 8 bytes on ranks 0, 2; "
            "none of the step's collectives are matched",
            id="another-size",
        ),
        pytest.param(
            [rank(0, call(0, 2, step=0), call(3, 5, step=2)), rank(1, call(3, 5, step=1))],
            "step 10: no collective on rank 1, 1 collective on rank 0; "
            "none of the step's collectives are matched (the first of 3 such steps)",
            id="another-step",
        ),
        pytest.param(
            [rank(0, seq(3), groups=WORLD2), rank(1, seq(3, GATHER), groups=WORLD2)],
            "step 10, process group 0, sequence number 3: all-gather on rank 1, all-reduce on rank 0",
            id="another-kind",
        ),
        pytest.param(
            [rank(0, seq(3), seq(3), groups=WORLD2), rank(1, seq(3), groups=WORLD2)],
            "step 10, process group 0, sequence number 3: rank 0 uses this number more than once",
            id="a-number-twice",
        ),
        pytest.param(
            [rank(0, seq(3), seq(4), groups=WORLD2), rank(1, groups=WORLD2)],
            "step 10, process group 0, sequence number 3: missing from the trace of rank 1 "
            "(the first of 2 such collectives)",
            id="a-member-without-collectives",
        ),
    ],
)
def test_what_differs_is_said_and_not_paired(ranks: list[RankCollectives], words: str) -> None:
    matched = match_collectives(ranks)
    assert len(matched) == 0
    assert matched.mismatches == (words,)


def test_the_sizes_of_an_all_to_all_may_differ() -> None:
    kind = CollectiveKind.ALL_TO_ALL
    assert rows(rank(0, call(0, 9, kind, size=4)), rank(1, call(0, 9, kind, size=8))) == [[0, 0]]


def test_a_step_that_differs_costs_no_other_step() -> None:
    ranks = [without(one, 2) if one.rank == 3 else one for one in job(4, 6)]
    matched = match_collectives(ranks)
    assert matched.step.tolist() == [0, 1, 3, 4, 5]
    assert len(matched.mismatches) == 1


@given(st.permutations(range(5)), st.integers(0, 4), st.integers(-(1 << 60), 1 << 60))
def test_neither_order_nor_clocks_nor_other_ranks_matter(order: list[int], dropped: int, by_ns: int) -> None:
    ranks = job(5, 4, noise_ns=500)
    whole = match_collectives(ranks)
    assert np.array_equal(match_collectives([ranks[r] for r in order]).rows, whole.rows)
    moved = match_collectives([shifted(one, by_ns) if one.rank == dropped else one for one in ranks])
    assert np.array_equal(moved.rows, whole.rows)
    fewer = match_collectives([one for one in ranks if one.rank != dropped])
    assert np.array_equal(fewer.rows, np.delete(whole.rows, dropped, axis=1))


def load(path: Path) -> list[RankCollectives]:
    return [one for rank in load_run(path).ranks if (one := rank_collectives(rank)) is not None]


@pytest.mark.parametrize(("run", "num_collectives"), [("convnet-gloo-2ranks", 12), ("transformer-gloo-4ranks", 6)])
def test_every_collective_of_a_sample_run_is_matched(run: str, num_collectives: int) -> None:
    ranks = load(CHECKOUT / "sample_traces" / run)
    matched = match_collectives(ranks)
    assert (matched.rows.shape, matched.mismatches) == ((num_collectives, len(ranks)), ())
    assert sorted(set(matched.step.tolist())) == [12, 13, 14]
    launched = matched.gather(ranks, lambda one: one.collectives.launched_ns)
    assert (np.diff(launched, axis=0) > 0).all()


@pytest.mark.skipif(not TRACES.is_dir(), reason="the traces of others are not part of the project: no ../shared")
def test_sends_and_receives_of_two_real_ranks_make_no_pairs() -> None:
    (first,), (second,) = (load(TRACES / f"sampled_rank{r}of128.json.gz") for r in range(2))
    matched: MatchedCollectives = match_collectives([first, second])
    assert (len(first.collectives), len(second.collectives)) == (10, 10)
    assert (len(matched), matched.mismatches) == (0, ())
