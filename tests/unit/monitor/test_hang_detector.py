"""When is a job looked at, and which pauses are on purpose?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hung_ranks import NOW_NS, USER, S, died, distributed, on_device, process, rank, steps, waiting

from ddpprof import rundir
from ddpprof.errors import DdpprofError
from ddpprof.model.hang import Fault, Hint, Standstill, Verdict
from ddpprof.model.overdue import Frame, OverdueFacts, Wait
from ddpprof.model.pulse import Activity, Ended, PulseSteps, StepFlag
from ddpprof.monitor import pulse_files
from ddpprof.monitor.evidence import RankEvidence
from ddpprof.monitor.hang_detector import HangDetector, Overdue, overdue_limit_s
from ddpprof.monitor.position import position_of
from ddpprof.monitor.pulse_files import PulseHead
from ddpprof.topics.hang_words import standstill_line

COMPILER = Frame("/usr/lib/python3/site-packages/torch/_dynamo/convert_frame.py", 1, "_compile")
COMPILED = Frame("/usr/lib/python3/site-packages/torch/_dynamo/eval_frame.py", 1, "compile_wrapper")
CHECKPOINT = Frame("/usr/lib/python3/site-packages/torch/distributed/checkpoint/utils.py", 1, "all_reduce")
LOCK = Frame("/usr/lib/python3.11/threading.py", 1, "acquire")
PROGRAM = Frame("/usr/lib/python3.11/subprocess.py", 1, "_try_wait")
SELECTOR = Frame("/usr/lib/python3.11/selectors.py", 1, "select")
PDB = Frame("/usr/lib/python3.11/pdb.py", 1, "interaction")


def overdue(waited_s: float, usual_s: float | None = 0.1) -> Overdue:
    return Overdue(step=10, waited_s=waited_s, usual_s=usual_s)


class Job:
    """Stands for a run directory: its ranks, and the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ranks: RankEvidence, of: PulseSteps | None = None) -> None:
        self.now_ns = NOW_NS
        self.ranks = list(ranks)
        self.steps = of or steps()
        monkeypatch.setattr(rundir, "pulses_in", lambda _: range(len(self.ranks)))
        monkeypatch.setattr(pulse_files, "read_head", self.head)
        self.detector = HangDetector(Path("run"), lambda: self.now_ns)

    def head(self, _directory: Path, number: int, _num_steps: int) -> PulseHead:
        one = self.ranks[number]
        return PulseHead(one.identity, one.state, None, self.steps)


@pytest.mark.parametrize(
    ("usual_s", "allowed"),
    [(0.01, 5), (0.5, 5), (0.6, 6), (30, 300), (None, 30)],
)
def test_ten_times_the_usual_step_and_at_least_five_seconds(usual_s: float | None, allowed: float) -> None:
    assert overdue_limit_s(usual_s) == allowed


@pytest.mark.parametrize(("waited_s", "is_overdue"), [(4.9, False), (5.1, True)])
def test_a_step_is_overdue(waited_s: float, is_overdue: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, rank(0, since_s=20), rank(1, since_s=waited_s))
    assert (job.detector.look() is not None) is is_overdue


