"""From the evidence of all ranks to one verdict."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from hung_ranks import ENGINE, NOW_NS, USER, S, died, distributed, on_device, process, rank, record, waiting
from msgspec.structs import replace as replace_struct

from ddpprof.model import ProcessExit, UnusualCollective
from ddpprof.model.hang import Fault, Hint
from ddpprof.model.overdue import Frame, OverdueFacts, Wait
from ddpprof.model.pulse import Activity, Ended, StepFlag
from ddpprof.monitor.evidence import RankEvidence
from ddpprof.monitor.judge import judge, judge_exit, judge_records
from ddpprof.monitor.processes import Process

LIBRARY = Frame("/usr/lib/python3.11/queue.py", 180, "get")


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        pytest.param(rank(1, USER, num_passes=10), Fault.OWN_CODE, id="sleeps-in-the-script"),
        pytest.param(rank(1, USER, LIBRARY, num_passes=10), Fault.LOCK, id="waits-for-a-queue"),
        pytest.param(
            replace(rank(1, USER, num_passes=10), process=process(wait=Wait.LOCK)),
            Fault.LOCK,
            id="waits-for-a-lock",
        ),
        pytest.param(rank(1, USER, activity=Activity.DATA, num_passes=10), Fault.LOADER, id="waits-for-a-batch"),
        pytest.param(rank(1, USER, activity=Activity.SAVE, num_passes=10), Fault.STORAGE, id="saves"),
        pytest.param(
            rank(1, USER, distributed("barrier"), num_passes=10), Fault.OTHER_COLLECTIVE, id="is-at-a-barrier"
        ),
        pytest.param(
            rank(1, USER, distributed("barrier"), num_passes=10, flags=StepFlag.RAN_OUT),
            Fault.ENDED_EARLY,
            id="is-at-a-barrier-behind-the-loop",
        ),
        pytest.param(
            rank(1, USER, num_passes=10, flags=StepFlag.RAN_OUT | StepFlag.BEGAN_EPOCH), Fault.OWN_CODE, id="next-epoch"
        ),
        pytest.param(rank(1, num_passes=10, ended=Ended.FINISHED), Fault.ENDED_EARLY, id="has-finished"),
        pytest.param(replace(rank(1, num_passes=10), process=process("T")), Fault.STOPPED, id="is-stopped-by-a-signal"),
        pytest.param(replace(rank(1, num_passes=10), process=process("t")), Fault.TRACED, id="is-held-by-a-debugger"),
        pytest.param(replace(rank(1, num_passes=10), is_swapping=True), Fault.SWAPPING, id="swaps"),
        pytest.param(replace(waiting(1), is_swapping=True), Fault.SWAPPING, id="swaps-in-its-backward-pass"),
        pytest.param(rank(1, num_passes=10, tick_ns=NOW_NS - 5 * S), Fault.INTERPRETER_HELD, id="does-not-give-a-sign"),
        pytest.param(
            replace(rank(1, num_passes=10, tick_ns=NOW_NS - 5 * S), process=process("D")),
            Fault.STORAGE,
            id="waits-for-a-disk",
        ),
        pytest.param(
            rank(1, activity=Activity.SAVE, num_passes=10, tick_ns=NOW_NS - 5 * S), Fault.STORAGE, id="saves-in-c"
        ),
        pytest.param(
            rank(1, USER, ENGINE, Frame("/home/me/model.py", 3, "backward"), activity=Activity.BACKWARD, num_passes=11),
            Fault.OWN_CODE,
            id="is-in-a-backward-of-its-own",
        ),
        pytest.param(waiting(1, passes=10), Fault.FEWER_PASSES, id="waits-in-an-earlier-pass"),
    ],
)
def test_the_rank_that_does_not_wait_is_to_blame(other: RankEvidence, fault: Fault) -> None:
    verdict = judge([waiting(0), other])
    assert (verdict.fault, verdict.rank) == (fault, 1)
    assert verdict.waiting == (0,)
    assert verdict.since_unix_ns == NOW_NS - 8 * S


TORCH = Frame("/site-packages/torch/_tensor.py", 90, "item")


@pytest.mark.parametrize(
    ("device", "inner", "computes", "passes", "fault"),
    [
        pytest.param("cuda", (), True, 11, Fault.LINK, id="at-the-users-line"),
        pytest.param("cuda", (TORCH,), True, 11, Fault.LINK, id="within-torch"),
        pytest.param("cuda", (LIBRARY,), True, 11, Fault.LOCK, id="within-another-library"),
        pytest.param("cuda", (), False, 11, Fault.OWN_CODE, id="asleep"),
        pytest.param("cuda", (), True, 10, Fault.OWN_CODE, id="one-is-behind"),
        pytest.param("cpu", (), True, 11, Fault.OWN_CODE, id="no-accelerator"),
    ],
)
def test_ranks_that_seem_to_await_their_accelerators_at_one_line_wait_for_what_does_not_arrive(
    device: str, inner: tuple[Frame, ...], computes: bool, passes: int, fault: Fault
) -> None:
    ranks = [rank(0, USER, *inner, num_passes=11), rank(1, USER, *inner, num_passes=passes)]
    placed = [replace(on_device(one, device), computes=computes) for one in ranks]
    assert judge(placed).fault is fault


@pytest.mark.parametrize(
    ("device", "numbers", "waiting_ranks"),
    [
        pytest.param("cpu", (0, 1), 0, id="all-on-cpu"),
        pytest.param("cuda", (0, 1), 1, id="may-wait-for-accelerators"),
        pytest.param("cpu", (0,), 0, id="the-other-is-not-seen"),
    ],
)
def test_ranks_in_code_of_their_own_wait_for_none_if_all_are_seen(
    device: str, numbers: tuple[int, ...], waiting_ranks: int
) -> None:
    verdict = judge([on_device(rank(number, USER if number else LIBRARY), device) for number in numbers])
    assert verdict.fault in (Fault.OWN_CODE, Fault.LOCK)
    assert len(verdict.waiting) == waiting_ranks


def on_cuda(one: RankEvidence) -> RankEvidence:
    """Return a rank that may await its accelerator."""
    return replace(on_device(one), computes=True)


def test_ranks_that_compute_their_next_batches_at_one_line_do_not_wait_for_the_link() -> None:
    reading = [on_cuda(rank(number, USER, activity=Activity.DATA, num_passes=11)) for number in (0, 1)]
    assert judge(reading).fault is Fault.LOADER


def test_ranks_of_which_no_line_is_known_do_not_wait_for_their_accelerators() -> None:
    assert judge([on_cuda(rank(number, num_passes=11)) for number in (0, 1)]).fault is Fault.OWN_CODE


def test_a_rank_without_an_accelerator_among_others_awaits_none() -> None:
    on_host = replace(rank(1, USER, num_passes=11), computes=True)
    assert judge([on_cuda(rank(0, USER, num_passes=11)), on_host]).fault is Fault.OWN_CODE


@pytest.mark.parametrize(
    ("workers", "detail"),
    [
        pytest.param((), "it has no workers, so the training process loads the data itself", id="none"),
        pytest.param((process(pid=7), process(pid=8)), "its workers are alive: 7, 8", id="alive"),
        pytest.param(
            (process(pid=7), process("T", pid=8), process("D", pid=9)),
            "of its workers, process 8 is stopped, process 9 is waiting for a disk",
            id="held",
        ),
        pytest.param(
            tuple(process(pid=pid) for pid in range(5)), "its workers are alive: 0, 1, 2, 3 and 1 more", id="many"
        ),
        pytest.param(
            (process(pid=7), replace(process(pid=8), wait=Wait.LOCK)), "its worker waits for a lock: 8", id="lock"
        ),
    ],
)
def test_of_a_rank_that_waits_for_a_batch_it_is_said_what_its_workers_do(
    workers: tuple[Process, ...], detail: str
) -> None:
    loading = replace(rank(1, USER, activity=Activity.DATA, num_passes=10), workers=workers)
    verdict = judge([waiting(0), loading])
    assert (verdict.detail, verdict.waiting) == (detail, (0,))
    assert (verdict.hint is Hint.WORKER_AT_LOCK) is ("lock" in detail)


def test_ranks_that_all_wait_for_their_own_batches_do_not_wait_for_each_other() -> None:
    loading = [rank(number, USER, activity=Activity.DATA, num_passes=10) for number in (0, 1)]
    verdict = judge([replace(one, identity=replace_struct(one.identity, device="cpu")) for one in loading])
    assert (verdict.fault, verdict.rank, verdict.waiting) == (Fault.LOADER, 0, ())


@pytest.mark.parametrize("function", ["_verify_param_shape_across_processes", "_sync_module_states", "new_group"])
def test_a_rank_that_wraps_its_model_or_makes_a_group_waits_for_the_others(function: str) -> None:
    verdict = judge([rank(0, USER, distributed(function)), rank(1, USER, LIBRARY)])
    assert (verdict.fault, verdict.rank, verdict.waiting) == (Fault.LOCK, 1, (0,))


def test_the_waiting_ranks_miss_the_first_bucket_of_a_pass_that_another_has_not_begun() -> None:
    verdict = judge([waiting(0, bucket=1), rank(1, USER, num_passes=10, module=0, bucket=1)])
    assert (verdict.module, verdict.bucket, verdict.parameters) == ("Net", 0, ("third",))


def test_the_waiting_ranks_miss_the_next_bucket_of_a_pass_that_another_is_in() -> None:
    behind = rank(1, USER, activity=Activity.BACKWARD, num_passes=11, module=0, bucket=0)
    verdict = judge([waiting(0, bucket=1), behind])
    assert (verdict.bucket, verdict.parameters) == (1, ("second", "first"))


def test_a_rank_that_has_launched_all_is_not_missed_in_any_bucket() -> None:
    ahead = rank(1, USER, activity=Activity.OTHER, num_passes=11, module=0, bucket=1)
    verdict = judge([waiting(0, bucket=1), ahead])
    assert (verdict.rank, verdict.bucket, verdict.parameters) == (1, None, ())


def test_all_wait_at_the_same_place() -> None:
    verdict = judge([waiting(0), waiting(1)])
    assert (verdict.fault, verdict.rank, verdict.waiting) == (Fault.LINK, None, (0, 1))
    assert (verdict.bucket, verdict.parameters) == (1, ("second", "first"))


def test_of_a_module_that_no_record_describes_no_bucket_is_named() -> None:
    """A record may be lost, or older than the module."""
    first = waiting(0)
    second_module = replace(first, state=replace(first.state, module=1))
    for one in (replace(first, record=None), second_module):
        verdict = judge([one, waiting(1, since_s=5)])
        assert (verdict.fault, verdict.module, verdict.bucket, verdict.parameters) == (Fault.LINK, None, None, ())


def test_the_collective_of_the_script_is_to_blame_among_waiting_ranks() -> None:
    verdict = judge([waiting(0), waiting(1), rank(2, USER, distributed("all_reduce"), num_passes=10)])
    assert (verdict.fault, verdict.rank, verdict.place) == (Fault.OTHER_COLLECTIVE, 2, "/home/me/train.py:20 in train")


def test_the_collective_of_the_minority_is_to_blame() -> None:
    elsewhere = Frame("/home/me/train.py", 33, "evaluate")
    at_barrier = [rank(number, USER, distributed("barrier"), num_passes=10) for number in (0, 2)]
    verdict = judge([*at_barrier, rank(1, elsewhere, distributed("all_gather"), num_passes=10)])
    assert (verdict.fault, verdict.rank) == (Fault.OTHER_COLLECTIVE, 1)


def test_a_stopped_rank_is_worse_than_one_that_waits_for_data() -> None:
    verdict = judge([rank(0, USER, activity=Activity.DATA), replace(rank(1), process=process("T"))])
    assert (verdict.fault, verdict.rank) == (Fault.STOPPED, 1)


def test_the_first_death_is_the_cause_and_lost_connections_are_not() -> None:
    lost = died(waiting(0), "failed: RuntimeError: Connection closed by peer [127.0.0.1]:4")
    own = died(rank(1), "failed: ValueError: the batch is empty")
    verdict = judge([lost, own])
    assert (verdict.fault, verdict.rank, verdict.detail) == (Fault.DIED, 1, "ValueError: the batch is empty")


def test_a_killed_rank_is_named_by_its_exit_code() -> None:
    lost = died(waiting(0), "failed: RuntimeError: Connection closed by peer [127.0.0.1]:4", -15)
    verdict = judge([lost, died(rank(1), exit_code=-9)])
    assert (verdict.fault, verdict.rank, verdict.exit_code, verdict.detail) == (Fault.DIED, 1, -9, None)


def test_a_rank_that_says_that_all_was_well_is_named_by_its_exit_code() -> None:
    lost = died(waiting(0), "failed: RuntimeError: Connection closed by peer [127.0.0.1]:4", -15)
    verdict = judge([lost, died(rank(1), "finished", exit_code=5)])
    assert (verdict.fault, verdict.rank, verdict.exit_code, verdict.detail) == (Fault.DIED, 1, 5, None)


def test_parameters_without_gradient_are_named() -> None:
    failed = died(rank(1), "failed: RuntimeError: Expected to have finished reduction in …", unused=("branch.weight",))
    assert judge([waiting(0), failed]).parameters == ("branch.weight",)


@pytest.mark.parametrize("innocent", ["op.preamble.length <= op.nbytes. 1048576 vs 12", "Connection closed by peer"])
def test_a_collective_of_another_size_is_to_blame_whoever_noticed(innocent: str) -> None:
    elsewhere = rank(1, activity=Activity.OTHER, num_passes=10)
    blamed = died(elsewhere, "failed: RuntimeError: op.preamble.length <= op.nbytes. 12 vs 4")
    verdict = judge([died(waiting(0), f"failed: RuntimeError: {innocent}"), blamed])
    assert (verdict.fault, verdict.rank, verdict.has_failed) == (Fault.OTHER_COLLECTIVE, 1, True)


def aborted_in_buffers(number: int) -> RankEvidence:
    one = died(rank(number, activity=Activity.FORWARD, num_passes=10), exit_code=-6)
    return replace(one, record=replace_struct(record(number), ended_in="_sync_buffers"))


def test_a_process_that_gloo_aborted_is_not_to_blame_for_the_collective_of_another() -> None:
    """It was in DDP's broadcast of buffers when it got a message of another size."""
    aborted = aborted_in_buffers(1)
    lost = died(rank(0, activity=Activity.OTHER, num_passes=10), "failed: RuntimeError: Connection closed by peer")
    verdict = judge([replace(lost, record=replace_struct(lost.record, ended_in="broadcast")), aborted])
    assert (verdict.fault, verdict.rank) == (Fault.OTHER_COLLECTIVE, 0)
    assert judge([lost, died(rank(1, activity=Activity.OTHER, num_passes=10), exit_code=-6)]).rank == 1


