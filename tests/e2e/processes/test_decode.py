"""Several processes that decode one trace read, or refuse, what one does."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import MutableSequence
from pathlib import Path

import pytest
from random_traces import Event
from shared_decoding import SMALL, assert_same, kernels, ops, written

from ddpprof.errors import BadTrace
from ddpprof.load import kineto
from ddpprof.load.file_bytes import Limits, telling
from ddpprof.load.kineto import decode, read_trace


@pytest.fixture
def odd_groups_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process waits until another one has taken them: it would be through before that one has started."""
    monkeypatch.setattr(kineto, "DIVISION", SMALL)
    monkeypatch.setattr(decode, "_takes", take_even)


def take_even(next_group: MutableSequence[int], group: int) -> bool:
    while group % 2 and next_group[0] <= group and multiprocessing.active_children():
        time.sleep(0.001)
    if next_group[0] > group:
        return False
    next_group[0] = group + 1
    return True


@pytest.mark.usefixtures("odd_groups_are_taken")
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("events", "num_processes"),
    [
        pytest.param(kernels(40), 2, id="device"),
        pytest.param(kernels(40), 3, id="device-by-three"),
        pytest.param(ops(80), 2, id="host"),
        pytest.param([one.moved(1_712_195_495_601_442_533) for one in kernels(40)], 2, id="absolute-times"),
    ],
)
def test_processes_read_what_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[Event], num_processes: int, start_method: str
) -> None:
    monkeypatch.setattr(decode, "start_context", lambda: multiprocessing.get_context(start_method))
    path = written(tmp_path, events)
    told: list[int] = []
    with telling(told.append):
        shared = read_trace(path, num_processes=num_processes)
    assert_same(shared, read_trace(path))
    assert told
    assert multiprocessing.active_children() == []


GOOD = [event.text() for event in kernels(40)]


AGE_OF_EARTH = Event("kernel", "a", 0, 1, 7).text().replace('"ts": 0.000', '"ts": 1e25')


@pytest.mark.usefixtures("odd_groups_are_taken")
@pytest.mark.parametrize(
    ("events", "limits"),
    [
        pytest.param([*GOOD[:15], AGE_OF_EARTH, *GOOD[15:]], Limits(), id="early"),
        pytest.param([*GOOD[:45], AGE_OF_EARTH, *GOOD[45:]], Limits(), id="in-the-middle"),
        pytest.param([*GOOD[:47], GOOD[47].replace('"gemm', "5"), *GOOD[48:55], AGE_OF_EARTH], Limits(), id="two"),
        pytest.param([*GOOD[:49], GOOD[49].replace('"ts": ', '"ts": "soon'), *GOOD[50:]], Limits(), id="no-json"),
        pytest.param([*GOOD[:51], GOOD[51].replace('"ph": "X"', '"ph": 5'), *GOOD[52:]], Limits(), id="wrong-type"),
        pytest.param(GOOD, Limits(events=60), id="too-many-events"),
        pytest.param([*GOOD[:70], AGE_OF_EARTH], Limits(events=60), id="too-many-events-before-a-bad-one"),
        pytest.param([*GOOD[:50], AGE_OF_EARTH, *GOOD[50:]], Limits(events=60), id="too-many-events-after-a-bad-one"),
        pytest.param(GOOD, Limits(inflated_bytes=7_000), id="too-large"),
    ],
)
def test_processes_refuse_what_one_does(tmp_path: Path, events: list[str], limits: Limits) -> None:
    path = written(tmp_path, events)
    said = []
    for num_processes in (1, 2):
        with pytest.raises(BadTrace) as caught:
            read_trace(path, limits, num_processes)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("odd_groups_are_taken")
def test_a_file_that_is_cut_off_is_refused_the_same(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(BadTrace) as alone:
        read_trace(path)
    with pytest.raises(BadTrace) as shared:
        read_trace(path, num_processes=2)
    assert str(shared.value) == str(alone.value)


def test_what_a_killed_process_had_is_decoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, kernels(40))
    monkeypatch.setattr(kineto, "DIVISION", SMALL)
    expected = read_trace(path)
    num_killed = []

    def take_even_and_kill(next_group: MutableSequence[int], group: int) -> bool:
        takes = take_even(next_group, group)
        if not takes:
            for process in multiprocessing.active_children():
                process.kill()
                process.join()
                num_killed.append(1)
        return takes

    monkeypatch.setattr(decode, "_takes", take_even_and_kill)
    assert_same(read_trace(path, num_processes=2), expected)
    assert num_killed


def test_a_process_that_starts_late_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "DIVISION", SMALL)
    path = written(tmp_path, kernels(40))
    assert_same(read_trace(path, num_processes=2), read_trace(path))
    assert multiprocessing.active_children() == []
