"""The rows of steps in a rank's pulse, and the summaries of many."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from pulse_writers import Clock, Reducer, backward, decoded, keep

from ddpprof.model import UNKNOWN
from ddpprof.model import pulse_layout as layout
from ddpprof.model.pulse import Activity, StepFlag
from ddpprof.model.pulse_layout import state_word
from ddpprof.monitor.pulse_files import read_pulse
from ddpprof.record.pulse import PulseWriter

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")


def test_the_ring_keeps_the_last_steps(pulse: PulseWriter, clock: Clock) -> None:
    num_steps = layout.NUM_STEPS_KEPT + 5
    for number in range(1, num_steps + 1):
        clock.now_ns += number
        pulse.step_ends(number)
    steps = decoded(pulse).steps
    assert steps.number.tolist() == list(range(5, num_steps))
    assert steps.length_ns[-1] == num_steps


def test_summaries_cover_all_steps(pulse: PulseWriter, clock: Clock) -> None:
    for number in range(1, 301):
        clock.now_ns += 10 if number <= 150 else 20
        pulse.step_ends(number)
    summaries = decoded(pulse).summaries
    assert summaries.first_step.tolist() == [0, 100, 200]
    assert summaries.num_steps.tolist() == [100, 100, 100]
    assert summaries.median_ns.tolist() == [10, 15, 20]
    assert summaries.longest_ns.tolist() == [10, 20, 20]


def test_full_summaries_become_half_as_many(monkeypatch: pytest.MonkeyPatch, pulse: PulseWriter, clock: Clock) -> None:
    monkeypatch.setattr(layout, "NUM_SUMMARIES_KEPT", 4)
    samples = layout.SAMPLES._replace(at=layout.SUMMARIES_AT + 4 * layout.SUMMARY.size)
    monkeypatch.setattr(layout, "SAMPLES", samples)
    monkeypatch.setattr(layout, "NUM_BYTES", samples.end)
    for number in range(1, 701):
        clock.now_ns += 10
        pulse.step_ends(number)
    summaries = decoded(pulse).summaries
    assert summaries.first_step.tolist() == [0, 200, 400, 500]
    assert summaries.num_steps.tolist() == [200, 200, 100, 200]
    assert decoded(pulse).state.steps_per_summary == 200


def test_flagged_steps_are_no_part_of_the_median(pulse: PulseWriter, clock: Clock) -> None:
    for number in range(1, 101):
        is_flagged = number % 2 == 0
        clock.now_ns += 1000 if is_flagged else 10
        if is_flagged:
            pulse.flag(StepFlag.SAVED)
        pulse.step_ends(number)
    summaries = decoded(pulse).summaries
    assert (summaries.median_ns.tolist(), summaries.num_flagged.tolist()) == ([10], [50])


def test_rows_are_made_by_two_threads_at_once(pulse: PulseWriter) -> None:
    done = threading.Event()

    def make() -> None:
        while not done.is_set():
            pulse.rows.make()

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 1501):
        pulse.begins(Activity.FORWARD)
        pulse.step_ends(number)
    done.set()
    for thread in threads:
        thread.join()
    steps = decoded(pulse).steps
    assert steps.number.tolist() == list(range(1500))
    assert (steps.length_ns >= 0).all()


def test_an_error_ends_the_rows_and_nothing_else(pulse: PulseWriter, clock: Clock, tmp_path: Path) -> None:
    said: list[str] = []
    keeper = keep(pulse, said)
    pulse.step_ends(1)
    pulse.rows.make()
    pulse.rows.notes.append((int(Activity.FORWARD), "no time"))
    pulse.rows.make()  # in the training thread, which says nothing
    for number in (2, 3):
        pulse.step_ends(number)
        keeper._keep()
    assert len(said) == 1
    assert "no longer notes how long steps take" in said[0]
    keeper.close()
    kept = read_pulse(tmp_path, 0)
    assert (kept.state.step, kept.steps.number.tolist(), len(pulse.rows.notes)) == (3, [0], 0)


def test_a_problem_without_words_has_the_name_of_its_error(pulse: PulseWriter) -> None:
    pulse.rows.end_for(MemoryError())
    assert pulse.rows.problem == "MemoryError"


def test_a_clock_that_stands_still_is_no_problem(clock: Clock, pulse: PulseWriter) -> None:
    for number in range(1, 61):
        clock.now_ns += 5_000_000 if number <= 20 else 0
        pulse.step_ends(number)
        if number == 20:
            pulse.rows.make()
    assert decoded(pulse).steps.length_ns.tolist() == [5_000_000] * 20 + [0] * 40
    assert (pulse.rows.problem, pulse.rows.looks_every) == (None, 1)


@pytest.mark.parametrize(("num_gradients", "every"), [(400, 1), (800, 2), (1200, 3)])
def test_with_many_gradients_some_steps_look(num_gradients: int, every: int, pulse: PulseWriter, clock: Clock) -> None:
    """They are in no rhythm that the steps of a training could have."""
    for number in range(1, 601):
        for _ in range(2):  # all passes of a step are looked at, or none
            backward(pulse, clock, Reducer(*[5] * num_gradients), 30)
        clock.now_ns += 2_000_000
        pulse.step_ends(number)
        pulse.rows.make()
    waits = decoded(pulse).steps.wait_ns
    assert set(waits[waits != UNKNOWN].tolist()) == {50}
    looked = np.flatnonzero(waits != UNKNOWN)
    assert len(looked) == pytest.approx(600 / every, rel=0.03)
    assert np.diff(looked).max() <= 2 * every
    for rhythm in (2, 3, 4, 5, 10):
        counts = np.bincount(looked % rhythm, minlength=rhythm)
        assert counts.min() >= 0.7 * counts.mean()
    assert decoded(pulse).state.num_passes == 1200


def test_few_of_very_short_steps_look(pulse: PulseWriter, clock: Clock) -> None:
    """The steps that look are 2 ms apart or more, on average."""
    looked = []
    for length_ns in (500_000, 2_000_000, 40_000_000):
        for number in range(pulse.words[state_word("step")] + 1, pulse.words[state_word("step")] + 601):
            backward(pulse, clock, Reducer(5, 5), 30)
            clock.now_ns += length_ns
            pulse.step_ends(number)
            if number % 10 == 0:
                pulse.rows.make()
        looked.append(int((decoded(pulse).steps.wait_ns[-500:] != UNKNOWN).sum()))
    assert looked == [pytest.approx(500 / 4, rel=0.03), 500, 500]
