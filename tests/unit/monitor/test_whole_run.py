"""A pulse in few numbers."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from pulse_files import BEGIN_NS, MS, SECOND, MadeStep, write_pulse
from pulses import pulse_of, steps_of

from ddpprof.model.pulse import Activity, Ended, PulseSamples, StepFlag
from ddpprof.model.tables import UNKNOWN
from ddpprof.model.whole_run import RankWholeRun
from ddpprof.monitor.pulse_files import read_pulse
from ddpprof.monitor.whole_run import whole_run_of_rank


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
