"""How a whole training went, in few numbers: summaries of its beginning and single steps of its end."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from pulse_files import BEGIN_NS, MS, SECOND, MadeStep, step_rows, write_pulse
from pulses import pulse_of, steps_of

from ddpprof.model.pulse import Activity, Ended, Pulse, PulseSamples, StepFlag
from ddpprof.model.pulse_layout import NUM_STEPS_KEPT
from ddpprof.model.tables import UNKNOWN
from ddpprof.model.whole_run import RankWholeRun
from ddpprof.monitor.pulse_files import read_pulse
from ddpprof.monitor.whole_run import (
    history,
    rows_of_single_steps,
    stretch_of,
    stretches,
    usual_length_ns,
    whole_run_of_rank,
)


def pulse(folder: Path, steps: list[MadeStep], first_step: int = 3) -> Pulse:
    write_pulse(folder, 0, steps, first_step=first_step)
    return read_pulse(folder, 0)


@pytest.mark.parametrize("num_steps", [0, 1, 99, 100, NUM_STEPS_KEPT, NUM_STEPS_KEPT + 1, 5000])
def test_every_step_counts_once(tmp_path: Path, num_steps: int) -> None:
    rows = history(pulse(tmp_path, [MadeStep(ms=10)] * num_steps))
    assert int(rows.num_steps.sum()) == num_steps
    assert rows.first_step.tolist() == (3 + np.cumsum(rows.num_steps) - rows.num_steps).tolist()


def test_the_steps_that_are_kept_stand_one_by_one(tmp_path: Path) -> None:
    rows = history(pulse(tmp_path, [MadeStep(ms=10)] * 5000))
    summarized = rows.num_steps > 1
    assert 0 < summarized.sum() < 5000 // 100
    assert rows.first_step[~summarized].tolist() == list(range(rows.first_step[~summarized][0], 5003))
    assert np.flatnonzero(summarized).max() < np.flatnonzero(~summarized).min()


def test_a_stretch_has_the_median_of_usual_steps_and_the_longest_of_all() -> None:
    steps = [MadeStep(ms=10), MadeStep(ms=12), MadeStep(ms=11), MadeStep(ms=900, flags=int(StepFlag.SAVED))]
    one = stretch_of(rows_of_single_steps(step_rows(steps, 7)))
    assert (one.first_step, one.num_steps, one.num_flagged) == (7, 4, 1)
    assert (one.median_ns, one.longest_ns) == (11 * MS, 900 * MS)
    assert (one.start_ns, one.end_ns) == (BEGIN_NS, BEGIN_NS + 933 * MS)
    assert (one.data_ns, one.wait_ns, one.own_ns) == (10 * MS, 20 * MS, round(933 * MS / 4) - 20 * MS)


def test_waiting_is_unknown_where_no_bucket_was_seen() -> None:
    one = stretch_of(rows_of_single_steps(step_rows([MadeStep(wait_ms=None)] * 3)))
    assert (one.wait_ns, one.own_ns) == (None, 100 * MS)
    known = stretch_of(rows_of_single_steps(step_rows([MadeStep(wait_ms=None), MadeStep(wait_ms=8)])))
    assert known.wait_ns == 8 * MS


def test_rare_long_waits_count_once_though_not_every_step_looks(tmp_path: Path) -> None:
    """Every 500th step waits for 5 s, as for a rank that saves; only every third step looks."""
    for first in range(3):
        looks = [first % 3 == number % 3 for number in range(3000)]
        waits = [5020 if number % 500 == 499 else 20 for number in range(3000)]
        steps = [
            MadeStep(ms=80 + wait, backward_ms=30 + wait, wait_ms=wait if look else None)
            for wait, look in zip(waits, looks, strict=True)
        ]
        whole = stretch_of(history(pulse(tmp_path / str(first), steps)))
        assert whole.wait_ns == pytest.approx(30 * MS, rel=0.01)
        assert whole.own_ns == pytest.approx(80 * MS, rel=0.01)


def test_any_number_is_read(tmp_path: Path) -> None:
    largest = (2**63 - 1) / MS
    odd = [MadeStep(ms=value, backward_ms=value, wait_ms=0) for value in (1, largest * 0.99)]
    rows = history(pulse(tmp_path, [*odd, *odd, MadeStep(ms=5, backward_ms=3, wait_ms=None)]))
    assert rows.wait_ns.tolist()[-1] == 0


def test_summaries_weigh_as_much_as_their_steps(tmp_path: Path) -> None:
    """100 summarized steps of 10 ms outweigh some single ones of 50 ms, though there are more rows of these."""
    rows = history(pulse(tmp_path, [*[MadeStep(ms=10)] * 3000, *[MadeStep(ms=50)] * 2100]))
    assert (rows.num_steps > 1).sum() < 40
    assert usual_length_ns(rows) == 10 * MS


def test_stretches_share_the_steps_evenly(tmp_path: Path) -> None:
    parts = stretches(history(pulse(tmp_path, [MadeStep(ms=10)] * 1000)), 10)
    assert [part.num_steps for part in parts] == [100] * 10
    assert stretches(history(pulse(tmp_path, [])), 10) == ()


def test_rows_that_no_training_has_are_left_out(tmp_path: Path) -> None:
    sound = history(pulse(tmp_path, [MadeStep(ms=5), MadeStep(ms=-(2**40)), MadeStep(ms=7)]))
    assert sound.median_ns.tolist() == [5 * MS, 7 * MS]


def made(folder: Path, steps: list[MadeStep], **changes: int) -> RankWholeRun:
    write_pulse(folder, 1, steps, memory_bytes=(400, 450, 500), **changes)
    return whole_run_of_rank(1, read_pulse(folder, 1))


def test_a_training_in_numbers(tmp_path: Path) -> None:
    one = made(tmp_path, [MadeStep(ms=100)] * 50, ended=Ended.FINISHED, ended_ns=BEGIN_NS + 6 * SECOND)
    assert (one.rank, one.host, one.first_step, one.num_steps) == (1, "node-a", 3, 53)
    assert (one.ended, one.last_ns) == ("finished", BEGIN_NS + 6 * SECOND)
    assert (one.first_memory_bytes, one.last_memory_bytes, one.memory_growth_bytes) == (400, 500, 100)
    assert one.whole is not None
    assert (one.whole.num_steps, one.whole.median_ns) == (50, 100 * MS)
    assert [part.num_steps for part in one.stretches] == [5] * 10
    assert len(one.curve) == 50


def test_the_longest_steps_say_what_was_special(tmp_path: Path) -> None:
    saved = MadeStep(ms=900, flags=int(StepFlag.SAVED | StepFlag.BEGAN_EPOCH))
    one = made(tmp_path, [MadeStep(ms=100), saved, MadeStep(ms=300), MadeStep(ms=100)])
    assert [(step.step, step.length_ns, step.why) for step in one.longest[:2]] == [
        (4, 900 * MS, ("saved", "began an epoch")),
        (5, 300 * MS, ()),
    ]


def test_a_rank_without_an_end_was_last_seen_doing_something(tmp_path: Path) -> None:
    one = made(
        tmp_path, [MadeStep()], activity=Activity.BACKWARD, since_ns=BEGIN_NS + SECOND, tick_ns=BEGIN_NS + 9 * SECOND
    )
    assert (one.ended, one.activity, one.num_steps) == (None, "backward", 4)
    assert one.last_ns - one.activity_since_ns == 8 * SECOND


@pytest.mark.parametrize("value", [99, -1, 2**62])
def test_numbers_of_no_activity_and_no_end_are_unknown(tmp_path: Path, value: int) -> None:
    one = made(tmp_path, [MadeStep()], activity=value, ended=value)
    assert (one.activity, one.ended) == ("unknown", None)


def test_the_first_sample_is_unknown_once_it_is_overwritten(tmp_path: Path) -> None:
    """Then the first summary tells the memory, and without one the oldest sample that is kept."""
    write_pulse(tmp_path, 0, [MadeStep()] * 2, memory_bytes=(7,) * 1024, num_samples=2000)
    assert whole_run_of_rank(0, read_pulse(tmp_path, 0)).first_memory_bytes == 7
    write_pulse(tmp_path, 0, [MadeStep(ms=1)] * 4000, memory_bytes=(7,) * 1024, num_samples=2000)
    assert whole_run_of_rank(0, read_pulse(tmp_path, 0)).first_memory_bytes == 400 * 10**6


def test_memory_that_recording_took_is_no_growth(tmp_path: Path) -> None:
    """The samples lie five seconds apart."""
    recorded = MadeStep(ms=300, flags=int(StepFlag.RECORDED))
    assert made(tmp_path, [MadeStep(ms=200), recorded, *[MadeStep(ms=300)] * 9]).memory_growth_bytes == 50
    assert made(tmp_path, [recorded] * 40).memory_growth_bytes == 0
    write_pulse(tmp_path, 0, [recorded, *[MadeStep(ms=300)] * 99], memory_bytes=(400, 900, 900, 400, 500, 450, 600))
    assert whole_run_of_rank(0, read_pulse(tmp_path, 0)).memory_growth_bytes == 200, "of which recording gave back 500"
    write_pulse(tmp_path, 0, [MadeStep()], memory_bytes=(400,))
    assert whole_run_of_rank(0, read_pulse(tmp_path, 0)).memory_growth_bytes is None


def test_the_first_summary_may_have_recorded_steps(tmp_path: Path) -> None:
    steps = [MadeStep(ms=1, flags=int(StepFlag.RECORDED)), *[MadeStep(ms=1)] * 3999]
    write_pulse(tmp_path, 0, steps, memory_bytes=(400, 700))
    assert whole_run_of_rank(0, read_pulse(tmp_path, 0)).memory_growth_bytes == 0


def test_what_a_rank_needs_by_itself_is_a_median(tmp_path: Path) -> None:
    one = made(tmp_path, [MadeStep(ms=100, wait_ms=30)] * 45 + [MadeStep(ms=9000)] + [MadeStep(ms=50, wait_ms=10)] * 50)
    assert one.own_ns_of_stretches == (70 * MS,) * 5 + (40 * MS,) * 5


def test_without_its_course_only_what_ranks_are_compared_by_is_kept(tmp_path: Path) -> None:
    write_pulse(tmp_path, 0, [MadeStep()] * 20)
    one = whole_run_of_rank(0, read_pulse(tmp_path, 0), with_course=False)
    assert (one.stretches, one.curve, one.longest) == ((), (), ())
    assert one.whole is not None


@pytest.mark.parametrize(
    ("queued", "queued_ns", "sampled_ns"),
    [
        pytest.param([5, 7, 12], 7, 2_000_000, id="between-the-first-and-the-last"),
        pytest.param([UNKNOWN, 7, 12], 5, 1_000_000, id="not-known-at-first"),
        pytest.param([7], None, 0, id="one-sample"),
        pytest.param([UNKNOWN, UNKNOWN], None, 0, id="the-system-does-not-tell"),
    ],
)
def test_time_for_which_threads_waited_for_a_core(queued: list[int], queued_ns: int | None, sampled_ns: int) -> None:
    columns = {field.name: np.full(len(queued), UNKNOWN) for field in fields(PulseSamples)}
    at_ns = np.arange(len(queued)) * 1_000_000
    samples = PulseSamples(**{**columns, "at_ns": at_ns, "queued_ns": np.array(queued)})
    one = whole_run_of_rank(0, pulse_of(steps_of([{}] * 3), samples=samples))
    assert (one.queued_ns, one.sampled_ns) == (queued_ns, sampled_ns)
    assert one.busy_share is None


def test_the_share_of_time_in_which_a_rank_ran_or_waited_for_a_core() -> None:
    columns = {field.name: np.full(3, UNKNOWN) for field in fields(PulseSamples)}
    given = {"at_ns": [0, 500, 1000], "queued_ns": [10, 15, 110], "cpu_ns": [1000, 1300, 1400]}
    samples = PulseSamples(**{**columns, **{name: np.array(values) for name, values in given.items()}})
    one = whole_run_of_rank(0, pulse_of(steps_of([{}] * 3), samples=samples))
    assert one.busy_share == (100 + 400) / 1000
