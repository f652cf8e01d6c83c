"""What several tests of the recorder need."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from pulse_writers import Clock, identity

from ddpprof.record.events import EVENTS, Events
from ddpprof.record.pulse import PulseWriter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("ddpprof.record.pulse.time_ns", clock.time_ns)
    monkeypatch.setattr("ddpprof.record.patches.time_ns", clock.time_ns)
    return clock


@pytest.fixture
def pulse(tmp_path: Path) -> Iterator[PulseWriter]:
    pulse = PulseWriter(identity(tmp_path), threading.get_ident())
    yield pulse
    pulse.close()


@pytest.fixture
def events() -> Iterator[Events]:
    """The dispatcher, whose events a test binds; this thread is the one that trains."""
    EVENTS.training_thread = threading.get_ident()
    yield EVENTS
    EVENTS.unbind()
    EVENTS.training_thread = None


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """The process group of a job with one rank."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
