"""What the recorder notes of a call: it is handed on once, unchanged, and its answer is seen."""

from collections import namedtuple
from typing import Any

import pytest
import torch
from msgspec import structs
from torch.distributed.rpc.internal import RPCExecMode

from ddpprof.record import patches
from ddpprof.record.rpc import RpcNotes, tensor_bytes, wrap_invoke

Worker = namedtuple("Worker", "name id")


def lookup(indices: torch.Tensor) -> torch.Tensor:
    return indices


def row(to: Any = "ps", func: Any = lookup, args: Any = (), answer: Any = None) -> list[Any]:
    notes, future = RpcNotes(), torch.futures.Future[Any]()
    notes.invoked(5, future, to, func, RPCExecMode.SYNC, args, {})
    if isinstance(answer, Exception):
        future.set_exception(answer)
    elif answer is not None:
        future.set_result(answer)
    (noted,) = notes.calls()
    return list(structs.astuple(noted))


def test_a_call_and_its_answer() -> None:
    callee, function, kind, start, end, request, reply = row(args=(torch.zeros(3),), answer=torch.zeros(5, 2))
    assert (callee, function, kind, start, request, reply) == ("ps", "lookup", "sync", 5, 12, 40)
    assert end > start


def test_a_call_that_fails_or_is_not_answered() -> None:
    assert row()[4:] == [None, 0, None]
    end, request, reply = row(answer=ValueError("on the callee"))[4:]
    assert (end > 5, request, reply) == (True, 0, None)


@pytest.mark.parametrize(
    ("to", "name"), [("ps", "ps"), (Worker("trainer1", 1), "trainer1"), (2, "worker 2")], ids=["name", "info", "number"]
)
def test_callees(to: Any, name: str) -> None:
    assert row(to=to)[0] == name


def test_a_method_behind_a_remote_reference_has_its_own_name() -> None:
    from torch.distributed.rpc.rref_proxy import _local_invoke

    assert row(func=_local_invoke, args=("rref", "update", (), {}))[1] == "update"


def test_bytes_of_tensors_in_what_a_call_carries() -> None:
    assert tensor_bytes(({"a": [torch.zeros(2)], "b": 7}, (torch.zeros(1, dtype=torch.int64), "text"))) == 16


def test_only_so_many_calls_are_kept() -> None:
    notes = RpcNotes()
    for _ in range(2003):
        notes.invoked(0, torch.futures.Future[Any](), "ps", lookup, RPCExecMode.ASYNC, (), {})
    assert (len(notes.calls()), notes.num_left_out) == (2000, 3)
    notes.end_step()
    assert (notes.calls(), notes.num_left_out) == ((), 0)


@pytest.mark.parametrize("listens", [True, False])
def test_the_call_goes_through_once_and_unchanged(listens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, noted, future = [], [], torch.futures.Future[Any]()

    class Session:
        def rpc_invoked(self, *what: Any) -> None:
            noted.append(what[1:])

    def original(*args: Any, **kwargs: Any) -> Any:
        seen.append((args, kwargs))
        return future

    monkeypatch.setattr(patches, "_active", Session() if listens else None)
    invoke = wrap_invoke(original)
    assert invoke("ps", lookup, "kind", (1,), {"k": 2}, 3.0) is future
    assert seen == [(("ps", lookup, "kind", (1,), {"k": 2}, 3.0), {})]
    assert noted == ([(future, "ps", lookup, "kind", (1,), {"k": 2})] if listens else [])


def test_torch_still_calls_what_is_wrapped() -> None:
    """`rpc_sync` and `rpc_async` find it by its name in their module, with these parameters."""
    import inspect

    from torch.distributed.rpc import api

    assert list(inspect.signature(api._invoke_rpc).parameters)[:5] == ["to", "func", "rpc_type", "args", "kwargs"]
    for function in (api.rpc_sync, api.rpc_async):
        assert "_invoke_rpc" in inspect.unwrap(function).__code__.co_names