def test_the_source_of_a_broadcast_that_went_on_is_to_blame_for_the_abort_of_another() -> None:
    lost = died(waiting(0), "failed: RuntimeError: Connection closed by peer")
    own = UnusualCollective("broadcast", 5, "train.py:9 in f")
    source = replace(lost, stack=(), record=replace_struct(lost.record, unusual_collective=own))
    aborted = aborted_in_buffers(1)
    verdict = judge([source, aborted, replace(lost, identity=replace_struct(lost.identity, rank=2))])
    assert (verdict.fault, verdict.rank, verdict.waiting) == (Fault.OTHER_COLLECTIVE, 0, (1, 2))
    assert verdict.place == "train.py:9 in f"
    assert verdict.detail == (
        "it called broadcast (5 values) more often than in any earlier step; then RuntimeError: Connection closed by "
        "peer"
    )
    assert judge([lost, aborted]).rank == 1
    assert source.record is not None
    own_error = replace(source, record=replace_struct(source.record, ended="failed: RuntimeError: the batch is empty"))
    verdict = judge([own_error, waiting(1)])
    assert (verdict.fault, verdict.detail) == (Fault.DIED, "RuntimeError: the batch is empty")


@pytest.mark.parametrize(
    ("held", "hint"),
    [
        pytest.param(process("T"), None, id="by-a-signal"),
        pytest.param(process("D", is_frozen=True), Hint.FROZEN, id="by-their-control-group"),
    ],
)
def test_if_all_ranks_are_stopped_none_is_to_blame(held: Process, hint: Hint | None) -> None:
    verdict = judge([replace(waiting(number), process=held) for number in (0, 1)])
    assert (verdict.fault, verdict.rank, verdict.waiting, verdict.hint) == (Fault.STOPPED, None, (), hint)


