"""What only this process knows of a step that takes far too long."""

from __future__ import annotations

import io
import json
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from ddpprof.model.overdue import Call, KindOfCall, OverdueFacts, Wait, decode_facts, encode_facts
from ddpprof.record import overdue_facts
from ddpprof.record.overdue_facts import (
    Collective,
    all_reduces_since,
    collectives,
    place_of,
    unusual_collective,
)

REDUCE, BUFFERS, BROADCAST = ("all_reduce", 100), ("broadcast", 80), ("broadcast", 5)
STARTS_NS = [100 * step for step in range(1, 9)]


def noted(*steps: list[tuple[str, int]], first_ns: int = 100) -> list[Collective]:
    """Return collectives of steps that begin 100 ns apart."""
    return [
        Collective(first_ns + 100 * step + index, *kind)
        for step, kinds in enumerate(steps)
        for index, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        pytest.param([BUFFERS, REDUCE, REDUCE], None, id="as-always"),
        pytest.param([BROADCAST, BUFFERS], BROADCAST, id="another-one"),
        pytest.param([BUFFERS, ("broadcast", 79)], ("broadcast", 79), id="another-size"),
        pytest.param([BUFFERS, BUFFERS], BUFFERS, id="more-often"),
        pytest.param([BUFFERS, ("all_gather", 8), *[REDUCE] * 4], None, id="what-others-are-waited-for"),
        pytest.param([], None, id="fewer"),
    ],
)
def test_a_collective_that_no_step_before_had_so_often_is_unusual(
    last: list[tuple[str, int]], expected: tuple[str, int] | None
) -> None:
    found = unusual_collective(noted(*[[BUFFERS, REDUCE, REDUCE]] * 7, last), STARTS_NS)
    assert (None if found is None else (found.name, found.numel)) == expected


def test_nothing_is_unusual_after_few_steps_or_before_the_first() -> None:
    assert unusual_collective(noted(*[[REDUCE]] * 4, [BROADCAST]), STARTS_NS[:5]) is None
    assert unusual_collective(noted([BROADCAST], *[[REDUCE]] * 8, first_ns=0), STARTS_NS) is None
    assert unusual_collective([], STARTS_NS) is None


def test_torch_is_asked_for_its_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    entries: list[dict[str, Any]] = [
        {"profiling_name": "gloo:broadcast", "input_sizes": [[5]], "time_created_ns": 10},
        {"profiling_name": "gloo:all_reduce", "input_sizes": [[5, 4]], "time_created_ns": 20},
        {"profiling_name": "gloo:allreduce", "input_sizes": [], "time_created_ns": 30},
        {"profiling_name": "without a time"},
    ]
    c10d = torch._C._distributed_c10d
    monkeypatch.setattr(c10d, "_dump_nccl_trace_json", lambda *_: b"[]", raising=False)
    monkeypatch.setattr(c10d, "_dump_fr_trace_json", lambda *_: json.dumps({"entries": entries}), raising=False)
    reduced = (Collective(20, "all_reduce", 20), Collective(30, "allreduce", 0))
    assert collectives(of_nccl=False) == (Collective(10, "broadcast", 5), *reduced)
    assert all_reduces_since(15) == reduced
    assert all_reduces_since(21) == reduced[1:]
    nccl = {"entries": [{"profiling_name": "nccl:all_reduce", "input_sizes": [[7]], "time_created_ns": 40}]}
    monkeypatch.setattr(c10d, "_dump_nccl_trace_json", lambda *_: json.dumps(nccl), raising=False)
    assert all_reduces_since(21) == (Collective(40, "all_reduce", 7),)


def test_the_line_that_called_a_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    library = {"filename": "/lib/python3.11/site-packages/torch/distributed/c10d.py", "line": 3, "name": "broadcast"}
    mine, main = (
        {"filename": "/home/me/train.py", "line": line, "name": name} for line, name in ((9, "f"), (20, "main"))
    )
    entries = [{"time_created_ns": 10, "frames": [library, mine, main]}, {"time_created_ns": 20, "frames": [library]}]
    c10d = torch._C._distributed_c10d
    monkeypatch.setattr(c10d, "_dump_fr_trace", lambda *_: pickle.dumps({"entries": entries}), raising=False)
    assert place_of(Collective(10, "broadcast", 5)) == "/home/me/train.py:9 in f"
    assert place_of(Collective(20, "broadcast", 5)) is None
    assert place_of(Collective(30, "broadcast", 5)) is None
    monkeypatch.delattr(c10d, "_dump_fr_trace")
    assert place_of(Collective(10, "broadcast", 5)) is None


BARRIER = ("0", "barrier", 0)
NUMBERED_REDUCE = ("0", "all_reduce", 8)


def numbered(*kinds: tuple[str, str, int]) -> tuple[Collective, ...]:
    return tuple(Collective(at, name, numel, group, at) for at, (group, name, numel) in enumerate(kinds, 1))


