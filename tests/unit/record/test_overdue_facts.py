"""What a process tells of itself once its step is overdue."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace

from ddpprof.model.overdue import Call, KindOfCall, OverdueFacts, Wait, decode_facts, encode_facts
from ddpprof.record import overdue_facts
from ddpprof.record.flight_recorder import NumberedCollective

BARRIER = ("0", "barrier", 0)
REDUCE = ("0", "all_reduce", 8)


def noted(*kinds: tuple[str, str, int]) -> tuple[NumberedCollective, ...]:
    return tuple(NumberedCollective(at, group, at, name, numel) for at, (group, name, numel) in enumerate(kinds, 1))


def test_calls_are_numbered_and_those_of_earlier_steps_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue_facts, "numbered_collectives", lambda: noted(BARRIER, REDUCE, REDUCE, BARRIER))
    facts = overdue_facts.overdue_facts(threading.get_ident(), 2, None, "")
    assert facts.calls[-1] == Call("0", 4, "barrier", 0)
    assert facts.kinds == (KindOfCall(*REDUCE, 2, (2, 3)),)


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
    facts = OverdueFacts(calls=calls, kinds=(KindOfCall(*REDUCE, 9, (4, 7)),), wait=Wait.NETWORK)
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