def test_a_frozen_process_is_stopped_and_does_not_wait_for_a_disk() -> None:
    frozen = replace(rank(1, tick_ns=NOW_NS - 5 * S), process=process("D", is_frozen=True))
    verdict = judge([waiting(0), frozen])
    assert (verdict.fault, verdict.rank, verdict.hint) == (Fault.STOPPED, 1, Hint.FROZEN)


@pytest.mark.parametrize(
    ("wait", "fault", "hint"),
    [
        pytest.param(Wait.INPUT, Fault.OWN_CODE, Hint.WAITS_FOR_INPUT, id="input"),
        pytest.param(Wait.NETWORK, Fault.OWN_CODE, Hint.WAITS_OUTSIDE, id="network"),
        pytest.param(Wait.PIPE, Fault.OWN_CODE, Hint.WAITS_OUTSIDE, id="pipe"),
        pytest.param(Wait.SLEEP, Fault.OWN_CODE, None, id="sleep"),
        pytest.param(Wait.LOCK, Fault.LOCK, None, id="lock"),
    ],
)
def test_for_what_a_rank_waits_in_its_own_code(wait: Wait, fault: Fault, hint: Hint | None) -> None:
    one = replace(rank(1, USER, num_passes=10), facts=OverdueFacts(wait=wait))
    verdict = judge([waiting(0), one])
    assert (verdict.fault, verdict.rank, verdict.hint) == (fault, 1, hint)