def test_calls_are_numbered_and_those_of_earlier_steps_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = numbered(BARRIER, NUMBERED_REDUCE, NUMBERED_REDUCE, BARRIER)
    monkeypatch.setattr(overdue_facts, "collectives", lambda: calls)
    facts = overdue_facts.overdue_facts(threading.get_ident(), 2, None, "")
    assert facts.calls[-1] == Call("0", 4, "barrier", 0)
    assert facts.kinds == (KindOfCall(*NUMBERED_REDUCE, 2, (2, 3)),)


@pytest.mark.parametrize(
    ("last", "sequence", "is_due"),
    [((4, 8), 12, True), ((4, 8), 11, False), ((8,), 30, True), ((8, 9), 10, True)],
)
def test_a_call_is_due_after_the_same_distance(last: tuple[int, ...], sequence: int, is_due: bool) -> None:
    assert KindOfCall(*BARRIER, 9, last).is_due(sequence) is is_due


def seen_while(raises: Callable[[], None]) -> OverdueFacts:
    """Return what is known of this thread while it handles an error."""
    found: list[OverdueFacts] = []
    try:
        raises()
    except (ValueError, StopIteration):
        look = threading.Thread(
            target=lambda ident: found.append(overdue_facts.overdue_facts(ident, 0, None, "")),
            args=(threading.get_ident(),),
        )
        look.start()
        look.join()
    return found[0]


def raises_an_error() -> None:
    raise ValueError("label 7\nout of range")


def runs_out() -> None:
    next(iter(()))


def test_the_error_that_a_thread_is_handling() -> None:
    facts = seen_while(raises_an_error)
    assert facts.error == "ValueError: label 7 out of range"
    assert (facts.error_place or "").endswith("in raises_an_error")
    assert seen_while(runs_out).error is None, "a loop that runs out is no error"


def test_facts_that_are_too_long_lose_their_oldest_calls() -> None:
    calls = tuple(Call("0", number, "all_reduce", 100_000) for number in range(1000))
    facts = OverdueFacts(calls=calls, kinds=(KindOfCall(*NUMBERED_REDUCE, 9, (4, 7)),), wait=Wait.NETWORK)
    content = encode_facts(facts, 8000)
    assert len(content) <= 8000
    kept = decode_facts(content + b"\0 what was there before")
    assert kept is not None
    assert (kept.calls, kept.kinds, kept.wait) == (calls[-100:], facts.kinds, Wait.NETWORK)
    assert decode_facts(b"") is None


def test_a_checkpoint_that_another_thread_saves() -> None:
    """The training waits for the one before."""
    begins, ends = threading.Event(), threading.Event()

    class Slow:
        def __reduce__(self) -> tuple[type, tuple[()]]:
            begins.set()
            ends.wait()
            return (str, ())

    saves = threading.Thread(target=lambda: torch.save({"model": Slow()}, io.BytesIO()))
    saves.start()
    begins.wait()
    facts = overdue_facts.overdue_facts(threading.get_ident(), 0, None, "")
    ends.set()
    saves.join()
    assert facts.saves_in_thread
    assert not overdue_facts.overdue_facts(threading.get_ident(), 0, None, "").saves_in_thread


def test_a_training_in_another_thread_than_the_main_one() -> None:
    seen: list[OverdueFacts] = []

    def trains() -> None:
        seen.append(overdue_facts.overdue_facts(threading.get_ident(), 0, None, ""))
        seen.append(replace(seen[0], thread=threading.get_native_id()))

    thread = threading.Thread(target=trains)
    thread.start()
    thread.join()
    assert seen[0].thread == seen[1].thread
    assert overdue_facts.overdue_facts(threading.get_ident(), 0, None, "").thread is None


def test_the_exception_that_ended_a_thread_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", overdue_facts.note_ended_thread(shown.append))

    def feeds() -> None:
        raise KeyError(19)

    thread = threading.Thread(target=feeds, name="feeder")
    thread.start()
    thread.join()
    facts = overdue_facts.overdue_facts(threading.get_ident(), 0, None, "")
    assert facts.ended_thread is not None
    assert facts.ended_thread.startswith(f"its thread feeder has ended with KeyError: 19 at {__file__}:")
    assert len(shown) == 1, "the script's own hook is still called"


@pytest.mark.parametrize(
    ("last", "name"),
    [
        pytest.param(Collective(1, "recv", 4, is_p2p=True), "recv", id="nccl"),
        pytest.param(Collective(1, "all_reduce", 4, is_over=True), "isend or irecv", id="gloo-does-not-record-it"),
        pytest.param(Collective(1, "all_reduce", 4), None, id="a-collective"),
        pytest.param(None, None, id="nothing-is-known"),
    ],
)
def test_the_point_to_point_operation_that_is_waited_for(
    last: Collective | None, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overdue_facts, "collectives", lambda: () if last is None else (last,))
    assert overdue_facts.overdue_facts(threading.get_ident(), 0, None, "").last_p2p == name
