"""The classes of fault and of pause, and what is right to say of each. They differ in what happens, not in numbers.

Some are set aside: they tell how ddpprof does with faults that it was not made for, since their first trials were made
before any rule was written with their results at hand. The first of these shares was drawn from the classes that were
new to the study, before any had been tried: ``random.Random(0).sample(sorted(new), num_classes // 3)``. The second one
was written when ddpprof had been mended for all others, and the third one when it had been mended for these, too.
"""

from __future__ import annotations

from dataclasses import dataclass

TRAIN, FAULTS, FURTHER_FAULTS = "train.py", "faults.py", "further_faults.py"
ANY = None
STEP = 60
"""step in which faults happen"""


@dataclass(frozen=True)
class Planted:
    kinds: tuple[str, ...] = ()
    """kinds of a verdict (`Fault`) that are right; none if the job neither hangs nor fails"""
    ranks: int = 3
    culprits: tuple[int, ...] | None = ANY
    """ranks that may have the fault"""
    blames: str = "culprit"
    """rank that the verdict should name: ``culprit``, ``nobody``, ``culprit or nobody``, or ``any``"""
    has_line: bool = True
    """whether the verdict should name the line marked ``# FAULT``, be it where the culprit is or where others wait"""
    others_wait: bool = True
    """whether the verdict should say that all other ranks wait"""
    has_bucket: bool = False
    """whether it should name the bucket that the others wait for, which is asked for faults of `TRAIN` only"""
    says: str = ""
    """what the launcher should say of a job that trains on, as a pattern; ``{rank}`` is the culprit"""
    advice: str = ""
    """pattern that what ``ddpprof diagnose`` says has if it leads to the right action"""
    misleading: str = ""
    """pattern that it has if it leads elsewhere"""
    has_fix: bool = False
    """whether the script can be run as it is after the advice was followed"""
    script: str = FAULTS
    launcher: str = "torchrun"
    options: tuple[str, ...] = ()
    """of torchrun"""
    shm_mib: int | None = None
    """size of a /dev/shm of the job's own"""
    patience_s: int = 100
    """seconds in which a verdict should have come"""
    alone: bool = False
    """whether no other job may run meanwhile, since ddpprof would count what happens on its host"""


def in_train(kind: str, **more: object) -> Planted:
    """Return a class whose fault `TRAIN` plants; see its names for what it does."""
    return Planted((kind,), **{"script": TRAIN, "ranks": 2, "has_bucket": True, **more})  # type: ignore[arg-type]


def further(*kinds: str, **more: object) -> Planted:
    """Return a class of `FURTHER_FAULTS`."""
    return Planted(kinds, **{"script": FURTHER_FAULTS, **more})  # type: ignore[arg-type]


ON_EVERY_RANK = r"(every|all|each)( other)? rank"
ELSEWHERE = r"kill -CONT|network between|file system"
NOT_CALLED = ("missing-collective", "other-collective")
DIED = {"others_wait": False, "misleading": ELSEWHERE}

