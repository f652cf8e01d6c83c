"""What ranks do, how they stand, and who waits for whom, from pulses made by hand."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from pulse_files import BEGIN_NS, MS, SECOND, MadeStep, write_pulse

from ddpprof.errors import DdpprofError, NotARun
from ddpprof.model import pulse_layout as layout
from ddpprof.model.pulse import Activity, Ended, StepFlag
from ddpprof.monitor.overview import Overview, RankNow, Standing, find_pulses, look_at, waiting_lines
from ddpprof.monitor.pulse_files import SILENT_FAR_NS

TEN_STEPS_NS = BEGIN_NS + SECOND


def one_rank(folder: Path, now_ns: int = TEN_STEPS_NS, steps: int = 10, **state: int) -> RankNow:
    write_pulse(folder, 0, [MadeStep()] * steps, **state)
    (rank,) = look_at(folder, now_ns).ranks
    return rank


def test_a_rank_has_the_medians_of_its_usual_steps(tmp_path: Path) -> None:
    slow = MadeStep(ms=5000, data_ms=4000, flags=int(StepFlag.SAVED))
    write_pulse(tmp_path, 0, [MadeStep(), slow, MadeStep(ms=110), MadeStep(ms=120)], memory_bytes=(1, 2))
    (rank,) = look_at(tmp_path, BEGIN_NS + 6 * SECOND).ranks
    assert (rank.step_ns, rank.own_ns, rank.data_ns, rank.wait_ns) == (110 * MS, 90 * MS, 10 * MS, 20 * MS)
    assert (rank.host, rank.step, rank.memory_bytes) == ("node-a", 7, 2)


def test_own_time_is_that_of_the_steps_that_know_their_waiting(tmp_path: Path) -> None:
    write_pulse(tmp_path, 0, [MadeStep(wait_ms=20 if number % 3 == 0 else None) for number in range(30)])
    (rank,) = look_at(tmp_path, BEGIN_NS + 6 * SECOND).ranks
    assert (rank.step_ns, rank.own_ns, rank.wait_ns) == (100 * MS, 80 * MS, 20 * MS)
    write_pulse(tmp_path, 0, [MadeStep(wait_ms=None)] * 30)
    (rank,) = look_at(tmp_path, BEGIN_NS + 6 * SECOND).ranks
    assert (rank.step_ns, rank.own_ns, rank.wait_ns) == (100 * MS, None, None)


@pytest.mark.parametrize(
    ("state", "late_ns", "standing"),
    [
        pytest.param({}, 0, Standing.TRAINING, id="training"),
        pytest.param({"step": 0, "num_passes": 0}, 0, Standing.STARTING, id="starting"),
        pytest.param({"activity": Activity.BACKWARD}, 31 * MS, Standing.WAITS, id="longer-than-it-computes"),
        pytest.param({"activity": Activity.BACKWARD}, 30 * MS, Standing.TRAINING, id="computes-gradients"),
        pytest.param({"activity": Activity.OPTIMIZER}, 31 * MS, Standing.TRAINING, id="backward-is-over"),
        pytest.param({}, SILENT_FAR_NS, Standing.TRAINING, id="a-sign-in-time"),
        pytest.param({}, SILENT_FAR_NS + 1, Standing.NO_SIGN, id="no-sign"),
        pytest.param({"ended": Ended.FINISHED}, 10**15, Standing.ENDED, id="ended"),
        pytest.param({"ended": Ended.FAILED}, 0, Standing.FAILED, id="failed"),
        pytest.param({"ended": Ended.INTERRUPTED}, 0, Standing.INTERRUPTED, id="interrupted"),
        pytest.param({"ended": Ended.UNWATCHED}, 0, Standing.UNWATCHED, id="unwatched"),
        pytest.param({"ended": 77, "activity": 99}, 0, Standing.TRAINING, id="numbers-without-a-meaning"),
    ],
)
def test_how_a_rank_stands(tmp_path: Path, state: dict[str, int], late_ns: int, standing: Standing) -> None:
    assert one_rank(tmp_path, TEN_STEPS_NS + late_ns, **state).standing is standing


def test_a_dead_rank_of_this_machine_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody holds a lock on its pulse in memory, which does not even exist any more."""
    monkeypatch.setattr("ddpprof.monitor.pulse_files.machine_id", lambda: "of another machine")
    assert one_rank(tmp_path, TEN_STEPS_NS + 2 * SECOND).standing is Standing.TRAINING
    assert one_rank(tmp_path, TEN_STEPS_NS + 3 * SECOND).standing is Standing.GONE


