"""Which signals end `ddpprof tensorboard`, and how long it waits for the profiler plugin."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from ddpprof.cli import tensorboard_server
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


class Plugin(tensorboard_server.Server):
    """A server whose plugin gives these answers, one a second, and the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self.now_s, self._answers = 0, answers

    def _get(self, _route: str) -> Any:
        return self._answers[min(self.now_s, len(self._answers) - 1)]

    def _pause(self) -> None:
        self.now_s += 1


def runs(*names: str, loading: bool) -> dict[str, Any]:
    return {"runs": list(names), "loading": loading}


@pytest.mark.parametrize(
    ("answers", "has_read", "after_s"),
    [
        pytest.param([runs("a", "b", loading=False)], True, 0, id="at-once"),
        pytest.param([None, runs(loading=True), runs("a", "b", loading=False)], True, 2, id="after-no-answer"),
        pytest.param([*[runs(loading=True)] * 90, runs("a", "b", loading=False)], True, 90, id="slowly"),
        pytest.param(
            [*[runs(loading=True)] * 90, *[runs("a", loading=False)] * 2, runs("a", "b", loading=False)],
            True, 92, id="the-last-one-on-its-way",
        ),
        pytest.param([runs("a", loading=False)], False, 61, id="not-all"),
        pytest.param([None], False, 61, id="no-plugin"),
    ],
)  # fmt: skip
def test_the_plugin_gets_a_minute_in_which_it_does_nothing(
    answers: list[Any], has_read: bool, after_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = Plugin(*answers)
    monkeypatch.setattr(tensorboard_server.time, "monotonic", lambda: float(plugin.now_s))
    assert plugin.wait_for_plugin(["a", "b"]) == has_read
    assert plugin.now_s == after_s
