"""Sentences of the verdict on a job that hangs or has failed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

from ddpprof.engine.frameworks import TRAIN_WITHIN_JOIN
from ddpprof.layout import clean, count
from ddpprof.model.hang import Fault, Hint, Standstill, Verdict
from ddpprof.topics.error_words import advice_on_error, is_of_worker, killer_sentence, shortened, signal_name
from ddpprof.topics.hangs import CRASH_AT_EXIT, SAME_COLLECTIVES, SKIP_TOGETHER, ZERO_LOSS
from ddpprof.words import listed, ranks_in_words

_MOST_NAMES = 6
_MOST_RANKS = 8
_WHAT = {
    Fault.DIED: "rank {rank} has died",
    Fault.ENDED_EARLY: "rank {rank} has run out of batches and left the training loop",
    Fault.FEWER_PASSES: "rank {rank} has skipped a backward pass that the other ranks run",
    Fault.MISSING_COLLECTIVE: "rank {rank} has not called a collective that the other ranks have called",
    Fault.OTHER_COLLECTIVE: "rank {rank} calls a collective that the other ranks do not call",
    Fault.MISMATCH: "the ranks have called collectives that do not match",
    Fault.EVALUATES_ALONE: "rank {rank} runs evaluation with a DDP module, whose forward pass waits for all ranks",
    Fault.OWN_CODE: "rank {rank} is still running the script's own code",
    Fault.LOCK: "rank {rank} is waiting for a lock, a queue or another process",
    Fault.LOADER: "rank {rank} is waiting for its DataLoader",
    Fault.STORAGE: "rank {rank} is waiting for its disk",
    Fault.STOPPED: "rank {rank} is stopped by a signal",
    Fault.SWAPPING: "rank {rank} is swapping: it needs more memory than the machine has",
    Fault.TRACED: "rank {rank} is stopped in a debugger",
    Fault.INTERPRETER_HELD: "rank {rank} runs code that holds Python's global interpreter lock",
    Fault.LINK: "all ranks wait at the same place, and no data arrives",
    Fault.UNKNOWN: "the cause is unknown: the data recorded by the ranks does not show it",
}
_WHAT_BY_HINT = {
    Hint.LEFT_LOOP: "rank {rank} has left the training loop",
    Hint.FROZEN: "rank {rank} is stopped",
    Hint.OF_PEERS: "rank {rank} is waiting in a send or receive without a matching call on another rank",
    Hint.OTHER_ORDER: "the ranks call collectives of several process groups in different orders",
    Hint.WAITS_OUTSIDE: "rank {rank} is still running the script's own code",
    Hint.EXTRA_PASS: "rank {rank} has run more backward passes than the other ranks",
    Hint.LATE_FOR_BARRIER: "rank {rank} did not reach a monitored_barrier() in time",
    Hint.ENDED_SILENTLY: "rank {rank} has ended before the other ranks, probably with exit code 0",
    Hint.OTHER_AMOUNT: "rank {rank} calls a collective with a different amount of data than the other ranks",
    Hint.CRASHED_AT_EXIT: "rank {rank} finished its script, and then died",
    Hint.TIMED_OUT: "rank {rank} did not take part in any collective before the other ranks' collectives timed out",
}
"""hint → what happened, if the text for the fault does not fit"""
_WHAT_OF_ALL = {
    Fault.STOPPED: "all ranks are stopped",
    Fault.TRACED: "all ranks are stopped in a debugger",
    Fault.SWAPPING: "all ranks are swapping: they need more memory than the machine has",
}
_WHERE_LEFT_OUT = (
    "check whether a condition on the rank or its batch, or a `continue` or `break`, can skip the call on that rank, "
    "and whether the script catches an exception there."
)
_FIND_HELD = "To find that code: py-spy dump --native --pid {pid}."
_OF_GLOO = (
    "If that code is ~ProcessGroupGloo, PyTorch joins a thread that waits for the lock: delete the model before you "
    "call destroy_process_group(), or sleep for 10 ms after that call."
)
_DO = {
    Fault.DOES_NOT_EXIT: "Read a queue before you join the processes that fill it: call queue.get() for each "
    "result, and then join(). Stop threads, executors and loaders before the script ends.",
    Fault.ENDED_EARLY: "Give every rank the same number of batches: let a DistributedSampler shard the dataset, or "
    f"end each epoch after the smallest len(loader) of all ranks; or {TRAIN_WITHIN_JOIN}.",
    Fault.FEWER_PASSES: "Every rank must run the same backward passes: look for a `continue`, a `break` or an `if` in "
    f"the loop that depends on the rank or its batch, and for caught exceptions. {SKIP_TOGETHER}",
    Fault.MISSING_COLLECTIVE: f"Every rank must call that collective: {_WHERE_LEFT_OUT}",
    Fault.OTHER_COLLECTIVE: "Call that collective on every rank: look for an `if rank == 0:`, or a condition on the "
    "batch. If the line is after the training loop, that rank left the loop early: make all ranks leave it after the "
    "same step.",
    Fault.MISMATCH: SAME_COLLECTIVES,
    Fault.EVALUATES_ALONE: "Evaluate model.module on that rank, or the DDP module on every rank, with the same "
    "number of batches on each. DDP's forward pass broadcasts buffers, such as BatchNorm's statistics, even in "
    "evaluation mode.",
    Fault.OWN_CODE: "Check that line: the other ranks wait until that rank continues.",
    Fault.LOCK: "Find out which thread or process holds the lock or should fill the queue. That thread or "
    "process must not depend on other ranks.",
    Fault.LOADER: "Check the DataLoader workers of that rank (`py-spy dump --pid PID`) and the storage that they read "
    "from. DataLoader(timeout=…) turns a stuck worker into an error.",
    Fault.STORAGE: "Check the file system that the rank uses. If only one rank saves, the other ranks wait for it.",
    Fault.STOPPED: "Resume the rank: kill -CONT {pid}",
    Fault.SWAPPING: "Give the job more memory, or reduce its memory use with a smaller batch or fewer DataLoader "
    "workers.",
    Fault.TRACED: "Continue in the debugger, or detach it.",
    Fault.INTERPRETER_HELD: f"{_FIND_HELD} Long-running C code should release the lock. {_OF_GLOO}",
    Fault.LINK: "If there are several hosts, check the network between them for a link that is down, a firewall or a "
    "full send queue (ss -ti; for InfiniBand, ibstat). On accelerators, also look for ranks that queue "
    "different collectives.",
}


_DO_BY_HINT = {
    Hint.FROZEN: """
        Resume the control group: docker unpause, the scheduler's resume, or write 0 to its cgroup.freeze (THAWED to
        freezer.state in version 1).""",
    Hint.LEFT_LOOP: f"""
        Make all ranks leave the loop after the same step. If a `break` depends on a rank's own metric or data, as in
        early stopping, all-reduce the decision first. If ranks have different numbers of batches, give every rank the
        same number, or {TRAIN_WITHIN_JOIN}. If a `continue` skips a batch on that rank, make all ranks skip it, or call
        {ZERO_LOSS} instead. If the rank accumulates gradients (`no_sync()`) in steps in which other ranks reduce them,
        make all ranks accumulate in the same steps.""",
    Hint.ERROR_IN_FLIGHT: """
        Fix that error first. Code in `finally` or `except` must not call a collective that the other ranks do not call:
        let the error end the rank. Its launcher then ends the other ranks.""",
    Hint.OTHER_ORDER: """
        Call the collectives of all groups in the same order on every rank: look for an `if rank`, or an unordered set,
        that determines which group comes first.""",
    Hint.OF_PEERS: """
        Check the matching recv() or send() on the other rank: it may depend on a condition, come in a different order,
        or have a different tag.""",
    Hint.STATIC_GRAPH: """
        With static_graph=True every step must use the same parameters. Remove static_graph=True and pass
        find_unused_parameters=True, or use these parameters in every forward pass.""",
    Hint.SKIPPED_COLLECTIVE: f"Every rank must call that collective, as in earlier steps: {_WHERE_LEFT_OUT}",
    Hint.OTHER_AMOUNT: SAME_COLLECTIVES,
    Hint.OTHER_LINES: """
        Every rank must call the same collectives in the same order: look for an `if rank == 0:`, or a condition on the
        batch, around one of these lines or in the functions that call them.""",
    Hint.TIMED_OUT: """
        Find out what that rank was doing until its launcher ended it. If this work needs that much time, pass a longer
        timeout to init_process_group() or new_group().""",
    Hint.DIFFERENT_ROOTS: """
        Pass the same dst or src, and the same group, on every rank: look for an argument that depends on the rank.""",
    Hint.WITHIN_BACKWARD: """
        The rank waits in the same backward pass as the other ranks. If DDP has a comm hook, check that the
        hook always completes its future. Check for parameters that get no gradient on that rank.""",
    Hint.EXTRA_PASS: """
        Every rank must run the same number of backward passes: check whether that rank has more batches (if so, use
        a DistributedSampler), or whether a second backward() or optimizer step depends on the rank or its batch.""",
    Hint.WORKER_AT_LOCK: """
        Find the lock: py-spy dump --pid PID of a worker. A lock that a thread held at the moment at which the worker
        was forked is never released in the worker: create locks and threads in the workers, or pass
        multiprocessing_context="forkserver" to the DataLoader.""",
    Hint.LATE_FOR_BARRIER: """
        Find out what that rank was doing in the meantime: the monitored_barrier() of the other ranks timed out waiting
        for it.""",
    Hint.WAITS_FOR_INPUT: """
        Look for an input() or a breakpoint() at that line: the rank may be waiting for input that nobody provides.""",
    Hint.WAITS_OUTSIDE: """
        Check what the rank is waiting for at that line, and set a timeout there. The other ranks wait until the rank
        continues.""",
    Hint.TERMINATED: """
        Something sent SIGTERM to that rank: a scheduler that ends the job, a time limit, a script that watches the
        ranks, or a user.""",
    Hint.CRASHED: """
        C code crashed: check the line above and the libraries that it calls. rank-{rank}.crash.txt in the run has the
        stacks of all threads, and `dmesg` may name the library.""",
    Hint.CRASHED_AT_EXIT: f"""
        {CRASH_AT_EXIT} rank-{{rank}}.crash.txt in the run may have the stacks of all threads.""",
    Hint.HELD_AFTER_TRAINING: f"{_FIND_HELD} {_OF_GLOO}",
    Hint.ENDED_SILENTLY: """
        Its launcher recorded that other ranks failed, but not that this rank failed: look for os._exit(0), and for code
        that ends the process without an error.""",
    Hint.UNSEEN_END: """
        The process of that rank left no message, so it is unknown why the process ended. Look for os._exit() in the
        script, for a signal that was sent to the process (dmesg shows kills by the out-of-memory killer), and for
        messages in the output of the launcher.""",
}
"""hint → what to do, if the advice for the fault does not fit"""


def verdict_lines(verdict: Verdict, *, is_over: bool = False) -> list[str]:
    """Return the verdict as sentences: what happened and where, which ranks wait for what, and what to do."""
    lines = [verdict_in_short(verdict, is_over=is_over), *_where(verdict), *_waiting(verdict, is_over=is_over)]
    advice = _advice(verdict)
    if verdict.nccl is not None:
        lines.append(f"NCCL's RAS: {clean(verdict.nccl, most=400)}.")
    return [*lines, *([advice] if advice else [])]


def standstill_line(found: Standstill) -> str:
    """Return a line that says why a job without progress is not (or not yet) reported as a hang."""
    at = f" at {clean(found.place)}" if found.place is not None else ""
    if found.absent and found.waiting:
        waiting = f"{ranks_in_words(found.waiting)} {'has' if len(found.waiting) == 1 else 'have'} waited"
        absent = f"{ranks_in_words(found.absent)} {'has' if len(found.absent) == 1 else 'have'}"
        return (
            f"{waiting}{at} for {found.waited_s:.0f} s. {absent.capitalize()} not begun to construct a "
            "DistributedDataParallel module, or cannot run any Python code"
        )
    who = f"; {ranks_in_words(found.waiting)} {'waits' if len(found.waiting) == 1 else 'wait'} for it"
    if found.waits_for is None or found.rank is None:
        takes = f"step {found.step or 0:,} has taken {found.waited_s:.0f} s so far"
        if found.place is None:
            return f"{takes}, but a rank saves, evaluates, computes or starts slowly, or has just resumed"
        return (
            f"{takes}, but rank {found.rank} saves, evaluates or computes{at}, or has just resumed"
            f"{who if found.waiting else ''}"
        )
    limit = f". ddpprof reports this as a hang only after {found.hangs_after_s:.0f} s" if found.hangs_after_s else ""
    return (
        f"rank {found.rank} has waited for {found.waits_for}{at} for {found.waited_s:.0f} s"
        f"{who if found.waiting else ''}{limit}"
    )


def verdict_line(verdict: Verdict) -> str:
    """Return the verdict as one line of ``key=value`` pairs, for logs."""
    pairs = {
        "fault": verdict.fault,
        "rank": verdict.rank,
        "host": verdict.host,
        "pid": verdict.pid,
        "step": verdict.step,
        "activity": verdict.activity,
        "bucket": verdict.bucket,
        "parameters": ",".join(verdict.parameters[:_MOST_NAMES]) or None,
        "place": verdict.place,
        "waiting": ",".join(map(str, verdict.waiting[:_MOST_RANKS])) or None,
    }
    words = (f"{key}={_quoted(clean(str(value)))}" for key, value in pairs.items() if value is not None)
    return f"ddpprof_verdict {' '.join(words)}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if not text or re.search(r"[\s\"=]", text) else text


def verdict_in_short(verdict: Verdict, *, is_over: bool) -> str:
    """Return one sentence that says what happened, in which step and on which rank."""
    if verdict.fault is Fault.DOES_NOT_EXIT:
        return _does_not_exit(verdict, is_over=is_over)
    what = _what(verdict)
    if verdict.fault is Fault.DIED and verdict.hint is not Hint.ENDED_SILENTLY:
        what += _how_it_died(verdict)
    elif verdict.detail is not None:
        what += f"{'. ' if verdict.detail[:1].isupper() else '; '}{clean(verdict.detail)}"
    at = f" at step {verdict.step:,}" if verdict.step is not None else ""
    begin = "The job failed" if verdict.has_failed else "The job hangs"
    if is_over and not verdict.has_failed:
        begin, at = f"The job hung{at}", ". Diagnosis at that time"
    return f"{begin}{at}: {what}{'' if what.endswith('…') else '.'}"


def _what(verdict: Verdict) -> str:
    if verdict.rank is None and verdict.fault in _WHAT_OF_ALL:
        return _WHAT_OF_ALL[verdict.fault]
    by_hint = None if verdict.hint is None else _WHAT_BY_HINT.get(verdict.hint)
    return (by_hint or _WHAT[verdict.fault]).format(rank=verdict.rank)


def _does_not_exit(verdict: Verdict, *, is_over: bool) -> str:
    is_, has = ("was", "had") if is_over else ("is", "has")
    waited = ""
    if verdict.since_unix_ns is not None and verdict.at_unix_ns is not None:
        waited = f" for {max(0, verdict.at_unix_ns - verdict.since_unix_ns) / 1e9:.0f} s"
    steps = f" ({count(verdict.step, 'step')})" if verdict.step is not None else ""
    why = f": {clean(verdict.detail)}" if verdict.detail is not None else ""
    return f"Training {is_} over{steps}, but the process of rank {verdict.rank} {has} not exited{waited}{why}."


def _how_it_died(verdict: Verdict) -> str:
    if verdict.detail is not None:
        return f": {clean(shortened(verdict.detail), most=300).rstrip('.: ')}"
    code = verdict.exit_code
    if code is not None and code < 0:
        return f" with {signal_name(-code)}"
    return f" with exit code {code}" if code is not None else " without a message"


def _where(verdict: Verdict) -> Iterator[str]:
    if verdict.rank is None:
        if verdict.place is not None:
            yield f"It happened at {clean(verdict.place)}."
        return
    process = f", process {verdict.pid}" if verdict.pid is not None and not verdict.has_failed else ""
    place = f", at {clean(verdict.place)}" if verdict.place is not None else ""
    if verdict.place is not None and verdict.called_at is not None:
        place += f", called at {clean(verdict.called_at)}"
    doing = f", in {clean(verdict.activity)}" if verdict.activity and verdict.activity != "other" else ""
    yield f"Rank {verdict.rank}: host {clean(verdict.host or '?')}{process}{doing}{place}."


def _waiting(verdict: Verdict, *, is_over: bool) -> Iterator[str]:
    if verdict.waiting and not verdict.has_failed:
        since = ""
        if verdict.since_unix_ns is not None and verdict.at_unix_ns is not None:
            clock = time.strftime("%H:%M:%S", time.localtime(verdict.since_unix_ns / 1e9))
            since = f" for {max(0, verdict.at_unix_ns - verdict.since_unix_ns) / 1e9:.0f} s, since {clock}"
        at = f", at {clean(verdict.waiting_at)}" if verdict.waiting_at is not None else ""
        who = ranks_in_words(verdict.waiting).capitalize()
        have = "had" if is_over else "has" if len(verdict.waiting) == 1 else "have"
        yield f"{who} {have} waited{since}{at}."
    if verdict.parameters:
        bucket = f" in bucket {verdict.bucket} of {clean(verdict.module or '?')}" if verdict.bucket is not None else ""
        wait = f"They wait{'ed' if is_over else ''} for gradients"
        missing = "Parameters without a gradient" if verdict.has_failed else wait
        yield f"{missing}{bucket}: {listed([*map(clean, verdict.parameters)], _MOST_NAMES)}."


def _advice(verdict: Verdict) -> str | None:
    if verdict.hint is None or (verdict.hint is Hint.UNSEEN_END and verdict.num_oom_kills):
        return _advice_on_fault(verdict)
    return " ".join(_DO_BY_HINT[verdict.hint].format(rank=verdict.rank, pid=verdict.pid).split())


def _advice_on_fault(verdict: Verdict) -> str | None:
    if verdict.fault is Fault.DIED:
        return _advice_on_death(verdict)
    if verdict.fault is Fault.STOPPED and verdict.rank is None:
        return "Resume the ranks: kill -CONT for each process, or `fg` in the terminal in which the job was stopped."
    if verdict.fault is Fault.OWN_CODE and not verdict.waiting:
        return "Check that line. No rank is known to be waiting for another rank."
    advice = _DO.get(verdict.fault)
    return None if advice is None else advice.format(pid=verdict.pid)


def _advice_on_death(verdict: Verdict) -> str | None:
    said = verdict.detail
    if said is not None and not is_of_worker(said):
        return advice_on_error(said)
    return killer_sentence(said, verdict.exit_code, verdict.num_oom_kills)
