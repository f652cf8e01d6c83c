"""The thread of the launcher that looks at a job: when it looks, and what it says."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs
from processes import wait_until
from pulse_files import MS, MadeStep, write_pulse

from ddpprof.model.hang import Fault, Hint, Standstill, Verdict
from ddpprof.model.pulse import Ended
from ddpprof.model.whole_run import SlowdownCause, Slowdowns, StepSlowdown
from ddpprof.monitor import looks, run_watch
from ddpprof.monitor.hang_detector import Overdue
from ddpprof.monitor.looks import EndLook, GrowthLook, HangLook, LossLook, SlowdownLook
from ddpprof.monitor.pulse_files import write_slowdowns
from ddpprof.monitor.run_watch import RunWatch


class Noting:
    """A look that notes by how much the time has gone on unseen; after the first one, somebody sets the clock."""

    every_s = 0.1

    def __init__(self, set_clock: Callable[[], None]) -> None:
        self.missed_s: list[float] = []
        self._set_clock = set_clock

    def at(self, _directory: Path, missed_s: float, is_over: bool) -> None:
        if is_over:
            return
        self.missed_s.append(missed_s)
        if len(self.missed_s) == 1:
            self._set_clock()


class Slow:
    """A look that takes a minute, each time or only once."""

    every_s = 0.1

    def __init__(self, monkeypatch: pytest.MonkeyPatch, always: bool) -> None:
        self._lasted_s, self._always = 0.0, always
        time_of_day, clock = time.time, time.clock_gettime
        monkeypatch.setattr(time, "time", lambda: time_of_day() + self._lasted_s)
        monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + self._lasted_s)

    def at(self, _directory: Path, _missed_s: float, is_over: bool) -> None:
        if not is_over and (self._always or not self._lasted_s):
            self._lasted_s += 60


@pytest.mark.parametrize(
    "always", [pytest.param(False, id="the-machine-slept-meanwhile"), pytest.param(True, id="storage-is-slow")]
)
def test_no_time_is_missed_because_another_look_takes_long_again_and_again(
    always: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    look = Noting(lambda: None)
    slow = Slow(monkeypatch, always)
    monkeypatch.setattr(run_watch, "_FIRST_LOOK_S", 0.0)
    monkeypatch.setattr(RunWatch, "_directory", lambda _: tmp_path)
    monkeypatch.setattr(RunWatch, "_looks", lambda _: (look, slow))
    watch = RunWatch(tmp_path, pytest.fail, kill_after_s=None)
    watch.start()
    wait_until(lambda: len(look.missed_s) >= 5, "five looks")
    watch.end()
    assert [round(missed_s, -1) for missed_s in look.missed_s[:5]] == [0, 60, 0, 0, 0]


@pytest.mark.parametrize("by_s", [3600, -3600])
def test_a_clock_that_is_set_is_noticed(by_s: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = time.time
    look = Noting(lambda: monkeypatch.setattr(time, "time", lambda: now() + by_s))
    monkeypatch.setattr(run_watch, "_FIRST_LOOK_S", 0.0)
    monkeypatch.setattr(RunWatch, "_directory", lambda _: tmp_path)
    monkeypatch.setattr(RunWatch, "_looks", lambda _: (look,))
    watch = RunWatch(tmp_path, pytest.fail, kill_after_s=None)
    watch.start()
    wait_until(lambda: len(look.missed_s) >= 3, "three looks")
    watch.end()
    assert [round(missed_s, -2) for missed_s in look.missed_s[:3]] == [0, 3600, 0]


class Failing:
    """A look that fails a number of times, as on a network's disk that is gone for a while."""

    every_s = 0.01

    def __init__(self, num_failures: int) -> None:
        self.num_looks, self._num_failures = 0, num_failures

    def at(self, _directory: Path, _missed_s: float, is_over: bool) -> None:
        if is_over:
            return
        self.num_looks += 1
        if self.num_looks <= self._num_failures:
            raise OSError("stale file handle")


