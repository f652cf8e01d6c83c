"""Which signals end `ddpprof tensorboard`."""

import os
import signal
from collections.abc import Iterator

import pytest

from ddpprof.cli.tensorboard import _ended_like_ctrl_c


@pytest.fixture
def without_hangup() -> Iterator[None]:
    """As nohup starts commands."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_commands_end_it(number: int) -> None:
    with _ended_like_ctrl_c() as came, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    assert came == [number]


def test_what_nohup_starts_outlives_its_terminal(without_hangup: None) -> None:
    with _ended_like_ctrl_c() as came:
        os.kill(os.getpid(), signal.SIGHUP)
        assert came == []
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
