"""Steps and summaries of a pulse as one table, in which each step counts once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pulse_files import BEGIN_NS, MS, MadeStep, step_rows, write_pulse

from ddpprof.model.pulse import Pulse, StepFlag
from ddpprof.model.pulse_layout import NUM_STEPS_KEPT
from ddpprof.monitor.history import history, rows_of_single_steps, stretch_of, stretches, usual_length_ns
from ddpprof.monitor.pulse_files import read_pulse


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
    summarised = rows.num_steps > 1
    assert 0 < summarised.sum() < 5000 // 100
    assert rows.first_step[~summarised].tolist() == list(range(rows.first_step[~summarised][0], 5003))
    assert np.flatnonzero(summarised).max() < np.flatnonzero(~summarised).min()


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
    """100 summarised steps of 10 ms outweigh some single ones of 50 ms, though there are more rows of these."""
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