def test_an_error_that_a_rank_retries_after_is_named() -> None:
    facts = OverdueFacts(wait=Wait.SLEEP, error="OSError: no route to host", error_place="a.py:3 in load")
    verdict = judge([waiting(0), replace(rank(1, USER, num_passes=10), facts=facts)])
    assert (verdict.fault, verdict.rank) == (Fault.OWN_CODE, 1)
    assert verdict.detail == "it is handling OSError: no route to host, raised at a.py:3 in load"


@pytest.mark.parametrize(
    ("exit_code", "hint"),
    [(-15, Hint.TERMINATED), (-11, Hint.CRASHED), (None, Hint.UNSEEN_END), (-9, None)],
)
def test_what_is_known_of_a_rank_that_died_without_a_word(exit_code: int | None, hint: Hint | None) -> None:
    verdict = judge([waiting(0), died(rank(1, num_passes=10), exit_code=exit_code)])
    assert (verdict.fault, verdict.rank, verdict.hint) == (Fault.DIED, 1, hint)


def test_a_rank_that_evaluates_alone_with_gradients() -> None:
    """Its module is in evaluation mode, but the script calls it without ``no_grad()``."""
    buffers = Frame("/site-packages/torch/nn/parallel/distributed.py", 9, "_sync_buffers")
    alone = rank(0, USER, buffers, activity=Activity.FORWARD, evaluates=1)
    verdict = judge([alone, waiting(1, passes=1)])
    assert (verdict.fault, verdict.rank) == (Fault.EVALUATES_ALONE, 0)


def test_a_rank_that_called_exit() -> None:
    left = rank(1, num_passes=10, ended=Ended.FINISHED)
    known = replace_struct(record(1, "finished"), exit_message="no time left", exit_place="train.py:22 in check")
    for exit_code, has_died in ((1, True), (0, False)):
        ended = replace(left, process=None, record=known, exit=ProcessExit(exit_code, rank=1))
        verdict = judge([waiting(0), ended])
        assert (verdict.fault is Fault.DIED) is has_died
        assert (verdict.place == "train.py:22 in check") is has_died
        assert (verdict.detail == "it called sys.exit() with 'no time left'") is has_died


def test_the_caller_of_the_function_at_fault_is_named() -> None:
    helper, caller = Frame("/home/me/exchange.py", 13, "swap"), Frame("/home/me/train.py", 60, "main")
    torch_frame = Frame("/site-packages/torch/nn/modules/module.py", 9, "_call_impl")
    for stack, called_at in (((caller, torch_frame, helper), str(caller)), ((caller,), None), ((helper, caller), None)):
        verdict = judge([waiting(0), rank(1, *stack, num_passes=10)])
        assert (verdict.place, verdict.called_at) == (str(stack[-1]), called_at)


def test_a_rank_waits_for_a_point_to_point_operation_that_it_started() -> None:
    waits = Frame("/site-packages/ddpprof/record/patches.py", 187, "wait")
    one = replace(rank(1, USER, waits, num_passes=10), facts=OverdueFacts(last_p2p="recv"))
    verdict = judge([waiting(0), one])
    assert (verdict.fault, verdict.rank, verdict.hint) == (Fault.OTHER_COLLECTIVE, 1, Hint.OF_PEERS)
    assert verdict.detail == "it waits for a point-to-point operation that it started with recv"


def test_a_rank_that_crashed_after_its_script_had_ended() -> None:
    """Such as torch's abort of gloo's threads while Python exits."""
    crashed = ProcessExit(-6, rank=0, pid=1, host="a")
    verdict = judge_records([replace_struct(record(0), ended="finished", pid=1, host="a", num_steps=6)], [crashed])
    assert verdict is not None
    assert (verdict.fault, verdict.rank, verdict.hint) == (Fault.DIED, 0, Hint.CRASHED_AT_EXIT)


def test_of_ranks_that_sigterm_ended_the_first_is_to_blame() -> None:
    """Its launcher then ends the others by the same signal."""
    ends = [ProcessExit(-15, rank=number, unix_ns=at) for number, at in ((0, 200), (1, 100))]
    ranks = [replace(died(rank(number, num_passes=10)), exit=ends[number]) for number in (0, 1)]
    lost = died(rank(2, num_passes=9), "failed: RuntimeError: Connection closed by peer", 1)
    verdict = judge([*ranks, lost])
    assert (verdict.fault, verdict.rank, verdict.hint) == (Fault.DIED, 1, Hint.TERMINATED)


def test_a_static_graph_that_changes_is_known_from_the_arguments_of_ddp() -> None:
    failed = died(rank(1), "failed: RuntimeError: Expected to have finished reduction in …", unused=("second",))
    assert failed.record is not None
    modules = tuple(replace_struct(one, settings={"static_graph": True}) for one in failed.record.modules)
    static = replace(failed, record=replace_struct(failed.record, modules=modules))
    assert judge([waiting(0), static]).hint is Hint.STATIC_GRAPH
    assert judge([waiting(0), failed]).hint is None


def test_nothing_is_known_without_pulses() -> None:
    assert judge([]).fault is Fault.UNKNOWN


def test_a_job_that_failed_before_any_rank_had_a_pulse() -> None:
    twice = "failed: RuntimeError: Expected to mark a variable ready only once."
    failed = [
        replace_struct(record(one, twice), ended_unix_ns=9 - one, num_steps=0, ended_place="train.py:3 in <module>")
        for one in range(2)
    ]
    verdict = judge_records(failed, ())
    assert verdict is not None
    assert (verdict.fault, verdict.rank, verdict.step, verdict.has_failed) == (Fault.DIED, 1, 0, True)
    assert (verdict.detail, verdict.place) == (twice.removeprefix("failed: "), "train.py:3 in <module>")
    unused = judge_records([record(0, "failed: Expected to have finished reduction", ("first",))], ())
    assert unused is not None
    assert unused.parameters == ("first",)
    assert judge_records([record(0, "finished"), record(1, "interrupted")], ()) is None


