"""A process that reads, and one that starts others for it."""

from __future__ import annotations

import signal

import pytest

from ddpprof.load.file_bytes import signals_later


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_handled_later(number: signal.Signals) -> None:
    arrived = []
    before = signal.signal(number, lambda number, _frame: arrived.append(number))
    try:
        with signals_later():
            signal.raise_signal(number)
            assert not arrived
        assert arrived == [number]
    finally:
        signal.signal(number, before)


def test_what_a_handler_raises_comes_later_too() -> None:
    ended = []

    def begin() -> None:
        with signals_later():
            signal.raise_signal(signal.SIGINT)
            ended.append(True)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            begin()
        assert ended
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_that_ends_the_process_at_once_still_does() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with signals_later():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
