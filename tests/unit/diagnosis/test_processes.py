"""A process is looked at from outside, while it sleeps and once it has ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpprof.diagnosis import processes
from ddpprof.diagnosis.processes import num_swapped_in

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system has no /proc")


def test_what_the_machine_read_back_from_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = tmp_path / "vmstat"
    monkeypatch.setattr(processes, "OF_MACHINE", counters)
    assert num_swapped_in() == 0
    counters.write_text("pgpgin 7\npswpin 12\npswpout 9\n")
    assert num_swapped_in() == 12