def test_a_job_that_failed_before_it_had_a_run() -> None:
    lost = ProcessExit(1, "a", 8, 0, 10, error="failed: RuntimeError: Connection closed by peer [::1]")
    first = ProcessExit(1, "a", 9, 1, 20, error="failed: ValueError: no data", place="train.py:3 in <module>")
    verdict = judge_records([], (lost, first, ProcessExit(1, "a", 9, unix_ns=21), ProcessExit(1, is_job=True)))
    assert verdict is not None
    assert (verdict.fault, verdict.rank, verdict.detail) == (Fault.DIED, 1, "ValueError: no data")
    assert (verdict.place, verdict.hint) == ("train.py:3 in <module>", None)


def test_ranks_that_disagree_on_amounts_of_data() -> None:
    """The one that was elsewhere may have come through the collective, so nobody is blamed."""
    lost = "failed: RuntimeError: Connection closed by peer"
    aborted = died(rank(0, USER, activity=Activity.OTHER), exit_code=-signal.SIGABRT)
    met = died(rank(1, USER, activity=Activity.OTHER), lost, exit_code=1)
    ahead = died(waiting(2), exit_code=-signal.SIGTERM)
    where = {"ended_in": "all_to_all_single", "ended_place": "/home/me/train.py:20 in train"}
    in_it = [replace(one, record=replace_struct(one.record, **where)) for one in (aborted, met) if one.record]
    verdict = judge([*in_it, ahead])
    assert (verdict.fault, verdict.rank, verdict.place) == (Fault.MISMATCH, None, where["ended_place"])
    where["ended_in"] = "all_reduce"
    in_it = [replace(one, record=replace_struct(one.record, **where)) for one in (aborted, met) if one.record]
    verdict = judge([*in_it, ahead])
    assert (verdict.fault, verdict.rank) == (Fault.MISSING_COLLECTIVE, 2)


def test_a_rank_for_which_the_collectives_of_the_others_timed_out() -> None:
    said = "failed: RuntimeError: Timed out waiting 4000ms for recv operation to complete"
    others = [died(waiting(number), said, exit_code=1) for number in (0, 1)]
    late = died(rank(2, USER), exit_code=-signal.SIGTERM)
    verdict = judge([*others, late])
    assert (verdict.fault, verdict.rank, verdict.hint) == (Fault.OWN_CODE, 2, Hint.TIMED_OUT)
    assert (verdict.place, verdict.has_failed) == (str(USER), True)
    ended = died(waiting(2), exit_code=-signal.SIGTERM)
    assert judge([*others, ended]).hint is not Hint.TIMED_OUT


def test_a_rank_that_ended_though_its_launcher_saw_no_failure() -> None:
    lost = "failed: RuntimeError: Connection closed by peer"
    unseen, failed = died(rank(0, USER)), died(waiting(1), lost, exit_code=1)
    verdict = judge([unseen, failed])
    assert (verdict.rank, verdict.hint) == (0, Hint.ENDED_SILENTLY)
    assert judge([unseen, died(waiting(1), lost)]).hint is Hint.UNSEEN_END
    assert judge([unseen, failed, waiting(2)]).hint is Hint.UNSEEN_END, "its launcher may still wait for rank 2"


def evaluating(number: int) -> RankEvidence:
    """Return a rank that evaluates with the DDP module, and waits in the broadcast of its buffers."""
    sync = Frame("/site-packages/torch/nn/parallel/distributed.py", 2425, "_sync_buffers")
    return rank(number, USER, sync, activity=Activity.EVALUATION, num_passes=10, flags=StepFlag.EVALUATED)


@pytest.mark.parametrize(
    ("ranks", "fault", "blamed"),
    [
        pytest.param(
            [evaluating(0), rank(1, USER, distributed("barrier"), num_passes=10)], Fault.EVALUATES_ALONE, 0,
            id="the-other-is-at-a-barrier",
        ),
        pytest.param([waiting(0), evaluating(1), waiting(2)], Fault.EVALUATES_ALONE, 1, id="the-others-train"),
        pytest.param(
            [evaluating(0), evaluating(1), rank(2, USER, distributed("barrier"), num_passes=10)],
            Fault.OTHER_COLLECTIVE, 2, id="all-but-one-evaluate",
        ),
        pytest.param([evaluating(0), rank(1, USER, num_passes=10)], Fault.OWN_CODE, 1, id="the-other-is-late"),
    ],
)  # fmt: skip
def test_a_rank_that_evaluates_with_ddp(ranks: list[RankEvidence], fault: Fault, blamed: int) -> None:
    verdict = judge(ranks)
    assert (verdict.fault, verdict.rank) == (fault, blamed)


SKIPPED = {"num_unpaired": 1, "unpaired_step": 6}


@pytest.mark.parametrize(
    ("other", "has_failed"),
    [
        pytest.param(waiting(0), False, id="waits"),
        pytest.param(died(waiting(0), "failed: RuntimeError: Connection closed by peer"), True, id="lost-its-peer"),
    ],
)
def test_a_rank_that_skipped_a_backward_pass(other: RankEvidence, has_failed: bool) -> None:
    finished = rank(1, num_passes=10, ended=Ended.FINISHED, **SKIPPED)
    verdict = judge([other, finished])
    assert (verdict.fault, verdict.rank, verdict.has_failed) == (Fault.FEWER_PASSES, 1, has_failed)
    assert verdict.detail == (
        "Its forward pass in step 6 was not followed by a backward pass. Since then, DDP has averaged gradients from "
        "different iterations"
    )


def test_a_rank_that_skipped_a_backward_pass_and_died_in_an_evaluation() -> None:
    """Gloo aborts it, because the other ranks are still in their last backward pass; the launcher kills one of them."""
    skipped = died(with_skipped(rank(1, num_passes=10)), exit_code=-6)
    assert skipped.record is not None
    skipped = replace(skipped, record=replace_struct(skipped.record, ended_in="all_reduce"))
    lost = died(rank(0, activity=Activity.BACKWARD, num_passes=11), "failed: RuntimeError: Connection closed by peer")
    killed = died(rank(2, activity=Activity.BACKWARD, num_passes=11), exit_code=-15)
    verdict = judge([lost, skipped, killed])
    assert (verdict.fault, verdict.rank, verdict.has_failed) == (Fault.FEWER_PASSES, 1, True)


