"""Whichever batch decodes what, the same is read."""

from __future__ import annotations

import gzip
import io
import json
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_traces import Event, device_traces, host_traces, renamed, traces
from shared import TRACES
from shared_decoding import SMALL, assert_same, kernels, written

from ddpprof.errors import BadTrace
from ddpprof.load import file_bytes, kineto
from ddpprof.load.file_bytes import DEFAULT_LIMITS, UnreadableError
from ddpprof.load.kineto import Header, decode, read_trace
from ddpprof.load.kineto.columns import Collected, Columns
from ddpprof.load.kineto.decode import Batches, Division, EventReader, OddLayoutError

SHARED_TRACES = sorted(TRACES.glob("*rank*.json.gz"))


class InTurn:
    """Helpers in this process: of each group it is said who decodes it, 0 being the one that asks."""

    def __init__(self, owners: Sequence[set[int]], text: bytes, division: Division) -> None:
        self._owners, self._text, self._division = owners, text, division

    def share(self, reader: EventReader, batches: Batches) -> list[Collected]:
        first = self._division.first_groups

        def is_of(number: int) -> Callable[[int], bool]:
            return lambda group: (
                number == 0 if group < first or not self._owners else number in self._owners[group % len(self._owners)]
            )

        reader.add_batches(batches, is_of(0))
        parts = []
        for number in range(1, 1 + max(map(max, self._owners), default=0)):
            helper = EventReader(DEFAULT_LIMITS, self._division, reader.known)
            begin = self._text[self._text.index(b"[") + 1 :][: self._division.batch_bytes]
            stream = io.BytesIO(self._text[self._text.index(b"[") + 1 + len(begin) :])
            helper.add_batches(Batches(stream, begin, DEFAULT_LIMITS, self._division.batch_bytes), is_of(number))
            parts.append(helper.collector.collected())
        return parts


def read_in_turn(events: Sequence[str], owners: Sequence[set[int]], division: Division) -> tuple[Header, Columns]:
    text = ("[" + ", ".join(events) + "]").encode()

    class Stream(io.BytesIO):
        """Whose first piece ends where that of the helpers does."""

        begun = False

        def read(self, num_bytes: int | None = -1, /) -> bytes:
            extra, self.begun = 0 if self.begun else 1, True
            return super().read((num_bytes or 0) + extra)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto, "DIVISION", division)
        helpers: Any = InTurn(owners, text, division)
        return kineto._read_in_batches(Stream(text), DEFAULT_LIMITS, helpers)


DIVISIONS = st.builds(
    Division, batch_bytes=st.sampled_from([150, 400, 1500]), batches_per_group=st.integers(1, 3),
    first_groups=st.integers(0, 3),
)  # fmt: skip


OWNERS = st.lists(st.sets(st.integers(0, 2), min_size=1), min_size=1, max_size=7)


def by_name(lane: Any) -> Any:
    return f"thread {lane}"


@settings(max_examples=150)
@given(
    st.one_of(traces, st.tuples(host_traces, device_traces).map(lambda both: [*both[0], *both[1]])),
    OWNERS, DIVISIONS, st.booleans(), st.sampled_from([0, 1_712_195_495_601_442_533]), st.booleans(),
)  # fmt: skip
def test_whoever_decodes_which_group_the_same_is_read(
    events: list[Event], owners: list[set[int]], division: Division, has_names: bool, later_ns: int, only_late: bool
) -> None:
    if has_names:
        events = renamed(events, by_name)
    moved = events[len(events) // 2 :] if only_late else events
    texts = [event.text() for event in [*events[: len(events) - len(moved)], *(one.moved(later_ns) for one in moved)]]
    try:
        expected = read_in_turn(texts, [], division)
    except OddLayoutError:  # its kernel has "ph" in its arguments: such a file is not shared
        return
    assert_same(read_in_turn(texts, owners, division), expected)


def test_ops_that_stand_for_no_compute_end_nothing_where_a_helper_sees_no_device() -> None:
    ops = [Event("cpu_op", "aten::mul", 1000 * i, 1000 * i + 500, 1) for i in range(1, 40)]
    texts = [event.text() for event in [*kernels(3), *ops]]
    alone, shared = (read_in_turn(texts, owners, SMALL) for owners in ([], [{1}]))
    assert_same(shared, alone)
    assert alone[1].last_ns < ops[0].end


@pytest.mark.skipif(not SHARED_TRACES, reason="the traces of others are not part of the project: no ../shared")
@pytest.mark.parametrize("path", SHARED_TRACES, ids=lambda path: path.name.partition(".")[0])
def test_real_traces_are_read_the_same(path: Path) -> None:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"][:20_000]
    texts = [json.dumps({"ph": event["ph"], **event}) for event in events]
    division = Division(batch_bytes=50_000, batches_per_group=2, first_groups=3)
    expected = read_in_turn(texts, [], division)
    assert_same(read_in_turn(texts, [{1}, {0}, {2}, {0}, {1, 2}], division), expected)


def test_a_process_that_has_threads_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another thread has locked at that moment stays locked in the child."""

    def start_method() -> str:
        return file_bytes.start_context().get_start_method()

    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread()])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert start_method() == ("fork" if sys.platform == "linux" else "spawn")
    with monkeypatch.context() as patch:
        waiting = threading.Thread(name="ddpprof-waits-for-parent")  # in a process of the pool
        patch.setattr(threading, "enumerate", lambda: [threading.current_thread(), waiting])
        assert start_method() == ("fork" if sys.platform == "linux" else "spawn")
        patch.setattr(threading, "enumerate", lambda: [threading.current_thread(), threading.Thread()])
        assert start_method() == "spawn"
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert start_method() == "spawn"


@pytest.mark.parametrize(("megabytes", "helpers"), [(99, 0), (100, 1), (799, 1), (800, 2), (5000, 12)])
def test_the_larger_a_file_the_more_may_help(megabytes: int, helpers: int) -> None:
    """The memory of each is within 6 % of the JSON."""
    assert decode._worth_starting(megabytes * 10**6, Division()) == helpers


def test_a_small_file_is_read_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UnreadableError("was shared")

    monkeypatch.setattr(decode.Helpers, "start", refuse)
    read_trace(written(tmp_path, kernels(40)), num_processes=2)
    monkeypatch.setattr(kineto, "DIVISION", SMALL)
    with pytest.raises(BadTrace, match="was shared"):
        read_trace(written(tmp_path, kernels(40)), num_processes=2)