def test_speed_falls_while_the_job_stands(tmp_path: Path) -> None:
    write_pulse(tmp_path, 0, [MadeStep(ms=100)] * 600)
    end_ns = BEGIN_NS + 60 * SECOND
    assert look_at(tmp_path, end_ns).steps_per_s == pytest.approx(10)
    assert look_at(tmp_path, end_ns + 30 * SECOND).steps_per_s == pytest.approx(5)
    assert look_at(tmp_path, end_ns + 90 * SECOND).steps_per_s == 0


def test_a_long_step_counts_for_its_part_in_the_last_minute(tmp_path: Path) -> None:
    write_pulse(tmp_path, 0, [MadeStep(ms=120_000)])
    assert look_at(tmp_path, BEGIN_NS + 120 * SECOND).steps_per_s == pytest.approx(1 / 120)


def test_percentiles_and_sparkline_are_of_the_last_minutes(tmp_path: Path) -> None:
    write_pulse(tmp_path, 0, [*[MadeStep(ms=9000)] * 100, *[MadeStep(ms=1000)] * 297, *[MadeStep(ms=2000)] * 3])
    times = look_at(tmp_path, BEGIN_NS + 1203 * SECOND).times
    assert times is not None
    assert (times.num_steps, times.median_ns, times.p90_ns) == (297, 1000 * MS, 1000 * MS)
    assert 1000 * MS < times.p99_ns <= 2000 * MS
    assert (len(times.spark_ns), times.spark_ns[0], times.spark_ns[-1]) == (60, 1000 * MS, 2000 * MS)


def test_an_ended_job_no_longer_runs(tmp_path: Path) -> None:
    write_pulse(tmp_path, 0, [MadeStep()] * 10, ended=Ended.FINISHED, ended_ns=BEGIN_NS + 2 * SECOND)
    overview = look_at(tmp_path, BEGIN_NS + 10**6 * SECOND)
    assert (overview.is_over, overview.running_ns) == (True, 2 * SECOND)
    assert overview.steps_per_s == pytest.approx(5)


def pair(folder: Path, own_ms: float, wait_ms: float, others_wait_ms: float = 60) -> Overview:
    """Three ranks in step, the last of which differs."""
    for rank in (0, 1):
        write_pulse(folder, rank, [MadeStep(ms=100, wait_ms=others_wait_ms)] * 10, world_size=3)
    write_pulse(folder, 2, [MadeStep(ms=own_ms + wait_ms, wait_ms=wait_ms)] * 10, world_size=3)
    return look_at(folder, TEN_STEPS_NS)


@pytest.mark.parametrize(
    ("own_ms", "wait_ms", "others_wait_ms", "named"),
    [
        pytest.param(95, 5, 60, True, id="slower-and-waited-for"),
        pytest.param(42, 58, 60, False, id="hardly-slower"),
        pytest.param(95, 60, 60, False, id="slower-but-waits-as-long-itself"),
    ],
)
def test_the_slowest_rank_is_named_if_others_wait_for_it(
    tmp_path: Path, own_ms: float, wait_ms: float, others_wait_ms: float, named: bool
) -> None:
    lines = pair(tmp_path, own_ms, wait_ms, others_wait_ms).waiting
    expected = (
        "rank 2 is the slowest: 95.0 ms of own time per step; "
        "the other ranks take 40.0 ms, and wait 60.0 ms in each step"
    )
    assert lines == ((expected,) if named else ())


def test_of_two_ranks_the_other_one_waits(tmp_path: Path) -> None:
    write_pulse(tmp_path, 0, [MadeStep(ms=100, wait_ms=60)] * 10)
    write_pulse(tmp_path, 1, [MadeStep(ms=100, wait_ms=5)] * 10)
    times = "95.0 ms of own time per step; the other rank takes 40.0 ms, and waits 60.0 ms in each step"
    assert look_at(tmp_path, TEN_STEPS_NS).waiting == (f"rank 1 is the slowest: {times}",)