@pytest.mark.parametrize(
    ("times", "later"), [(2, "nor was a later forward pass"), (4, "nor were 3 later forward passes")]
)
def test_a_rank_that_skipped_several_backward_passes(times: int, later: str) -> None:
    skipped = {**SKIPPED, "num_unpaired": times}
    verdict = judge([waiting(0), rank(1, num_passes=10, ended=Ended.FINISHED, **skipped)])
    assert f"was not followed by a backward pass, {later}. Since then" in (verdict.detail or "")


def with_skipped(one: RankEvidence) -> RankEvidence:
    return replace(one, state=replace(one.state, **SKIPPED))


def test_a_rank_that_skipped_one_is_not_blamed_for_another_fault() -> None:
    skipped = with_skipped(waiting(1))
    assert judge([rank(0, USER, num_passes=10), skipped]).fault is Fault.OWN_CODE
    assert judge([died(rank(0), "failed: ValueError: boom"), skipped]).fault is Fault.DIED


def test_a_rank_that_logs_losses_and_waits_for_data_has_skipped_no_backward_pass() -> None:
    loading = with_skipped(rank(1, USER, activity=Activity.DATA, num_passes=10))
    assert judge([waiting(0), loading]).fault is Fault.LOADER
    ended = with_skipped(rank(1, num_passes=11, ended=Ended.FINISHED))
    assert judge([waiting(0), ended]).fault is Fault.ENDED_EARLY, "it has as many backward passes as the other"


def test_what_is_over_does_not_hang() -> None:
    lost = died(rank(0), "failed: RuntimeError: Connection closed by peer")
    verdict = judge([lost, rank(1, num_passes=10, ended=Ended.FINISHED)])
    assert (verdict.fault, verdict.rank, verdict.has_failed) == (Fault.ENDED_EARLY, 1, True)


QUEUE = Frame("/usr/lib/python3.11/multiprocessing/queues.py", 199, "_finalize_join")


def finished(number: int, ago_s: float = 20, started_s: float = 100) -> RankEvidence:
    """Return a rank that has finished so long ago, while a process of its number, started so long ago, is alive."""
    times = {"ended_ns": NOW_NS - int(ago_s * S), "stack_ns": NOW_NS - S}
    one = rank(number, QUEUE, LIBRARY, ended=Ended.FINISHED, exits=1, **times)
    return replace(one, process=process(pid=100 + number, started_ns=NOW_NS - int(started_s * S)))


def test_a_process_that_does_not_exit_after_the_training() -> None:
    verdict = judge_exit([replace(finished(0), process=None), finished(1)])
    assert verdict is not None
    assert (verdict.fault, verdict.rank, verdict.has_failed) == (Fault.DOES_NOT_EXIT, 1, False)
    assert verdict.place == "/usr/lib/python3.11/queue.py:180 in get"
    assert verdict.detail == "a multiprocessing.Queue still contains items that this process has put into the queue"


def with_state(one: RankEvidence, **state: int) -> RankEvidence:
    return replace(one, state=replace(one.state, **state))


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param([], id="none"),
        pytest.param([with_state(finished(0), exits=0)], id="the-script-goes-on-after-a-with-block"),
        pytest.param([with_state(finished(0), stack_ns=NOW_NS - 30 * S)], id="its-stack-is-older-than-the-end"),
        pytest.param([replace(finished(0), stack=(USER, LIBRARY))], id="code-of-the-script-runs-at-exit"),
        pytest.param([replace(finished(0), computes=True)], id="it-computes"),
        pytest.param([replace(finished(0), helpers_compute=True)], id="its-threads-compute"),
        pytest.param([replace(finished(0), moves_data=True)], id="it-writes"),
        pytest.param([finished(0), rank(1)], id="one-still-trains"),
        pytest.param([finished(0, ago_s=5)], id="it-has-just-finished"),
        pytest.param([replace(finished(0), process=None)], id="it-has-exited"),
        pytest.param([finished(0, started_s=10)], id="another-process-has-its-number"),
        pytest.param([replace(finished(0), exit=ProcessExit(0, rank=0))], id="its-launcher-saw-it-end"),
    ],
)
def test_processes_that_have_exited(ranks: list[RankEvidence]) -> None:
    assert judge_exit(ranks) is None


def aborted(number: int, collective: str | None, place: str, **state: int) -> RankEvidence:
    """Return a rank whose process gloo has aborted, with what Python left of its stack."""
    one = died(rank(number, **state), exit_code=-6)
    return replace(one, record=replace_struct(record(number), ended_in=collective, ended_place=place))


def lost_in(number: int, collective: str | None, place: str, **state: int) -> RankEvidence:
    lost = died(rank(number, **state), "failed: RuntimeError: Read error: Connection reset by peer")
    assert lost.record is not None
    return replace(lost, record=replace_struct(lost.record, ended_in=collective, ended_place=place))


def test_collectives_of_the_script_that_differ_in_size() -> None:
    verdict = judge([aborted(0, "all_reduce", "a.py:8 in f"), lost_in(1, "all_reduce", "a.py:8 in f")])
    assert (verdict.fault, verdict.rank, verdict.has_failed) == (Fault.MISMATCH, None, True)
    assert verdict.detail == (
        "all ranks called all_reduce at a.py:8 in f, but with different amounts of data, or some ranks called it more "
        "often"
    )


def test_collectives_of_the_script_that_differ_in_order() -> None:
    verdict = judge([aborted(0, "all_reduce", "a.py:8 in f"), lost_in(1, "broadcast", "a.py:9 in f")])
    assert verdict.fault is Fault.MISMATCH
    assert verdict.detail == "rank 0 called all_reduce at a.py:8 in f; rank 1 called broadcast at a.py:9 in f"