CLASSES: dict[str, Planted] = {
    "sleep": in_train("own-code"),
    "after_backward": in_train("own-code"),
    "backward": in_train("own-code", has_bucket=False),
    "barrier": in_train("other-collective", advice=ON_EVERY_RANK, misleading=ELSEWHERE),
    "all_reduce": in_train("other-collective", has_bucket=False, advice=ON_EVERY_RANK, misleading=ELSEWHERE),
    "broadcast": in_train("other-collective", advice=ON_EVERY_RANK, misleading=ELSEWHERE),
    "lock": in_train("lock"),
    "queue": in_train("lock"),
    "stop": in_train("stopped", has_line=False, advice=r"kill -CONT \S"),
    "kill": in_train("died", has_line=False, has_bucket=False, **DIED, advice="SIGKILL|signal 9"),
    "error": in_train("died", has_bucket=False, **DIED, advice="the batch is empty"),
    "exit": in_train("died", has_line=False, has_bucket=False, **DIED, advice="exit code 3"),
    "unused": in_train("died", has_line=False, **DIED, advice=r"find_unused_parameters=True"),
    "interpreter": in_train("interpreter-held", has_line=False, advice="py-spy dump --native|gdb"),
    "save": in_train("storage", has_line=False, patience_s=150),
    "worker": in_train("loader", has_line=False, advice="worker"),
    "uneven": in_train("ended-early", advice="same number of batches|join"),
    "link": in_train(
        "link", blames="nobody", has_line=False, others_wait=False, has_bucket=False, launcher="namespaces"
    ),
    # collectives that not all ranks call, or not in the same order
    "one_rank_skips_barrier": Planted(NOT_CALLED, advice=ON_EVERY_RANK, misleading=ELSEWHERE, has_fix=True),
    "object_broadcast_skipped": Planted(
        NOT_CALLED, culprits=(1, 2), advice=ON_EVERY_RANK, misleading=ELSEWHERE, has_fix=True
    ),
    "error_swallowed": Planted(NOT_CALLED, advice=ON_EVERY_RANK, misleading=ELSEWHERE, has_fix=True),
    "async_reduction_skipped": Planted(
        (*NOT_CALLED, "mismatch"), blames="culprit or nobody", has_line=False, others_wait=False,
        advice=rf"{ON_EVERY_RANK}|same order", misleading=ELSEWHERE, has_fix=True,
    ),
    "group_on_some_ranks": Planted(NOT_CALLED, advice=ON_EVERY_RANK, misleading=ELSEWHERE, has_fix=True),
    "groups_in_other_order": Planted(
        ("mismatch",), ranks=2, blames="any", others_wait=False,
        advice="same order", misleading=ELSEWHERE, has_fix=True,
    ),
    "receives_alone": Planted(("other-collective",), advice=r"rank|send", misleading=ELSEWHERE, has_fix=True),
    "sends_alone": Planted(("other-collective",), advice=r"rank|rec", misleading=ELSEWHERE, has_fix=True),
    "collective_within_join": Planted(
        ("ended-early", "mismatch", *NOT_CALLED), blames="culprit or nobody", has_line=False, others_wait=False,
        advice=r"same number of batches|calls? no collectives|collectives? (with)?in", misleading=ELSEWHERE,
        has_fix=True,
    ),
    "barrier_in_finally": Planted((*NOT_CALLED, "died"), advice="ValueError|label 7", misleading=ELSEWHERE),
    "early_stopping_one_rank": Planted(
        ("ended-early",), has_line=False, others_wait=False, has_fix=True,
        advice=r"stop|break|(all|every) ranks? (together|must|end|leave)", misleading=ELSEWHERE,
    ),
    "batch_skipped": Planted(
        ("fewer-passes",), has_line=False, advice=r"`?continue`?|same backward passes", misleading=ELSEWHERE,
        has_fix=True,
    ),
    "backward_twice": Planted(
        ("fewer-passes", "other-collective", "mismatch", "ended-early"), blames="any", has_line=False,
        others_wait=False, advice="same (backward )?passes|same number|once more|one more",
    ),
    "evaluates_alone": Planted(
        ("evaluates-alone",), culprits=(1, 2), advice=r"\.module", misleading=ELSEWHERE, has_fix=True
    ),
    # a rank that waits in the script's own code
    "async_wait_all_ranks": Planted(("own-code",)),
    "stuck_in_validation": Planted(("own-code", "lock"), patience_s=150),
    "awaits_input": Planted(("own-code",), patience_s=150),  # docs/guides/hangs.md: called a hang after two minutes
    "retries_for_ever": Planted(("own-code",)),
    "endless_loop": Planted(("own-code",), patience_s=180),
    "awaits_coroutine": Planted(("own-code", "lock")),
    "silent_server": Planted(("own-code", "lock"), patience_s=150),  # as awaits_input
    "awaits_program": Planted(("own-code", "lock"), patience_s=150),
    "file_lock": Planted(("own-code", "lock"), culprits=(1, 2), advice=r"who holds|that line|lock", has_fix=True),
    "forked_lock": Planted(("lock",), patience_s=150),
    "pool_worker_dies": Planted(("lock",), patience_s=150),
    "thread_dies": Planted(("lock",)),
    "awaits_store_key": Planted(("own-code", "lock", "other-collective"), patience_s=150),  # as well
    "log_pipe_full": Planted(("own-code", "lock")),
    # processes that are held, slowed down or do not exit
    "frozen_cgroup": Planted(
        ("stopped",), has_line=False, advice=r"freez|frozen|thaw|cgroup|pause", misleading=r"kill -CONT|file system"
    ),
    "traced": Planted(("traced",), has_line=False, advice=r"debugger|detach", misleading=ELSEWHERE),
    "cpu_quota_slow": Planted(ranks=2, has_line=False, says=r"longer[^\n]*rank {rank}\b", patience_s=150),
    "worker_stopped": Planted(("loader", "stopped"), has_line=False, advice="worker"),
    "does_not_exit": Planted(("does-not-exit",), others_wait=False, advice=r"queue", has_fix=True),
    # jobs that fail
    "static_graph_changes": Planted(
        ("died",), has_line=False, **DIED, advice=r"static_graph.*find_unused_parameters=True|find_unused_parameters"
        r"=True.*static_graph", has_fix=True,
    ),
    "fails_at_start": Planted(("died",), **DIED, advice=r"train\.bin"),
    "hook_fails": Planted(("died",), **DIED, advice="gradient is not finite"),
    "worker_killed": Planted(("died",), has_line=False, **DIED, advice="worker"),
    "shared_memory_full": Planted(
        ("died",), has_line=False, **DIED, advice="shared memory|shm", shm_mib=24, has_fix=True
    ),
    "address_space_limit": Planted(("died",), **DIED, advice=r"\bmemory\b|ulimit"),
    "killed_for_memory": Planted(
        ("died",), has_line=False, others_wait=False, advice="more memory|smaller batch|less memory", alone=True,
        misleading=rf"{ELSEWHERE}|It was not the kernel",
    ),
    "cpu_time_limit": Planted(("died",), has_line=False, **DIED, advice="XCPU|signal 24|CPU time|processor time"),
    "disk_full": Planted(("died",), **DIED, advice="iostream|disk|space|file write"),
    "terminated": Planted(("died",), has_line=False, **DIED, advice="SIGTERM|signal 15"),
    "exits_with_zero": Planted(
        ("died", "ended-early"), has_line=False, others_wait=False, advice="exit", misleading=rf"{ELSEWHERE}|memory"
    ),
    "segfault": Planted(
        ("died",), has_line=False, **DIED, launcher="processes",
        advice="SIGSEGV|signal 11|egmentation|without a message",
    ),
    "monitored_barrier_expires": Planted(("own-code",), culprits=(1, 2), others_wait=False),
    "group_times_out": Planted(("own-code",), others_wait=False),
    "hangs_after_restart": Planted(("own-code",), options=("--standalone", "--max-restarts", "1")),
    # jobs that train on, and go wrong
    "other_parameter_order": Planted(ranks=2, has_line=False, says=r"(query|key)[^\n]*", has_fix=True),
    "lr_diverges_nan": Planted(ranks=2, has_line=False, says=r"(NaN|infinite)[^\n]*rank {rank}\b"),
    # the network
    "packets_vanish": Planted(
        ("link",), ranks=2, blames="nobody", has_line=False, others_wait=False, launcher="namespaces"
    ),
}  # fmt: skip
SECOND_HELD_OUT: dict[str, Planted] = {
    # collectives that not all ranks call, or not in the same way
    "gather_to_other_rank": further(
        "mismatch", *NOT_CALLED, culprits=(1, 2), blames="culprit or nobody", others_wait=False,
        advice=rf"{ON_EVERY_RANK}|same|dst", misleading=ELSEWHERE, has_fix=True,
    ),
    "experts_disagree": further(
        "mismatch", *NOT_CALLED, "died", blames="culprit or nobody", others_wait=False,
        advice=r"as much data|sizes?\b|splits?\b|same collective", misleading=ELSEWHERE, has_fix=True,
    ),
    "exchange_without_peer": further(
        *NOT_CALLED, others_wait=False, advice=rf"{ON_EVERY_RANK}|peer|send|condition", misleading=ELSEWHERE,
        has_fix=True,
    ),
    "hook_without_reduction": further(
        *NOT_CALLED, "own-code", has_line=False, advice=rf"{ON_EVERY_RANK}|hook|condition", misleading=ELSEWHERE,
        has_fix=True,
    ),
    "accumulates_on_one_rank": further(
        "fewer-passes", "mismatch", "ended-early", *NOT_CALLED, has_line=False, others_wait=False,
        advice=r"no_sync|\baccumulation|accumulates? gradients|same (number of )?(backward )?passes",
        misleading=ELSEWHERE, has_fix=True,
    ),
    "models_in_other_order": further(
        "mismatch", *NOT_CALLED, "died", blames="culprit or nobody", others_wait=False,
        advice="same (collectives in the same )?order|same collective", misleading=ELSEWHERE, has_fix=True,
    ),
    "sharded_optimizer_saved_alone": further(
        *NOT_CALLED, advice=ON_EVERY_RANK, misleading=ELSEWHERE, has_fix=True,
    ),
    "distributed_save_alone": further(
        *NOT_CALLED, advice=ON_EVERY_RANK, misleading=ELSEWHERE, has_fix=True, patience_s=150,
    ),
    # a rank that waits in the script's own code
    "trains_in_thread": further("own-code"),
    "handler_deadlocks": further("lock"),
    "consumer_dies": further("lock", "own-code"),
    "native_lock": further("lock", "own-code"),
    "pool_waits_for_itself": further("lock"),
    "collector_blocks": further("lock"),
    "database_locked": further(
        "lock", "own-code", culprits=(1, 2), patience_s=150, advice="that line|who holds|lock", has_fix=True
    ),
    "storage_hangs": further("storage", "own-code", advice="disk|storage|file system", patience_s=150),
    # processes that are held, slowed down or do not exit
    "all_ranks_stopped": further(
        "stopped", blames="nobody", has_line=False, others_wait=False, advice="kill -CONT|all ranks"
    ),
    "worker_deadlocks": further("loader", has_line=False, advice="worker"),
    "thread_outlives_training": further(
        "does-not-exit", has_line=False, others_wait=False, advice="thread", has_fix=True
    ),
    "loader_gets_slow": further(
        ranks=2, has_line=False, patience_s=150,
        says=r"longer[^\n]*rank {rank}\b|rank {rank}\b[^\n]*(longer|DataLoader)",
    ),
    # jobs that fail, or of which one rank is done
    "destroys_group_early": further("own-code", "ended-early", advice="that line|destroy|left", misleading=ELSEWHERE),
    "file_truncated": further("died", has_line=False, **DIED, advice=r"SIGBUS|signal 7\b|bus error"),
    "too_many_files": further("died", **DIED, advice="Too many open files|ulimit"),
    "fails_in_every_attempt": further(
        "died", **DIED, advice="labels and of logits differ", options=("--standalone", "--max-restarts", "1")
    ),
    "block_used_twice": further(
        "died", has_line=False, **DIED, advice="ready only once|use_reentrant|static_graph"
    ),
    "interrupted": further("died", **DIED, advice=r"KeyboardInterrupt|SIGINT|signal 2\b"),
}  # fmt: skip
THIRD_HELD_OUT: dict[str, Planted] = {
    "forward_without_average": further(
        *NOT_CALLED, "mismatch", "died", blames="culprit or nobody", has_line=False, others_wait=False,
        advice=rf"{ON_EVERY_RANK}|same collectives", misleading=ELSEWHERE, has_fix=True,
    ),
    "another_module_wrapped": further(*NOT_CALLED, advice=ON_EVERY_RANK, misleading=ELSEWHERE, has_fix=True),
    "reduces_other_amount": further(
        "mismatch", *NOT_CALLED, "died", blames="culprit or nobody", others_wait=False,
        advice=r"as much data|sizes?\b", misleading=ELSEWHERE, has_fix=True,
    ),
    "awaits_flag_of_other_rank": further("own-code", culprits=(1, 2), advice="that line"),
    "awaits_connection": further("own-code", "lock", patience_s=150),
    "import_deadlocks": further("lock", has_line=False),
    "library_aborts": further("died", has_line=False, **DIED, advice=r"SIGABRT|signal 6\b"),
    "alarm_rings": further("died", has_line=False, **DIED, advice=r"SIGALRM|signal 14\b"),
    "worker_raises": further("died", **DIED, advice="the image is truncated"),
    "worker_times_out": further("died", **DIED, advice="timed out after|worker"),
}  # fmt: skip
CLASSES |= SECOND_HELD_OUT | THIRD_HELD_OUT
HELD_OUT = frozenset((
    "awaits_coroutine", "awaits_input", "awaits_program", "backward_twice", "collective_within_join", "cpu_time_limit",
    "does_not_exit", "fails_at_start", "file_lock", "forked_lock", "group_on_some_ranks", "killed_for_memory",
    "log_pipe_full", "monitored_barrier_expires", "object_broadcast_skipped", "pool_worker_dies", "retries_for_ever",
    "segfault", "sends_alone", "shared_memory_full", "terminated", "thread_dies", "worker_stopped",
))  # fmt: skip


