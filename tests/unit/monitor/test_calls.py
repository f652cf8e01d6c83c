"""Among ranks that all wait in collectives: who called another than the rest, or left one out?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hung_ranks import ENGINE, USER, died, distributed, rank, waiting
from msgspec import structs

from ddpprof.model.hang import Fault, Hint
from ddpprof.model.overdue import Call, Frame, KindOfCall, OverdueFacts
from ddpprof.model.pulse import Activity
from ddpprof.monitor.evidence import RankEvidence
from ddpprof.monitor.judge import judge

REDUCE, BARRIER, METRIC, BROADCAST = ("all_reduce", 2), ("barrier", 0), ("all_reduce", 3), ("broadcast", 5)
"""the first one is as large as a bucket of the module"""
METRIC_LINE = Frame("/home/me/train.py", 30, "log")
Kind = tuple[str, int]


def with_calls(
    one: RankEvidence, *calls: Kind, before: Sequence[Kind] = (), regular: Sequence[Kind] = (), group: str = "0"
) -> RankEvidence:
    """Return a rank that has called these collectives, the last one being number 10, after others of these kinds.

    `before`: kinds that it called in earlier steps, at irregular distances; `regular`: those whose next call is due.
    """
    first = 11 - len(calls)
    numbered = tuple(Call(group, first + place, *kind) for place, kind in enumerate(calls))
    kinds = [KindOfCall(group, *kind, 5, (2, 3)) for kind in before]
    kinds += [KindOfCall(group, *kind, 5, (4, 7)) for kind in regular]
    return replace(one, facts=OverdueFacts(calls=numbered, kinds=tuple(kinds)))


def at_barrier(number: int, passes: int = 10) -> RankEvidence:
    return rank(number, USER, distributed("barrier"), num_passes=passes)


def at_metric(number: int, passes: int = 10) -> RankEvidence:
    return rank(number, METRIC_LINE, distributed("all_reduce"), num_passes=passes)


HISTORY = [BARRIER, METRIC]


def in_reducer(number: int, passes: int = 11) -> RankEvidence:
    return with_calls(waiting(number, passes), REDUCE, REDUCE, before=HISTORY)


def test_two_ranks_wait_in_a_barrier_that_the_third_left_out() -> None:
    others = [with_calls(at_barrier(number), REDUCE, BARRIER, before=[BARRIER]) for number in (0, 1)]
    verdict = judge([*others, in_reducer(2)])
    assert (verdict.fault, verdict.rank, verdict.waiting) == (Fault.MISSING_COLLECTIVE, 2, (0, 1))
    assert verdict.detail == "it skipped barrier, at /home/me/train.py:20 in train"
    assert verdict.hint is Hint.SKIPPED_COLLECTIVE


def test_the_same_of_four_ranks_without_numbers() -> None:
    verdict = judge([at_barrier(0), at_barrier(1), waiting(2), at_barrier(3)])
    assert (verdict.fault, verdict.rank) == (Fault.MISSING_COLLECTIVE, 2)
    assert verdict.detail == "it skipped barrier, at /home/me/train.py:20 in train"


@pytest.mark.parametrize(
    ("before", "regular", "fault", "blamed"),
    [
        pytest.param((), (), Fault.OTHER_COLLECTIVE, 0, id="new"),
        pytest.param((BARRIER,), (), Fault.FEWER_PASSES, 0, id="not-due-and-a-pass-behind"),
        pytest.param((), (BARRIER,), Fault.MISSING_COLLECTIVE, 1, id="due"),
    ],
)
def test_of_two_ranks_earlier_steps_tell_who_is_right(
    before: Sequence[Kind], regular: Sequence[Kind], fault: Fault, blamed: int
) -> None:
    caller = with_calls(at_barrier(0), REDUCE, BARRIER, before=before, regular=regular)
    verdict = judge([caller, in_reducer(1)])
    assert (verdict.fault, verdict.rank) == (fault, blamed)


def test_of_two_collectives_of_the_script_the_one_that_is_due_was_left_out() -> None:
    caller = with_calls(at_barrier(0), REDUCE, BARRIER, regular=[BARRIER], before=[METRIC])
    ahead = with_calls(at_metric(1), REDUCE, METRIC, before=[METRIC, BARRIER])
    verdict = judge([caller, ahead])
    assert (verdict.fault, verdict.rank) == (Fault.MISSING_COLLECTIVE, 1)


def test_the_sender_of_a_broadcast_that_went_on_is_innocent() -> None:
    """It does not wait for the rank that left the broadcast out, so that all are in the reducer."""
    others = [with_calls(waiting(number), BROADCAST, REDUCE, before=[BROADCAST]) for number in (0, 1)]
    verdict = judge([*others, with_calls(waiting(2), REDUCE, REDUCE, before=[BROADCAST])])
    assert (verdict.fault, verdict.rank) == (Fault.MISSING_COLLECTIVE, 2)
    assert verdict.detail == "it skipped broadcast"


def test_a_rank_that_waits_for_an_asynchronous_collective_waits_for_others() -> None:
    wait = Frame("/site-packages/ddpprof/record/patches.py", 220, "wait")
    waits = [rank(number, USER, wait, num_passes=11) for number in (0, 1)]
    verdict = judge([*waits, rank(2, Frame("/home/me/train.py", 22, "train"), num_passes=11)])
    assert (verdict.fault, verdict.rank, verdict.waiting) == (Fault.OWN_CODE, 2, (0, 1))
    assert verdict.place == "/home/me/train.py:22 in train"


def test_ranks_that_call_collectives_of_two_groups_in_different_order() -> None:
    first = with_calls(at_metric(0), METRIC, group="a")
    second = with_calls(rank(1, USER, distributed("all_reduce"), num_passes=10), METRIC, group="b")
    verdict = judge([first, second])
    assert (verdict.fault, verdict.rank, verdict.hint) == (Fault.MISMATCH, None, Hint.OTHER_ORDER)
    assert verdict.waiting == (0, 1)
    assert verdict.detail == (
        "they wait in different process groups: rank 0 is in all_reduce at train.py:30 in log; "
        "rank 1 is in all_reduce at train.py:20 in train"
    )


def test_an_error_that_a_rank_is_handling_explains_why_it_waits_elsewhere() -> None:
    error = OverdueFacts(error="ValueError: label 7 out of range", error_place="/home/me/train.py:9 in train")
    verdict = judge([waiting(0), replace(at_barrier(1), facts=error), waiting(2)])
    assert (verdict.fault, verdict.rank, verdict.hint) == (Fault.OTHER_COLLECTIVE, 1, Hint.ERROR_IN_FLIGHT)
    assert (verdict.detail or "").endswith(
        "; it is handling ValueError: label 7 out of range, raised at /home/me/train.py:9 in train"
    )


def test_all_wait_in_the_same_call() -> None:
    ranks = [with_calls(at_barrier(number), REDUCE, BARRIER) for number in (0, 1)]
    assert judge(ranks).fault is Fault.LINK


def test_a_rank_in_its_own_code_comes_before_all_calls() -> None:
    sleeping = with_calls(rank(1, USER, activity=Activity.OTHER, num_passes=10), REDUCE)
    verdict = judge([with_calls(rank(0, USER, ENGINE, activity=Activity.BACKWARD), REDUCE, REDUCE), sleeping])
    assert (verdict.fault, verdict.rank) == (Fault.OWN_CODE, 1)


def test_a_job_that_died_since_a_collective_met_that_of_the_next_step() -> None:
    """Gloo notices that the sizes differ. Which rank does is chance; the numbers tell which one left a call out."""
    failed = "failed: RuntimeError: op.preamble.length <= op.nbytes. 12 vs 8"
    lost = "failed: RuntimeError: Connection closed by peer"
    caller = with_calls(died(rank(0, num_passes=10), failed), REDUCE, METRIC, regular=[METRIC])
    assert caller.record is not None
    caller = replace(caller, record=structs.replace(caller.record, ended_in="all_reduce"))
    ahead = with_calls(died(rank(1, activity=Activity.BACKWARD, num_passes=11), lost), REDUCE, REDUCE, before=[METRIC])
    killed = died(rank(2, num_passes=10), exit_code=-15)
    verdict = judge([caller, ahead, killed])
    assert (verdict.fault, verdict.rank, verdict.has_failed) == (Fault.MISSING_COLLECTIVE, 1, True)
    assert verdict.detail == "it skipped all_reduce"


@pytest.mark.parametrize(
    ("regular", "fault", "blamed"),
    [
        pytest.param((METRIC,), Fault.MISSING_COLLECTIVE, 1, id="due"),
        pytest.param((), Fault.OTHER_COLLECTIVE, 0, id="new"),
    ],
)
def test_a_collective_that_met_ddps_of_a_process_that_gloo_aborted(
    regular: Sequence[Kind], fault: Fault, blamed: int
) -> None:
    """The aborted process has left no numbers."""
    lost = "failed: RuntimeError: Connection closed by peer"
    caller = with_calls(died(rank(0, num_passes=10), lost), REDUCE, METRIC, regular=regular)
    assert caller.record is not None
    caller = replace(caller, record=structs.replace(caller.record, ended_in="work.wait"))
    aborted = died(rank(1, activity=Activity.BACKWARD, num_passes=11), exit_code=-6)
    verdict = judge([caller, aborted])
    assert (verdict.fault, verdict.rank, verdict.has_failed) == (fault, blamed, True)
    assert (verdict.detail == "it skipped all_reduce") is bool(regular)


def test_a_rank_that_left_a_due_collective_out_is_known_by_its_own_numbers() -> None:
    """Gloo aborted the process of the caller."""
    caller = died(rank(0, num_passes=10), exit_code=-6)
    assert caller.record is not None
    caller = replace(caller, record=structs.replace(caller.record, ended_in="work.wait"))
    lost = died(rank(1, activity=Activity.BACKWARD, num_passes=11), "failed: RuntimeError: Connection reset by peer")
    verdict = judge([caller, with_calls(lost, REDUCE, REDUCE, before=[REDUCE], regular=[METRIC])])
    assert (verdict.fault, verdict.rank, verdict.detail) == (Fault.MISSING_COLLECTIVE, 1, "it skipped all_reduce")
    verdict = judge([caller, with_calls(lost, REDUCE, REDUCE, regular=[METRIC, REDUCE])])
    assert (verdict.fault, verdict.rank) == (Fault.OTHER_COLLECTIVE, 0)
    other_bucket = ("all_reduce", 1)
    verdict = judge([caller, with_calls(lost, REDUCE, REDUCE, before=[REDUCE], regular=[other_bucket])])
    assert verdict.fault is not Fault.MISSING_COLLECTIVE, "DDP's own buckets came in another order"


def test_nobody_has_left_out_a_collective_in_which_both_ranks_died() -> None:
    """As in an evaluation on one rank, while the other rank averages its loss. Both calls are due."""
    lost = "failed: RuntimeError: Connection reset by peer"
    caller = with_calls(died(rank(0, num_passes=10), lost), REDUCE, METRIC, regular=[METRIC])
    ranks = [caller, died(rank(1, num_passes=10), exit_code=-6)]
    for number, one in enumerate(ranks):
        assert one.record is not None
        places = {"ended_in": "all_reduce", "ended_place": f"train.py:{number + 3}"}
        ranks[number] = replace(one, record=structs.replace(one.record, **places))
    verdict = judge(ranks)
    assert (verdict.fault, verdict.rank, verdict.hint) == (Fault.MISMATCH, None, Hint.OTHER_LINES)
    assert verdict.detail == "rank 0 called all_reduce at train.py:3; rank 1 called all_reduce at train.py:4"


def test_a_rank_whose_comm_hook_reduces_nothing_has_called_less_than_all_others() -> None:
    """All are in the same backward pass."""
    behind = replace(in_reducer(1), facts=OverdueFacts(calls=(Call("0", 9, *REDUCE),)))
    verdict = judge([in_reducer(0), behind, in_reducer(2)])
    assert (verdict.fault, verdict.rank, verdict.waiting) == (Fault.MISSING_COLLECTIVE, 1, (0, 2))
    assert (verdict.detail, verdict.hint) == ("it skipped all_reduce", Hint.WITHIN_BACKWARD)


def test_nobody_is_blamed_for_reductions_that_most_have_not_begun() -> None:
    behind = [replace(in_reducer(number), facts=OverdueFacts(calls=(Call("0", 9, *REDUCE),))) for number in (1, 2)]
    assert judge([in_reducer(0), *behind]).fault is Fault.LINK


def at_gather(number: int) -> RankEvidence:
    return with_calls(rank(number, METRIC_LINE, distributed("gather"), num_passes=10), REDUCE, ("gather", 3))


def test_nobody_is_blamed_if_a_rank_came_through_a_collective_in_which_others_wait() -> None:
    """It does not wait in a `gather` to another rank; two ranks, each of which wants to be the one, do."""
    through = replace(waiting(1), facts=OverdueFacts(calls=(Call("0", 10, "gather", 3), Call("0", 11, *REDUCE))))
    verdict = judge([at_gather(0), through, at_gather(2)])
    assert (verdict.fault, verdict.rank, verdict.waiting) == (Fault.MISMATCH, None, (0, 2))
    assert verdict.detail == "ranks 0, 2 wait in gather, at /home/me/train.py:30 in log, and rank 1 completed it"
    left_out = replace(waiting(1), facts=OverdueFacts(calls=(Call("0", 9, *REDUCE), Call("0", 10, *REDUCE))))
    assert judge([at_gather(0), left_out, at_gather(2)]).rank == 1


def test_nobody_is_blamed_for_a_collective_that_a_killed_rank_may_have_called_too() -> None:
    """Two ranks average in the forward, and one of them cannot tell; the third one is in its backward pass."""
    lost = "failed: RuntimeError: Connection reset by peer"
    known = died(rank(1, activity=Activity.FORWARD, num_passes=10), lost, exit_code=1)
    assert known.record is not None
    known = replace(known, record=structs.replace(known.record, ended_in="all_reduce"))
    killed = died(rank(0, activity=Activity.FORWARD, num_passes=10), exit_code=-15)
    aborted = died(rank(2, activity=Activity.BACKWARD, num_passes=11), exit_code=-6)
    assert judge([killed, known, aborted]).rank != 1
    both_in_ddp = died(rank(0, activity=Activity.BACKWARD, num_passes=11), exit_code=-15)
    verdict = judge([both_in_ddp, known, aborted])
    assert (verdict.fault, verdict.rank) == (Fault.OTHER_COLLECTIVE, 1)


def test_a_rank_that_reduces_another_amount_than_the_others() -> None:
    larger = ("all_reduce", 4)
    others = [with_calls(at_metric(number), REDUCE, METRIC, before=[METRIC]) for number in (0, 2)]
    verdict = judge([*others, with_calls(at_metric(1), REDUCE, larger, before=[METRIC])])
    assert (verdict.fault, verdict.rank, verdict.hint) == (Fault.OTHER_COLLECTIVE, 1, Hint.OTHER_AMOUNT)
    assert verdict.detail == "it called all_reduce with 4 values, but the other ranks called it with 3"