@pytest.mark.parametrize("aborts", [True, False], ids=["which-gloo-aborts", "which-loses-its-peer"])
def test_a_collective_of_one_rank_that_meets_ddps(aborts: bool) -> None:
    own, other = (aborted, lost_in) if aborts else (lost_in, aborted)
    verdict = judge(
        [
            own(0, "all_reduce", "a.py:8 in f", num_passes=10),
            other(1, None, "a.py:5 in g", activity=Activity.BACKWARD, num_passes=11),
        ]
    )
    assert (verdict.fault, verdict.rank, verdict.place) == (Fault.OTHER_COLLECTIVE, 0, "a.py:8 in f")
    if aborts:
        assert verdict.detail == "it called all_reduce, and rank 1 called DDP's gradient all-reduce"


@pytest.mark.parametrize(
    ("activity", "collective", "backend"),
    [
        pytest.param(Activity.FORWARD, None, "gloo", id="in-a-forward"),
        pytest.param(Activity.OTHER, None, "gloo", id="in-the-scripts-own-code"),
        pytest.param(Activity.BACKWARD, "all_reduce", "nccl", id="with-nccl"),
    ],
)
def test_a_process_that_aborts_for_a_reason_of_its_own_has_died(
    activity: Activity, collective: str | None, backend: str
) -> None:
    """SIGABRT is also how a failed assertion in C++, or damaged memory, ends a process."""
    one = aborted(1, collective, "a.py:5 in g", activity=activity, num_passes=11)
    assert one.record is not None
    one = replace(one, record=replace_struct(one.record, backend=backend))
    verdict = judge([lost_in(0, "barrier", "a.py:8 in f", num_passes=11), one])
    assert (verdict.fault, verdict.rank, verdict.exit_code) == (Fault.DIED, 1, -6)


def test_an_abort_in_a_backward_pass_blames_no_rank_that_called_no_collective() -> None:
    one = aborted(1, None, "a.py:5 in g", activity=Activity.BACKWARD, num_passes=11)
    verdict = judge([lost_in(0, None, "a.py:9 in f", activity=Activity.OTHER, num_passes=11), one])
    assert (verdict.fault, verdict.rank) == (Fault.DIED, 1)


def test_a_rank_that_left_a_collective_of_the_script_out_died_in_one_of_ddp() -> None:
    callers = [lost_in(number, "all_reduce", "a.py:8 in f", num_passes=10) for number in (0, 1)]
    without = aborted(2, None, "a.py:5 in g", activity=Activity.BACKWARD, num_passes=11)
    verdict = judge([*callers, without])
    assert (verdict.fault, verdict.rank) == (Fault.MISSING_COLLECTIVE, 2)


SCRIPT = "for batch in range(9):\n    train(batch)\nbarrier()\n"


@pytest.mark.parametrize(
    ("other_line", "passes", "fault", "hint"),
    [
        pytest.param(2, 10, Fault.ENDED_EARLY, Hint.LEFT_LOOP, id="the-other-trains"),
        pytest.param(3, 10, Fault.LINK, None, id="so-is-the-other"),
        pytest.param(2, 0, Fault.OTHER_COLLECTIVE, None, id="it-has-not-begun-the-loop"),
    ],
)
def test_a_rank_in_a_collective_outside_the_training_loop(
    other_line: int, passes: int, fault: Fault, hint: Hint | None, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)

    def at(line: int) -> Frame:
        return Frame(str(tmp_path / "train.py"), line, "<module>")

    behind = rank(1, at(3), distributed("barrier"), num_passes=passes)
    other = rank(0, at(3), distributed("barrier"), num_passes=passes)
    if other_line == 2:
        other = rank(0, at(2), ENGINE, activity=Activity.BACKWARD, num_passes=passes + 1)
    verdict = judge([other, behind])
    assert (verdict.fault, verdict.hint) == (fault, hint)


def test_after_the_loop_of_all_ranks_none_has_left_it_early() -> None:
    """One registers the model somewhere, and the others wait for it."""
    flags = StepFlag.RAN_OUT
    registers = replace(rank(0, USER, num_passes=10, flags=flags), facts=OverdueFacts(wait=Wait.NETWORK))
    verdict = judge([registers, rank(1, USER, distributed("barrier"), num_passes=10, flags=flags)])
    assert (verdict.fault, verdict.rank, verdict.hint) == (Fault.OWN_CODE, 0, Hint.WAITS_OUTSIDE)


def waits(number: int, flags: int) -> RankEvidence:
    return rank(number, USER, ENGINE, activity=Activity.BACKWARD, num_passes=11, flags=flags)


@pytest.mark.parametrize(("flags", "fault"), [(0, Fault.ENDED_EARLY), (StepFlag.BEGAN_EPOCH, Fault.ENDED_EARLY)])
def test_a_rank_without_batches_has_ended_early_if_others_have_some(flags: int, fault: Fault) -> None:
    behind = rank(1, USER, num_passes=10, flags=StepFlag.RAN_OUT)
    assert judge([waits(0, flags), behind]).fault is fault


def test_a_rank_between_two_epochs_has_not_ended_early() -> None:
    """The others have begun their next epoch, and it waits for a file, for example."""
    between = rank(1, USER, num_passes=10, flags=StepFlag.RAN_OUT)
    others = [waits(one, StepFlag.RAN_OUT | StepFlag.BEGAN_EPOCH) for one in (0, 2)]
    verdict = judge([*others, between])
    assert (verdict.fault, verdict.rank) == (Fault.OWN_CODE, 1)


def test_collectives_whose_lines_are_not_known() -> None:
    ranks = [aborted(0, "all_reduce", "a.py:8 in f"), lost_in(1, "broadcast", "")]
    assert judge(ranks).detail == "rank 0 called all_reduce at a.py:8 in f; rank 1 called broadcast"