@pytest.mark.parametrize("num_failures", [pytest.param(2, id="for-a-moment"), pytest.param(10**6, id="for-good")])
def test_a_disk_that_fails(num_failures: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another look, which works, hides no failures."""
    (tmp_path / "run.json").write_text("{}")
    look, said = Failing(num_failures), list[str]()
    monkeypatch.setattr(run_watch, "_FIRST_LOOK_S", 0.1)
    monkeypatch.setattr(run_watch, "_MOST_FAILURES", 5)
    monkeypatch.setattr(RunWatch, "_looks", lambda _watch: (look, Failing(0)))
    watch = RunWatch(tmp_path, said.append, None)
    watch.start()
    wait_until(lambda: look.num_looks > 6 or bool(said), "it goes on, or gives up")
    watch.end()
    assert said == ([] if num_failures == 2 else ["stopped watching the job: stale file handle"])


DIED = Verdict(Fault.DIED, rank=1, has_failed=True)


class Detector:
    """Looks at a job whose step 20 is overdue for so long, for this reason."""

    waited_s = 0.0

    def __init__(self, verdict: Verdict | Standstill) -> None:
        self._verdict = verdict

    def look(self, _missed_s: float) -> Overdue:
        return Overdue(20, self.waited_s, 0.1)

    def diagnose(self, _overdue: Overdue) -> Verdict | Standstill:
        return self._verdict


@pytest.mark.parametrize(
    ("verdict", "is_one_left", "silent_at_s", "told_at_s"),
    [
        pytest.param(Verdict(Fault.LOADER, rank=1), True, [], 6, id="hangs"),
        pytest.param(DIED, True, [6, 29], 31, id="launcher-may-end-the-others"),
        pytest.param(DIED, False, [6, 31, 599], 601, id="launcher-may-start-all-anew"),
    ],
)
def test_when_a_verdict_is_told(
    verdict: Verdict,
    is_one_left: bool,
    silent_at_s: list[float],
    told_at_s: float,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    write_pulse(tmp_path, 0, ended=Ended.FAILED)
    write_pulse(tmp_path, 1)
    write_pulse(tmp_path, 2, tick_ns=time.time_ns() if is_one_left else 0)
    said: list[str] = []
    detector = Detector(verdict)
    monkeypatch.setattr(looks, "HangDetector", lambda _: detector)
    look = HangLook(said.append, None, dumps_stacks=False)
    for detector.waited_s in silent_at_s:
        look.at(tmp_path, 0.0, is_over=False)
        assert said == []
    detector.waited_s = told_at_s
    look.at(tmp_path, 0.0, is_over=False)
    num_said = len(said)
    assert said[0].startswith("The job ")
    look.at(tmp_path, 0.0, is_over=False)
    assert len(said) == num_said, "once"


def test_the_same_hang_of_the_next_attempt_is_told_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    detector = Detector(Verdict(Fault.LOADER, rank=1))
    detector.waited_s = 6
    monkeypatch.setattr(looks, "HangDetector", lambda _: detector)
    look = HangLook(said.append, 0.0, dumps_stacks=False)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a job that has only begun to hang is not ended"))
    for attempt in ("attempt-0", "attempt-1"):
        (tmp_path / attempt).mkdir()
        look.at(tmp_path / attempt, 0.0, is_over=False)
        assert (tmp_path / attempt / "hang.json").exists()
    assert len([line for line in said if line.startswith("The job hangs")]) == 2


WAITS = Standstill(6.4, rank=1, step=20, waits_for="the network", place="up.py:3 in f", waiting=(0,), hangs_after_s=120)
SAID = (
    "rank 1 has waited for the network at up.py:3 in f for 6 s; rank 0 waits for it. ddpprof reports this as a hang "
    "only after 120 s"
)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(
            WAITS,
            [SAID],
            id="outside-the-job",
        ),
        pytest.param(structs.replace(WAITS, waiting=()), [], id="nobody-waits"),
        pytest.param(structs.replace(WAITS, waits_for=None), [], id="it-computes"),
    ],
)
def test_a_wait_outside_the_job_is_told_once_for_each_line(
    found: Standstill, said: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_pulse(tmp_path, 0)
    monkeypatch.setattr(looks, "HangDetector", lambda _: Detector(found))
    heard: list[str] = []
    look = HangLook(heard.append, 0.0, dumps_stacks=False)
    for _ in range(2):
        look.at(tmp_path, 0.0, is_over=False)
    assert heard == said
    assert not (tmp_path / "hang.json").exists()


@pytest.mark.parametrize(
    ("fault", "hint", "num_killed"),
    [
        (Fault.OWN_CODE, None, 1),
        (Fault.OWN_CODE, Hint.WAITS_OUTSIDE, 0),
        (Fault.OWN_CODE, Hint.WAITS_FOR_INPUT, 0),
        (Fault.MISSING_COLLECTIVE, Hint.SKIPPED_COLLECTIVE, 1),
        (Fault.DOES_NOT_EXIT, None, 0),
    ],
)
def test_a_job_that_waits_for_something_outside_or_whose_training_is_over_is_never_ended(
    fault: Fault, hint: Hint | None, num_killed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_pulse(tmp_path, 0)
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda *_: killed.append(1))
    monkeypatch.setattr(looks, "HangDetector", lambda _: Detector(Verdict(fault, rank=1, hint=hint)))
    look = HangLook(lambda _: None, 0.0, dumps_stacks=False)
    for _ in range(3):
        look.at(tmp_path, 0.0, is_over=False)
    assert len(killed) == num_killed


def test_a_long_start_is_told_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    monkeypatch.setattr(run_watch, "_FIRST_LOOK_S", 0.0)
    monkeypatch.setattr("ddpprof.model.hang.LONG_START_S", 0.3)
    monkeypatch.setattr("ddpprof.monitor.processes.LONG_START_S", 0.0)
    watch = RunWatch(tmp_path, said.append, kill_after_s=None)
    watch.start()
    wait_until(lambda: bool(said), "the line")
    time.sleep(0.3)
    watch.end()
    (line,) = said
    assert line.startswith("no rank has begun to train within ")


def test_unequal_passes_of_a_job_that_its_user_ended_are_meant(tmp_path: Path) -> None:
    """`mp.spawn` catches the `KeyboardInterrupt` of its processes, which then end as if they had finished."""
    said: list[str] = []
    for rank, num_passes in ((0, 216), (1, 215)):
        write_pulse(tmp_path, rank, [MadeStep()] * 9, ended=Ended.FINISHED, num_passes=num_passes)
    for how in ('"exit_code": -2, "interrupted": true', '"exit_code": 1'):
        (tmp_path / "exits.jsonl").write_text(f'{{{how}, "is_job": true}}\n')
        EndLook(said.append).at(tmp_path, 0.0, is_over=True)
    assert said == []


def test_why_an_attempt_failed_that_was_started_again_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpprof.monitor.evidence._LOOK_AGAIN_S", 0.0)
    said: list[str] = []
    look, later = HangLook(said.append, None, dumps_stacks=False), tmp_path / "attempt-1"
    later.mkdir()
    now_ns = time.time_ns()
    for folder, ended in ((tmp_path, Ended.FAILED), (later, Ended.NOT_YET)):
        for rank in range(2):
            write_pulse(folder, rank, [MadeStep()] * 9, ended=ended, step_since_ns=now_ns)
        look.at(folder, 0.0, is_over=False)
    assert said[0] == "the launcher has restarted the ranks. This is why the earlier attempt ended:"
    assert said[1].startswith("The job failed at step ")


def test_ranks_that_end_after_different_numbers_of_passes_are_told_at_the_end(tmp_path: Path) -> None:
    said: list[str] = []
    look = EndLook(said.append)
    for rank, num_passes in ((0, 216), (1, 215)):
        write_pulse(tmp_path, rank, [MadeStep()] * 9, ended=Ended.FINISHED, num_passes=num_passes)
    look.at(tmp_path, 0.0, is_over=False)
    assert said == []
    look.at(tmp_path, 0.0, is_over=True)
    (line,) = said
    assert line.startswith(
        "Training ended without an error, but rank 1 ran 1 backward pass fewer than rank 0: rank 1 began 215 backward "
        "passes, and rank 0 began 216. Check whether the script catches an exception"
    )


BEGAN = "The loss has been NaN or infinite, first in step 5 on rank 1"
AT_THE_END = "The loss was NaN or infinite in 3 steps, first in step 5 on rank 1"


@pytest.fixture
def loss_look() -> tuple[LossLook, list[str]]:
    said: list[str] = []
    return LossLook(said.append), said


def train(folder: Path, num_steps: int, is_nan: bool = True) -> None:
    """Let two ranks have trained so many steps; the loss of rank 1 is NaN in step 5, and that of rank 0 in the next."""
    for rank, first in ((0, 6), (1, 5)):
        seen = {"nonfinite_step": first, "num_nonfinite": 3, "finite_step": first - 1} if is_nan else {}
        write_pulse(folder, rank, [MadeStep()] * num_steps, first_step=0, **seen)


def test_a_loss_is_told_once_the_other_ranks_had_a_step_to_follow(
    loss_look: tuple[LossLook, list[str]], tmp_path: Path
) -> None:
    look, said = loss_look
    train(tmp_path, 6)
    look.at(tmp_path, 0.0, is_over=False)
    assert said == []
    train(tmp_path, 7)
    look.at(tmp_path, 0.0, is_over=False)
    assert said == [], "ranks need a moment to tell their learning rates"
    for _ in range(2):
        look.at(tmp_path, 0.0, is_over=False)
    look.at(tmp_path, 0.0, is_over=True)
    (line,) = said
    assert line.startswith(f"{BEGAN}: the other rank followed in step 6, after DDP had averaged the gradients. Check")


def test_a_loss_is_told_at_the_end_and_in_each_attempt(loss_look: tuple[LossLook, list[str]], tmp_path: Path) -> None:
    look, said = loss_look
    for folder in (tmp_path / "first", tmp_path / "second"):
        train(folder, 6)
        look.at(folder, 0.0, is_over=True)
    assert [line.split(":")[0] for line in said] == [AT_THE_END] * 2
    train(tmp_path / "third", 20, is_nan=False)
    look.at(tmp_path / "third", 0.0, is_over=True)
    assert len(said) == 2


S = 10**9
RISE = (
    "since step 100, steps take 50% longer, 10.0 → 15.0 ms: all ranks wait longer in collectives, and no rank's own "
    "work takes longer"
)


def slow(
    began_s: float, ended_s: float | None = None, after_ns: int = 15_000_000, first_step: int = 100
) -> StepSlowdown:
    return StepSlowdown(
        first_step=first_step, last_step=None if ended_s is None else first_step + 99,
        before_ns=10_000_000, after_ns=after_ns, num_steps=100, began_ns=int(began_s * S),
        ended_ns=None if ended_s is None else int(ended_s * S), cause=SlowdownCause.LINK, ranks=(),
    )  # fmt: skip


class Watched:
    """A job whose slowdowns are known at each moment."""

    def __init__(self) -> None:
        self.slowdowns: list[StepSlowdown] = []

    def update(self, _pulses: object) -> None:
        pass


class Launcher:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.said: list[str] = []
        self.job = Watched()
        self._monkeypatch, self._folder = monkeypatch, tmp_path
        self._look = SlowdownLook(self.said.append)
        monkeypatch.setattr(looks, "read_pulses", lambda _: {})
        monkeypatch.setattr(looks, "SlowdownWatch", lambda: self.job)

    def looks(self, at_s: float, *found: StepSlowdown) -> list[str]:
        """Return what it says when it looks at this time, and these slowdowns are known."""
        self.job.slowdowns = list(found)
        self._monkeypatch.setattr(time, "time_ns", lambda: int(at_s * S))
        self.said.clear()
        self._look.at(self._folder, 0.0, is_over=False)
        return [line.replace(f" ({time.strftime('%H:%M:%S', time.localtime(1000))})", "") for line in self.said]


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Launcher:
    return Launcher(monkeypatch, tmp_path)


def test_a_slow_down_is_told_once_it_has_lasted_and_when_it_is_over(launcher: Launcher) -> None:
    assert launcher.looks(1010, slow(1000)) == []
    assert launcher.looks(1021, slow(1000)) == [RISE]
    assert launcher.looks(1023, slow(1000)) == []
    over = "from step 200 on, steps take as long as before the slowdown"
    assert launcher.looks(1090, slow(1000, ended_s=1088)) == [over]
    assert launcher.looks(1092, slow(1000, ended_s=1088)) == []


def test_a_short_or_a_small_one_is_not_told(launcher: Launcher) -> None:
    assert launcher.looks(1012, slow(1000)) == []
    assert launcher.looks(1060, slow(1000, ended_s=1015)) == []
    assert launcher.looks(1120, slow(1000, ended_s=1015), slow(1070, after_ns=10_900_000, first_step=200)) == []
    assert launcher.looks(1120, slow(1000, ended_s=1015), slow(1015, after_ns=10_900_000, first_step=200)) == []


def test_the_end_is_not_told_if_another_one_follows(launcher: Launcher) -> None:
    assert launcher.looks(1021, slow(1000)) == [RISE]
    assert launcher.looks(1090, slow(1000, ended_s=1088), slow(1088, after_ns=20_000_000, first_step=200)) == []


def test_slow_downs_that_follow_each_other_are_one(launcher: Launcher) -> None:
    """A busy machine changes by how much steps are longer, every few seconds."""
    first, second = slow(1000, ended_s=1012), slow(1012, after_ns=14_000_000, first_step=200)
    assert launcher.looks(1015, first, second) == []
    (told,) = launcher.looks(1021, first, second)
    assert told.startswith("since step 200")
    worse = slow(1030, after_ns=30_000_000, first_step=300)
    second = slow(1012, ended_s=1030, after_ns=14_000_000, first_step=200)
    assert launcher.looks(1031, first, second, worse) == []
    (told,) = launcher.looks(1051, first, second, worse)
    assert "200% longer" in told
    over = slow(1030, ended_s=1060, after_ns=30_000_000, first_step=300)
    assert launcher.looks(1061, first, second, over) == ["from step 400 on, steps take as long as before the slowdown"]
    assert launcher.looks(1063, first, second, over) == []


def test_a_slow_down_of_which_it_spoke_may_turn_out_to_have_been_none(launcher: Launcher) -> None:
    assert launcher.looks(1021, slow(1000)) == [RISE]
    withdrawn = "the step times from step 100 on turned out to be within the normal range of this job"
    assert launcher.looks(1400) == [withdrawn]
    assert launcher.looks(1402) == []


def test_there_is_an_end_to_what_it_says(launcher: Launcher) -> None:
    assert len(launcher.looks(9000, *(slow(1000, ended_s=1030, first_step=200 * number) for number in range(50)))) == 20


def test_growing_steps_are_told_when_their_length_doubles(tmp_path: Path) -> None:
    said: list[str] = []
    look = GrowthLook(said.append)
    for num_steps in (200, 300, 1200, 1210):
        write_pulse(tmp_path, 0, [MadeStep(ms=100 + step / 2, data_ms=step / 2) for step in range(num_steps)])
        look.at(tmp_path, 0.0, is_over=False)
    assert said == [
        "Steps become longer and longer: 104 ms at the start, 246 ms now, mostly because of waiting for data (+142 ms)",
        "Steps become longer and longer: 114 ms at the start, 684 ms now, mostly because of waiting for data (+570 ms)",
    ]


def told_of(folder: Path, lengths_ms: list[float], every: int = 100, slow: Slowdowns | None = None) -> list[str]:
    """Return what is said of a job with these steps, while it runs."""
    said: list[str] = []
    look = GrowthLook(said.append)
    if slow is not None:
        write_slowdowns(folder, slow)
    for until in range(every, len(lengths_ms) + 1, every):
        write_pulse(folder, 0, [MadeStep(ms=length) for length in lengths_ms[:until]])
        look.at(folder, 0.0, is_over=False)
    return said


def test_steps_that_grow_only_lately_are_told(tmp_path: Path) -> None:
    """They grow from step 2003 on, and take twice as long after 200 more steps."""
    first, *_ = told_of(tmp_path, [100 + (step % 7) / 10 + max(0, step - 2000) / 2 for step in range(2500)])
    assert re.match(r"Since about step 2,0\d\d, steps become longer and longer: 10\d ms before, 2[0-4]\d ms now", first)


@pytest.mark.parametrize(
    "lengths_ms",
    [
        pytest.param([100 + step % 7 + 60 * (step // 500) for step in range(2000)], id="stairs"),
        pytest.param([100 + step % 7 + (150 if step >= 700 else 0) for step in range(1400)], id="one-jump"),
        pytest.param([300 + step % 7 for step in range(300)] + [100 + step / 5 for step in range(700)], id="warm-up"),
    ],
)
def test_steps_that_do_not_grow_more_and_more(lengths_ms: list[float], tmp_path: Path) -> None:
    assert told_of(tmp_path, lengths_ms) == []


def test_growth_that_a_slow_down_explains_is_not_told(tmp_path: Path) -> None:
    slow_down = structs.replace(slow(1000), before_ns=100 * MS, after_ns=230 * MS)
    assert told_of(tmp_path, [100 + step / 2 for step in range(300)], slow=Slowdowns((slow_down,))) == []


def test_the_launcher_keeps_what_it_said_when_the_means_change_where_a_slow_down_began(launcher: Launcher) -> None:
    assert launcher.looks(1021, slow(1000, first_step=100)) == [RISE]
    assert launcher.looks(1031, slow(999, first_step=92)) == []
    over = "from step 192 on, steps take as long as before the slowdown"
    assert launcher.looks(1090, slow(999, ended_s=1088, first_step=92)) == [over]


def test_growing_memory_is_told_when_it_doubles(tmp_path: Path) -> None:
    said: list[str] = []
    look = GrowthLook(said.append)
    for seconds in (30, 60, 70, 400):
        memory = {0: [400 * 10**6] * seconds, 1: [(400 + 20 * second) * 10**6 for second in range(seconds)]}
        for rank, memory_bytes in memory.items():
            write_pulse(tmp_path, rank, [MadeStep()] * 9, memory_bytes=memory_bytes)
        look.at(tmp_path, 0.0, is_over=False)
    first, second = said
    assert first.startswith("The memory of rank 1 grows steadily: 480 MB early in the run, 960 MB now. Find what")
    assert second.startswith("The memory of rank 1 grows steadily: 1,590 MB early in the run, 7,990 MB now. Find what")