@pytest.mark.parametrize(("device", "waited_s"), [("cpu", 30), ("cuda", 120), (None, 120)])
def test_the_first_steps_take_longer(device: str | None, waited_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for since_s, is_overdue in ((waited_s - 1, False), (waited_s + 1, True)):
        one = rank(0, since_s=since_s)
        one = one if device is None else on_device(one, device)
        assert (Job(monkeypatch, one, of=steps(2)).detector.look() is not None) is is_overdue


AT_A_LOCK = replace(rank(0, USER, LOCK, since_s=700), process=process(wait=Wait.LOCK))
ASLEEP = rank(0, USER, since_s=700)


@pytest.mark.parametrize(
    ("other", "is_hang_after_s"),
    [
        pytest.param(AT_A_LOCK, 31, id="a-lock"),
        pytest.param(rank(0, USER, distributed("barrier"), since_s=700), 31, id="a-collective-of-one-rank"),
        pytest.param(ASLEEP, 121, id="may-be-slow-to-start"),
        pytest.param(waiting(0, since_s=700), 601, id="may-be-slow-to-connect"),
        pytest.param(replace(rank(0, USER, since_s=700, num_passes=1), computes=True), 601, id="computes"),
        pytest.param(replace(ASLEEP, computes=True), 10_001, id="computes-before-its-first-backward-pass"),
        pytest.param(replace(waiting(0, since_s=700), computes=True), 601, id="computes-in-the-backward-pass"),
        pytest.param(replace(ASLEEP, process=process(wait=Wait.NETWORK)), 601, id="waits-for-the-network"),
    ],
)
def test_a_hang_in_the_first_steps(
    other: RankEvidence, is_hang_after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [other, waiting(1, since_s=700)]
    monkeypatch.setattr("ddpprof.monitor.hang_detector.gather", lambda *_, **__: ranks)
    for waited_s in (31, 119, 121, 599, 601, 10_000):
        found = Job(monkeypatch).detector.diagnose(overdue(waited_s, usual_s=None))
        assert isinstance(found, Verdict) is (waited_s >= is_hang_after_s)


def test_a_job_that_never_begins_to_train_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may use its DDP module for nothing but an evaluation, or serve requests."""
    ranks = [rank(0, USER, since_s=5000), rank(1, USER, since_s=5000)]
    monkeypatch.setattr("ddpprof.monitor.hang_detector.gather", lambda *_, **__: ranks)
    assert isinstance(Job(monkeypatch).detector.diagnose(overdue(5000, usual_s=None)), Standstill)


def test_a_job_without_ddp_makes_progress_while_its_stacks_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranks may be seen in different collectives, as those of any job may."""
    for since_s, is_hang in ((5, False), (700, True)):
        moves = rank(0, USER, distributed("all_reduce"), since_s=since_s)
        ranks = [moves, rank(1, USER, distributed("barrier"), since_s=700)]
        monkeypatch.setattr("ddpprof.monitor.hang_detector.gather", lambda *_, ranks=ranks, **__: ranks)
        detector = Job(monkeypatch).detector
        for _ in range(5):
            assert isinstance(detector.diagnose(overdue(700, usual_s=None)), Verdict) is is_hang


def test_ranks_that_have_not_constructed_a_module_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = Frame("/site-packages/torch/nn/parallel/distributed.py", 900, "_verify_param_shape_across_processes")
    ranks = [rank(1, USER, shapes, since_s=700, step=0)]
    monkeypatch.setattr("ddpprof.monitor.hang_detector.gather", lambda *_, **__: ranks)
    found = Job(monkeypatch).detector.diagnose(overdue(40, usual_s=None))
    assert isinstance(found, Standstill)
    assert (found.absent, found.waiting, found.place) == ((0,), (1,), str(USER))
    assert standstill_line(found) == (
        f"rank 1 has waited at {USER} for 40 s. Rank 0 has not begun to construct a DistributedDataParallel module, "
        "or cannot run any Python code"
    )


def test_steps_with_checkpoints_are_not_the_usual_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary, saving = steps(20), steps(30, length_ns=30 * S, flags=StepFlag.SAVED)
    mixed = PulseSteps(
        *(np.concatenate([getattr(ordinary, name), getattr(saving, name)]) for name in PulseSteps.__slots__)
    )
    assert Job(monkeypatch, rank(0, since_s=6), of=mixed).detector.look() is not None


def test_a_job_that_has_ended_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Job(monkeypatch, rank(0, since_s=60, ended=Ended.FINISHED)).detector.look() is None
    assert Job(monkeypatch, rank(0, since_s=60, ended=Ended.UNWATCHED), rank(1, since_s=60)).detector.look() is None


def test_a_machine_that_slept_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, rank(0, since_s=0), rank(1, since_s=0))
    job.now_ns += 3600 * S
    assert job.detector.look(missed_s=3599) is None
    for _ in range(4):
        job.now_ns += S
        assert job.detector.look() is None
    job.now_ns += 2 * S
    assert job.detector.look() is not None


def test_a_machine_that_slept_during_a_look_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, rank(0, since_s=0), rank(1, since_s=0))

    def sleeps_first(directory: Path, number: int, num_steps: int) -> PulseHead:
        job.now_ns += 60 * S
        return job.head(directory, number, num_steps)

    monkeypatch.setattr(pulse_files, "read_head", sleeps_first)
    assert job.detector.look() is None
    monkeypatch.setattr(pulse_files, "read_head", job.head)
    assert job.detector.look() is None
    job.now_ns += 6 * S
    assert job.detector.look() is not None