def test_collectives_in_which_ranks_hang_are_named() -> None:
    ranks = [rank(one, USER, distributed(name), num_passes=10) for one, name in enumerate(["barrier", "all_reduce"])]
    ranks[1] = replace(ranks[1], stack=(Frame("/home/me/train.py", 31, "log"), distributed("all_reduce")))
    verdict = judge(ranks)
    assert verdict.fault is Fault.OTHER_COLLECTIVE
    assert verdict.detail in (
        "it called barrier, and rank 1 called all_reduce", "it called all_reduce, and rank 0 called barrier"
    )  # fmt: skip


def test_a_rank_that_left_a_backward_pass_out_and_is_in_its_next_forward() -> None:
    sync = Frame("/site-packages/torch/nn/parallel/distributed.py", 2425, "_sync_buffers")
    verdict = judge([rank(0, USER, sync, activity=Activity.FORWARD, num_passes=10), waiting(1)])
    assert (verdict.fault, verdict.rank, verdict.waiting) == (Fault.FEWER_PASSES, 0, (1,))


def test_a_rank_with_more_passes_in_fewer_steps_has_run_one_too_many() -> None:
    extra = replace(waiting(0, passes=121), state=replace(waiting(0, passes=121).state, step=119))
    others = [rank(number, USER, distributed("barrier"), num_passes=120, step=120) for number in (1, 2)]
    verdict = judge([extra, *others])
    assert (verdict.fault, verdict.rank, verdict.hint) == (Fault.FEWER_PASSES, 0, Hint.EXTRA_PASS)
    assert verdict.waiting == (1, 2)
    assert verdict.detail == "It has begun 121 backward passes, and rank 1 has begun 120"


def test_the_one_rank_that_trains_on_has_run_a_pass_too_many() -> None:
    finished = [rank(number, num_passes=11, ended=Ended.FINISHED) for number in (1, 2)]
    verdict = judge([waiting(0, passes=12), *finished])
    assert (verdict.fault, verdict.rank, verdict.hint) == (Fault.FEWER_PASSES, 0, Hint.EXTRA_PASS)
    alone = judge([waiting(0, passes=12), waiting(2, passes=12), finished[0]])
    assert (alone.fault, alone.rank) == (Fault.ENDED_EARLY, 1)


def test_a_rank_that_has_just_begun_its_next_step_has_run_no_pass_too_many() -> None:
    """A rank that is still in the optimizer of the step before has run as many."""
    ahead = rank(1, USER, num_passes=120, step=120)
    verdict = judge([rank(0, USER, distributed("barrier"), num_passes=120, step=119), ahead])
    assert verdict.hint is not Hint.EXTRA_PASS


@pytest.mark.parametrize(
    ("error", "late"),
    [
        ("failed: RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 4000 ms", 1),
        ("failed: RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 4000 ms", 1),
        ("failed: RuntimeError: Rank 2 failed to reach monitoredBarrier", 2),
    ],
)
def test_a_monitored_barrier_names_who_did_not_come(error: str, late: int) -> None:
    others = "failed: RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting"
    held = died(rank(1, USER, num_passes=10), exit_code=-15)
    verdict = judge([died(rank(0), error), held, died(rank(2), others)])
    assert (verdict.fault, verdict.rank, verdict.hint) == (Fault.OWN_CODE, late, Hint.LATE_FOR_BARRIER)
    assert verdict.has_failed


@pytest.mark.parametrize(
    ("passes", "line", "fault"),
    [
        pytest.param(10, 3, Fault.DOES_NOT_EXIT, id="behind-the-loop"),
        pytest.param(9, 3, Fault.ENDED_EARLY, id="after-fewer-passes"),
        pytest.param(10, 2, Fault.ENDED_EARLY, id="in-the-loop"),
    ],
)
def test_a_rank_that_goes_on_after_the_training_of_all(passes: int, line: int, fault: Fault, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("for step in range(10):\n    train()\nchild.join()\n")
    goes_on = rank(0, Frame(str(script), line, "<module>"), LIBRARY, num_passes=passes)
    finished = [rank(number, num_passes=10, ended=Ended.FINISHED) for number in (1, 2)]
    verdict = judge([goes_on, *finished])
    assert (verdict.fault, verdict.rank) == (fault, 0 if fault is Fault.DOES_NOT_EXIT else 1)


@pytest.mark.parametrize(
    ("passes", "activity", "fault", "hint"),
    [
        pytest.param(10, Activity.OTHER, Fault.DOES_NOT_EXIT, Hint.HELD_AFTER_TRAINING, id="after-the-training"),
        pytest.param(9, Activity.OTHER, Fault.INTERPRETER_HELD, None, id="after-fewer-passes"),
        pytest.param(10, Activity.FORWARD, Fault.INTERPRETER_HELD, None, id="in-a-forward"),
    ],
)
def test_a_rank_that_holds_the_interpreter(passes: int, activity: Activity, fault: Fault, hint: Hint | None) -> None:
    """Its pulse gives no sign. PyTorch did so where it destroyed a process group, after all ranks had trained."""
    held = rank(0, num_passes=passes, activity=activity, tick_ns=NOW_NS - 5 * S)
    finished = rank(1, num_passes=10, ended=Ended.FINISHED)
    verdict = judge([held, finished])
    assert (verdict.fault, verdict.rank, verdict.hint) == (fault, 0, hint)
    beside_a_rank_that_goes_on = judge([held, finished, rank(2, USER, num_passes=10)])
    assert beside_a_rank_that_goes_on.hint is not Hint.HELD_AFTER_TRAINING


@pytest.mark.parametrize(("by_library", "fault"), [(True, Fault.MISMATCH), (False, Fault.DIED)])
def test_an_abort_by_a_thread_of_the_backend_is_one_of_collectives_that_met(by_library: bool, fault: Fault) -> None:
    """In the script's own code in C, it is the rank's."""
    aborted = died(waiting(2), exit_code=-6)
    assert aborted.record is not None
    aborted = replace(aborted, record=replace_struct(aborted.record, was_aborted_by_library=by_library))
    verdict = judge([*(died(waiting(number), exit_code=-15) for number in (0, 1)), aborted])
    assert (verdict.fault, verdict.rank, verdict.has_failed) == (fault, None if by_library else 2, True)