def test_a_rank_that_is_a_backward_pass_behind_is_named(tmp_path: Path) -> None:
    write_pulse(tmp_path, 0, [MadeStep()] * 10, num_passes=11, activity=Activity.BACKWARD)
    write_pulse(tmp_path, 1, [MadeStep()] * 10, activity=Activity.DATA)
    assert look_at(tmp_path, TEN_STEPS_NS + SECOND // 2).waiting == ()  # it may just be under way
    assert look_at(tmp_path, TEN_STEPS_NS + 4 * SECOND).waiting == (
        "1 rank has waited 4 s for rank 1, which is 1 backward pass behind (in step 13, data for 4 s)",
    )


def test_the_line_at_which_a_rank_keeps_others_waiting_is_named(tmp_path: Path) -> None:
    write_pulse(tmp_path, 0, [MadeStep()] * 10, num_passes=11, activity=Activity.BACKWARD)
    write_pulse(tmp_path, 1, [MadeStep()] * 10)
    waits, late = look_at(tmp_path, TEN_STEPS_NS + 4 * SECOND).ranks
    (said,) = waiting_lines([waits, replace(late, stack="/home/me/ckpt.py:6 in confirm")])
    assert said.endswith(" for 4 s, at /home/me/ckpt.py:6 in confirm)")


def test_a_rank_whose_steps_take_long_does_not_wait_yet(tmp_path: Path) -> None:
    """Steps of 3 s: after 4 s in its backward pass it may compute."""
    ten_steps_ns = BEGIN_NS + 30 * SECOND
    write_pulse(tmp_path, 0, [MadeStep(ms=3000)] * 10, num_passes=11, activity=Activity.BACKWARD)
    write_pulse(tmp_path, 1, [MadeStep(ms=3000)] * 10, activity=Activity.DATA)
    assert look_at(tmp_path, ten_steps_ns + 4 * SECOND).waiting == ()
    assert len(look_at(tmp_path, ten_steps_ns + 7 * SECOND).waiting) == 1


def test_a_pulse_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    write_pulse(tmp_path, 0, [MadeStep()] * 10)
    write_pulse(tmp_path, 1, [MadeStep()] * 10).write_bytes(b"nonsense")
    overview = look_at(tmp_path, TEN_STEPS_NS)
    assert [rank.rank for rank in overview.ranks] == [0]
    assert len(overview.missing) == 1
    assert "rank-1.pulse cannot be read: it is truncated." in overview.missing[0]
    (tmp_path / "rank-0.pulse").unlink()
    with pytest.raises(DdpprofError, match=r"rank-1\.pulse cannot be read"):
        look_at(tmp_path, TEN_STEPS_NS)


def test_what_is_not_to_be_looked_at_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(NotARun, match=r"does not exist\. Record a run with: ddpprof trace --out"):
        find_pulses(tmp_path / "absent")
    with pytest.raises(NotARun, match=r"it has no run\.json"):
        find_pulses(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(DdpprofError, match=r"has no pulse file\. .* try again while the job is training"):
        find_pulses(tmp_path)


def test_the_last_attempt_and_the_last_repetition_count(tmp_path: Path) -> None:
    for folder in ("run-1", "run-2", "run-2/attempt-1"):
        write_pulse(tmp_path / folder, 0, [MadeStep()])
        (tmp_path / folder / "run.json").write_text("{}")
    assert find_pulses(tmp_path) == tmp_path / "run-2" / "attempt-1"
    assert find_pulses(tmp_path / "run-1") == tmp_path / "run-1"


def test_random_bytes_never_end_a_view(tmp_path: Path) -> None:
    """Whatever numbers a damaged pulse holds behind its head."""
    path = write_pulse(tmp_path, 0, [MadeStep()] * 10)
    head = path.read_bytes()[: layout.HEAD_BYTES]
    for _ in range(20):
        path.write_bytes(head + os.urandom(layout.NUM_BYTES))
        assert len(look_at(tmp_path, TEN_STEPS_NS).ranks) == 1