def test_storage_that_is_slow_in_every_look_hides_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, rank(0, since_s=20))

    def is_slow(directory: Path, number: int, num_steps: int) -> PulseHead:
        job.now_ns += 8 * S
        return job.head(directory, number, num_steps)

    monkeypatch.setattr(pulse_files, "read_head", is_slow)
    assert [job.detector.look() is not None for _ in range(3)] == [False, False, True]


def test_a_hang_is_seen_though_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, rank(0, since_s=1), rank(1, since_s=1))
    assert job.detector.look() is None
    job.now_ns -= 3600 * S
    assert job.detector.look(missed_s=3600) is None
    job.now_ns += 6 * S
    assert job.detector.look() is not None


def test_the_rest_of_a_step_is_waited_for_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, waiting(1), saving := rank(0, USER, activity=Activity.SAVE, since_s=20))
    found = job.detector.look()
    assert found is not None
    assert job.detector.standstill([saving], found)
    job.now_ns += 2 * S
    assert job.detector.look() is None
    job.now_ns += S
    assert job.detector.look() is not None


def test_a_rank_that_has_just_moved_on_ends_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A save of 10 s has just ended, and the forward has begun: nobody hangs, unless that happens again and again."""
    moves = rank(0, USER, activity=Activity.FORWARD, since_s=0.1)
    detector = Job(monkeypatch).detector
    seen = [detector.standstill([waiting(1), moves], overdue(10)) is not None for _ in range(4)]
    assert seen == [True, True, True, False]
    slow = rank(0, USER, activity=Activity.FORWARD, since_s=40)
    assert Job(monkeypatch).detector.standstill([waiting(1), slow], overdue(400, usual_s=30))


def test_a_job_that_goes_on_while_it_is_examined_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    held = (rank(0, USER, since_s=20), waiting(1))
    gone_on = (rank(0, USER, since_s=0, step=11), waiting(1))
    ended = tuple(rank(number, USER, step=11, ended=Ended.FINISHED) for number in range(2))
    for later, is_hang in ((held, True), (gone_on, False), (ended, False)):
        seen = iter((held, later))
        monkeypatch.setattr("ddpprof.monitor.hang_detector.gather", lambda *_, seen=seen, **__: next(seen))
        assert isinstance(Job(monkeypatch).detector.diagnose(overdue(20)), Verdict) is is_hang


@pytest.mark.parametrize(
    ("one", "until_s"),
    [
        pytest.param(rank(0, USER), 0, id="sleeps"),
        pytest.param(rank(0, USER, activity=Activity.SAVE), 600, id="saves"),
        pytest.param(rank(0, USER, activity=Activity.EVALUATION), 600, id="evaluates"),
        pytest.param(rank(0, USER, CHECKPOINT, USER), 600, id="writes-its-part-of-a-checkpoint"),
        pytest.param(rank(0, USER, CHECKPOINT, distributed("barrier")), 0, id="awaits-others-in-a-checkpoint"),
        pytest.param(rank(0, USER, COMPILER, activity=Activity.FORWARD), 600, id="compiles-the-forward"),
        pytest.param(rank(0, USER, COMPILER, LOCK, activity=Activity.BACKWARD), 600, id="compiles-the-backward"),
        pytest.param(rank(0, USER, COMPILED, activity=Activity.FORWARD), 0, id="runs-compiled-code"),
        pytest.param(rank(0, USER, activity=Activity.DATA), 0, id="waits-for-data"),
        pytest.param(rank(0, USER, activity=Activity.DATA, flags=StepFlag.BEGAN_EPOCH), 120, id="first-batch"),
        pytest.param(
            replace(rank(0, USER, activity=Activity.DATA), helpers_compute=True), 120, id="workers-compute-a-batch"
        ),
        pytest.param(
            replace(rank(0, USER, LOCK), facts=OverdueFacts(saves_in_thread=True)), 600, id="joins-a-thread-that-saves"
        ),
        pytest.param(replace(rank(0, USER), computes=True), 120, id="computes"),
        pytest.param(replace(rank(0, USER, flags=StepFlag.EVALUATED), computes=True), 600, id="evaluates-without-ddp"),
        pytest.param(replace(rank(0, USER, LOCK), helpers_compute=True), 120, id="awaits-what-computes"),
        pytest.param(replace(rank(0, distributed("barrier")), helpers_compute=True), 0, id="in-a-barrier-beside-it"),
        pytest.param(replace(rank(0), helpers_compute=True), 0, id="stands-nobody-knows-where-beside-what-computes"),
        pytest.param(replace(rank(0, USER), moves_data=True), 120, id="writes-a-file"),
        pytest.param(replace(rank(0, USER, PROGRAM), workers=(process(),)), 120, id="awaits-a-program"),
        pytest.param(rank(0, USER, PROGRAM), 0, id="awaits-a-program-that-is-gone"),
        pytest.param(
            replace(rank(0, USER), facts=OverdueFacts(wait=Wait.PROCESS), workers=(process(),)), 120, id="in-os-system"
        ),
        pytest.param(
            replace(rank(0, USER, LOCK), facts=OverdueFacts(wait=Wait.PROCESS), workers=(process(),)), 0, id="joins"
        ),
        pytest.param(
            replace(rank(0, USER, PROGRAM, PROGRAM, PROGRAM, SELECTOR), workers=(process(),)),
            120,
            id="reads-output",
        ),
        pytest.param(
            replace(rank(0, PROGRAM, USER, USER, USER, LOCK), workers=(process(),)), 0, id="called-by-subprocess"
        ),
        pytest.param(replace(rank(0, USER, LOCK), workers=(process(),)), 0, id="awaits-a-lock"),
        pytest.param(rank(0, USER, evaluates=True), 600, id="evaluates-in-evaluation-mode"),
        pytest.param(rank(0, USER, LOCK, evaluates=True), 0, id="awaits-a-lock-in-evaluation-mode"),
        pytest.param(rank(0, USER, distributed("barrier"), evaluates=True), 0, id="awaits-others-in-evaluation-mode"),
        pytest.param(
            replace(rank(0, USER, distributed("barrier"), evaluates=True), computes=True), 120, id="spins-in-a-barrier"
        ),
        pytest.param(replace(rank(0, USER, evaluates=True), computes=True), 600, id="computes-in-evaluation-mode"),
        pytest.param(rank(0, evaluates=True), 0, id="stands-nobody-knows-where-in-evaluation-mode"),
        pytest.param(on_device(rank(0, USER, evaluates=True)), 0, id="may-await-its-accelerator"),
        pytest.param(replace(rank(0, USER), computes=True, is_swapping=True), 0, id="swaps"),
        pytest.param(replace(rank(0, USER, activity=Activity.SAVE), is_swapping=True), 600, id="swaps-as-it-saves"),
        pytest.param(died(rank(0, activity=Activity.SAVE)), 0, id="dead"),
        pytest.param(replace(rank(0, activity=Activity.SAVE), process=process("T")), 0, id="stopped"),
        pytest.param(rank(0, activity=Activity.SAVE, tick_ns=0), 600, id="saves-in-c"),
        pytest.param(rank(0, activity=Activity.EVALUATION, tick_ns=0), 0, id="silent"),
    ],
)
def test_what_jobs_pause_for(one: RankEvidence, until_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = Job(monkeypatch).detector
    assert detector.standstill([waiting(1), one], overdue(until_s + 1)) is None
    if until_s:
        assert detector.standstill([waiting(1), one], overdue(until_s - 1)) is not None


@pytest.mark.parametrize(
    ("ranks", "until_s"),
    [
        pytest.param((rank(0, USER), rank(1, USER, LOCK)), 60, id="in-their-own-code"),
        pytest.param((rank(0, USER), rank(1, distributed("barrier"))), 0, id="one-waits"),
        pytest.param((rank(0, USER), rank(1)), 0, id="one-stands-nobody-knows-where"),
        pytest.param((rank(0, USER), replace(rank(1, USER), process=process("T"))), 0, id="one-is-stopped"),
        pytest.param((rank(0, USER),), 0, id="one-is-elsewhere"),
        pytest.param((rank(0, USER), on_device(rank(1, USER))), 0, id="one-may-await-its-accelerator"),
    ],
)
def test_ranks_none_of_which_waits_for_another(
    ranks: tuple[RankEvidence, ...], until_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = Job(monkeypatch).detector
    ranks = tuple(on_device(one, one.identity.device or "cpu") for one in ranks)
    assert detector.standstill(ranks, overdue(until_s + 1)) is None
    if until_s:
        assert detector.standstill(ranks, overdue(until_s - 1)) is not None


def test_a_job_that_somebody_debugs_pauses_on_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch)
    for _ in range(3):
        assert job.detector.standstill([waiting(1), rank(0, USER, PDB)], overdue(1e6))
        job.now_ns += 3600 * S


def test_workers_that_read_the_first_batch_are_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch)
    loading = rank(0, activity=Activity.DATA, flags=StepFlag.BEGAN_EPOCH)
    for number in range(3):
        worker = process(moved_bytes=number)
        assert job.detector.standstill([replace(loading, workers=(worker,))], overdue(100))
        job.now_ns += 40 * S


def test_a_rank_that_saves_and_does_nothing_does_not_save(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch)
    saving = rank(0, activity=Activity.SAVE)
    assert job.detector.standstill([saving], overdue(10))
    job.now_ns += 61 * S
    assert not job.detector.standstill([saving], overdue(71))
    busy = replace(saving, process=process(moved_bytes=1000))
    assert job.detector.standstill([busy], overdue(71))


def test_a_rank_that_asks_for_its_first_batch_again_and_again_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker stands still; a `DataLoader` looks every 5 s whether it is alive."""
    job = Job(monkeypatch)
    loading = rank(0, activity=Activity.DATA, flags=StepFlag.BEGAN_EPOCH)
    seen = []
    for number in range(8):
        one = replace(loading, process=process(main_thread_cpu_s=5.05 + 0.005 * number))
        seen.append(job.detector.standstill([one, waiting(1)], overdue(6 + 10 * number)) is not None)
        job.now_ns += 10 * S
    assert seen == [True] * 6 + [False] * 2