@dataclass(frozen=True)
class Pause:
    is_promised: bool = True
    """whether docs/guides/hangs.md says that it is not called a hang"""
    options: tuple[str, ...] = ()
    """of torchrun"""
    times: int = 2


PAUSES: dict[str, Pause] = {
    "save": Pause(),
    "evaluation": Pause(),
    "own_evaluation": Pause(),
    "first_batch": Pause(),
    "debugger": Pause(),
    "sleep": Pause(),
    "checkpoint_upload_rank0": Pause(times=1),
    "validation_soon": Pause(times=1),
    "simulator_server": Pause(is_promised=False),
    "simulator_program": Pause(),
    "registry_after_training": Pause(times=1),
    "process_pool": Pause(),
    "thread_computes": Pause(),
    "awaits_file": Pause(is_promised=False),
    "garbage": Pause(),
    "save_to_slow_disk": Pause(),
    "download_at_start": Pause(times=1),
    "sleeps_on_all_ranks": Pause(),
    "loads_slowly": Pause(),
    "reads_program_output": Pause(),
    "slow_batch": Pause(),
    "restarted": Pause(options=("--standalone", "--max-restarts", "1"), times=1),
    "accumulates_long": Pause(is_promised=False),
    "awaits_saving_thread": Pause(),
}
SECOND_HELD_OUT_PAUSES: dict[str, Pause] = {
    "compiles_extension": Pause(is_promised=False),
    "copies_data": Pause(),
    "long_inference": Pause(),
    "finds_learning_rate": Pause(),
    "compiles_later": Pause(),
    "writes_shards": Pause(),
    "monitored_barrier_waits": Pause(),
    "distributed_save": Pause(),
    "workers_start_slowly": Pause(),
}
THIRD_HELD_OUT_PAUSES: dict[str, Pause] = {
    "server_starts": Pause(),
    "decompresses": Pause(),
    "lock_of_another_job": Pause(is_promised=False),
}
PAUSES |= SECOND_HELD_OUT_PAUSES | THIRD_HELD_OUT_PAUSES
HELD_OUT_PAUSES = frozenset((
    "accumulates_long", "garbage", "process_pool", "reads_program_output", "registry_after_training",
    "simulator_server", "sleeps_on_all_ranks", "thread_computes",
))  # fmt: skip


SHARES = ("tuned", "held-out", "second held-out", "third held-out")


def share_of(name: str) -> str:
    if name in SECOND_HELD_OUT or name in SECOND_HELD_OUT_PAUSES:
        return "second held-out"
    if name in THIRD_HELD_OUT or name in THIRD_HELD_OUT_PAUSES:
        return "third held-out"
    return "held-out" if name in HELD_OUT | HELD_OUT_PAUSES else "tuned"
