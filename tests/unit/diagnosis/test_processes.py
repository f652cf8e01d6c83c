"""A process is looked at from outside, while it sleeps and once it has ended."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from ddpprof.diagnosis import processes
from ddpprof.diagnosis.processes import look_at, num_swapped_in
from ddpprof.model.overdue import Wait

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system has no /proc")


def test_what_the_machine_read_back_from_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = tmp_path / "vmstat"
    monkeypatch.setattr(processes, "OF_MACHINE", counters)
    assert num_swapped_in() == 0
    counters.write_text("pgpgin 7\npswpin 12\npswpout 9\n")
    assert num_swapped_in() == 12


def test_a_job_that_trains_in_another_thread_than_the_main_one() -> None:
    """The main thread waits for it, which says nothing of the training."""
    numbers: list[int] = []
    ready, ends = os.pipe()
    thread = threading.Thread(target=lambda: [numbers.append(threading.get_native_id()), os.read(ready, 1)])
    thread.start()
    for _ in range(500):
        found = look_at(os.getpid(), numbers[0]) if numbers else None
        if found is not None and found.wait is Wait.PIPE:
            break
        time.sleep(0.01)
    os.write(ends, b" ")
    thread.join()
    assert found is not None
    assert found.wait is Wait.PIPE