def test_a_rank_that_only_begins_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pulse has no content yet."""
    job = Job(monkeypatch, rank(0, since_s=20), rank(1, since_s=20))

    def head(directory: Path, number: int, num_steps: int) -> PulseHead:
        if number == 1:
            raise DdpprofError("rank-1.pulse cannot be read: it is truncated.")
        return job.head(directory, number, num_steps)

    monkeypatch.setattr(pulse_files, "read_head", head)
    overdue = job.detector.look()
    assert overdue is not None
    assert overdue.waited_s == 20


SYNC = Frame("/usr/lib/python3/site-packages/torch/nn/parallel/distributed.py", 1, "_sync_buffers")


def evaluating(number: int, *stack: Frame, since_s: float = 10) -> RankEvidence:
    state = {"activity": Activity.EVALUATION, "flags": StepFlag.EVALUATED}
    return rank(number, USER, *stack, since_s=since_s, **state)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(rank(1, USER, distributed("barrier")), id="at-a-barrier"),
        pytest.param(waiting(1), id="in-a-backward-pass"),
        pytest.param(rank(1, ended=Ended.FINISHED), id="has-finished"),
        pytest.param(died(rank(1)), id="has-died"),
    ],
)
def test_an_evaluation_that_waits_for_ranks_outside_of_it_is_no_pause(
    other: RankEvidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not Job(monkeypatch).detector.standstill([evaluating(0, SYNC), other], overdue(8))
    just_begun = evaluating(0, SYNC, since_s=1)
    assert Job(monkeypatch).detector.standstill([just_begun, other], overdue(8))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(evaluating(1, SYNC), id="in-the-same-broadcast"),
        pytest.param(evaluating(1), id="in-its-forward"),
        pytest.param(rank(1, USER, since_s=1, flags=StepFlag.EVALUATED), id="between-two-forwards"),
        pytest.param(rank(1, USER, activity=Activity.DATA, flags=StepFlag.EVALUATED), id="waits-for-a-batch"),
    ],
)
def test_ranks_that_all_evaluate_with_ddp_pause(other: RankEvidence, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Job(monkeypatch).detector.standstill([evaluating(0, SYNC), other], overdue(8))


@pytest.mark.parametrize("waited_s", [8, 700])
def test_an_evaluation_of_all_ranks_may_make_as_many_forwards_as_it_likes(
    waited_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = Job(monkeypatch).detector
    ranks = [evaluating(number, SYNC, since_s=0) for number in range(2)]
    assert all(detector.standstill(ranks, overdue(waited_s)) for _ in range(9))


def waits_for(wait: Wait, *stack: Frame, **state: int) -> RankEvidence:
    return replace(rank(0, USER, *stack, **state), facts=OverdueFacts(wait=wait))


SOCKET = Frame("/usr/lib/python3.11/socket.py", 700, "readinto")


@pytest.mark.parametrize(
    ("one", "until_s", "what"),
    [
        pytest.param(waits_for(Wait.NETWORK), 120, "the network", id="network"),
        pytest.param(waits_for(Wait.EVENTS, SOCKET), 120, "the network", id="network-with-a-timeout"),
        pytest.param(replace(waits_for(Wait.FILE), process=process("D")), 120, "a file", id="os-fsync"),
        pytest.param(waits_for(Wait.INPUT), 120, "input from the terminal", id="input"),
        pytest.param(
            waits_for(Wait.FOREIGN_LOCK), 120, "a file lock that another program holds", id="lock-of-another-job"
        ),
        pytest.param(waits_for(Wait.PIPE, evaluates=True), 60, "a pipe to another program", id="pipe-in-an-evaluation"),
        pytest.param(waits_for(Wait.SLEEP), 0, None, id="sleeps"),
        pytest.param(waits_for(Wait.EVENTS, SELECTOR), 0, None, id="waits-for-events-of-a-loop"),
        pytest.param(waits_for(Wait.NETWORK, distributed("barrier")), 0, None, id="in-a-collective"),
        pytest.param(waits_for(Wait.NETWORK, tick_ns=0), 0, None, id="silent"),
    ],
)
def test_what_ranks_wait_for_outside_the_job(
    one: RankEvidence, until_s: float, what: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = Job(monkeypatch).detector
    assert detector.standstill([waiting(1), one], overdue(until_s + 1)) is None
    found = Job(monkeypatch).detector.standstill([waiting(1), one], overdue(max(0, until_s - 1)))
    if what is None:
        assert found is None
    else:
        assert found is not None
        assert (found.rank, found.waits_for, found.waiting) == (0, what, (1,))
        assert (found.place, found.hangs_after_s) == (str(USER), until_s)


@pytest.mark.parametrize(
    ("script", "error", "until_s"),
    [
        pytest.param("while not shard.exists():\n    time.sleep(1)", None, 60, id="in-a-while-loop"),
        pytest.param("for step in range(100):\n    time.sleep(1000)", None, 0, id="in-a-for-loop"),
        pytest.param("for wait_s in (1, 2, 4, 8):\n    time.sleep(wait_s)", "OSError: no route", 60, id="tries-again"),
        pytest.param("if failed:\n    time.sleep(1000)", "OSError: no route", 0, id="after-an-error"),
    ],
)
def test_a_rank_that_tries_something_again_and_again(
    script: str, error: str | None, until_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    sleeps = Frame(str(tmp_path / "train.py"), 2, "<module>")
    place = None if error is None else str(sleeps)
    one = replace(rank(0, sleeps), facts=OverdueFacts(wait=Wait.SLEEP, error=error, error_place=place))
    detector = Job(monkeypatch).detector
    assert detector.standstill([waiting(1), one], overdue(until_s + 6)) is None
    found = detector.standstill([waiting(1), one], overdue(50))
    assert (None if found is None else (found.waits_for, found.hangs_after_s)) == (
        ("its next try, sleeping in a loop", until_s) if until_s else None
    )
    polls = until_s > 0 and error is None
    assert position_of(one).hint is (Hint.WAITS_OUTSIDE if polls else None), "which --kill-after never ends"


def test_it_is_said_that_somebody_debugs_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Job(monkeypatch).detector.standstill([waiting(1), rank(0, USER, PDB)], overdue(20))
    assert found is not None
    assert (found.waits_for, found.hangs_after_s) == ("user input in a debugger", None)


def told(waited_s: float, resumed: bool, place: Frame = USER) -> Verdict:
    """Return a verdict that rank 0 held the job up, which has gone on since or still hangs."""
    begun = NOW_NS - 100 * S
    ended = begun + int(waited_s * S) if resumed else None
    return Verdict(
        Fault.OWN_CODE, rank=0, place=str(place), since_unix_ns=begun, at_unix_ns=NOW_NS, resumed_unix_ns=ended
    )


@pytest.mark.parametrize(
    ("before", "waited_s", "pauses"),
    [
        pytest.param(told(9, resumed=True), 17, True, id="less-than-twice-as-long"),
        pytest.param(told(9, resumed=True), 19, False, id="longer"),
        pytest.param(told(9, resumed=True, place=Frame("/home/me/train.py", 99, "f")), 17, False, id="another-line"),
        pytest.param(told(9, resumed=False), 17, False, id="it-did-not-go-on"),
    ],
)
def test_a_pause_like_one_that_ended(
    before: Verdict, waited_s: float, pauses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Job(monkeypatch).detector.standstill([waiting(1), rank(0, USER)], overdue(waited_s), before)
    assert (found is not None) is pauses


def test_a_step_that_was_said_to_hang_still_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks anew does not know since when the rank has been idle."""
    ranks = (waits_for(Wait.PIPE, since_s=20), waiting(1))
    monkeypatch.setattr("ddpprof.monitor.hang_detector.gather", lambda *_, **__: ranks)
    for before, is_hang in ((told(9, resumed=False), True), (told(9, resumed=True), False), (None, False)):
        monkeypatch.setattr("ddpprof.monitor.hang_detector.read_verdict", lambda _, before=before: before)
        assert isinstance(Job(monkeypatch).detector.diagnose(overdue(20)), Verdict) is is_hang


def test_a_rank_that_is_seen_to_compute_only_at_the_second_look_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it may have no core as it is looked at first."""
    sleeps, computes = rank(0, USER, since_s=20), replace(rank(0, USER, since_s=20), computes=True)
    for second, is_hang in ((computes, False), (sleeps, True)):
        seen = iter(((sleeps, waiting(1)), (second, waiting(1))))
        monkeypatch.setattr("ddpprof.monitor.hang_detector.gather", lambda *_, seen=seen, **__: next(seen))
        assert isinstance(Job(monkeypatch).detector.diagnose(overdue(20)), Verdict) is is_hang


@pytest.mark.parametrize(("passes", "is_pause"), [(11, True), (10, False)])
def test_what_a_rank_does_after_the_training_of_all_holds_nobody_up(
    passes: int, is_pause: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at again after a minute."""
    ranks = [rank(0, USER, LOCK, num_passes=passes), rank(1, num_passes=11, ended=Ended.FINISHED)]
    ranks = [on_device(one, "cpu") for one in ranks]
    detector = Job(monkeypatch).detector
    assert (detector.standstill(ranks, overdue(30)) is not None) is is_pause
    assert detector.standstill(ranks, overdue(70)) is None
