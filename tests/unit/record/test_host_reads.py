"""Reads of tensors that the host waits for. The tensors are on the CPU, and count as if on an accelerator."""

import threading
import warnings
from collections.abc import Iterator
from copy import deepcopy

import pytest
import torch
import torch._dynamo.utils

from ddpprof.record import script_lines
from ddpprof.record.events import EVENTS
from ddpprof.record.script_lines import HostReads


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostReads]:
    monkeypatch.setattr(script_lines, "_is_on_host", lambda tensor: tensor.dtype is torch.float64)
    monkeypatch.setattr(EVENTS, "training_thread", threading.get_ident())
    made = HostReads()
    made.watch(True)
    yield made
    made.watch(False)


def found(reads: HostReads) -> dict[tuple[str, str], int]:
    """Return the number of calls by method and function."""
    return {(one.written, one.place.split(" in ")[1]): one.num_calls for one in reads.facts()["host_reads"]}


def test_each_line_that_reads_is_noted(reads: HostReads) -> None:
    loss, mask = torch.tensor(2.5), torch.tensor([0.0, 1.0])

    def logs() -> None:
        for _ in range(3):
            assert loss.item() == 2.5
        assert float(loss) == 2.5

    def branches() -> None:
        assert loss
        assert mask.nonzero().tolist() == [[1]]

    logs()
    branches()
    reads.watch(False)
    loss.item()
    assert found(reads) == {
        ("item()", "logs"): 3,
        ("float()", "logs"): 1,
        ("bool()", "branches"): 1,
        ("nonzero()", "branches"): 1,
        ("tolist()", "branches"): 1,
    }
    (bool_,) = [one for one in reads.facts()["host_reads"] if one.written == "bool()"]
    assert bool_.place == f"{__file__}:{branches.__code__.co_firstlineno + 1} in branches"
    assert bool_.waited_ns > 0


def test_a_read_in_a_scaler_is_that_of_the_line_that_calls_it(reads: HostReads) -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum()).backward()

    def steps() -> None:
        scaler.step(optimizer)

    steps()
    (of_scaler,) = [one for one in reads.facts()["host_reads"] if one.written == "item()"]
    assert (of_scaler.place.split(" in ")[1], of_scaler.library) == ("steps", "amp/grad_scaler.py")
    assert of_scaler.is_of_scaler


def test_the_line_that_empties_the_cache_is_noted(reads: HostReads) -> None:
    def cleans_up() -> None:
        torch.cuda.empty_cache()

    cleans_up()
    assert found(reads) == {("torch.cuda.empty_cache()", "cleans_up"): 1}
    assert reads.facts()["host_reads"][0].empties_cache


def test_methods_that_call_each_other_count_once(reads: HostReads) -> None:
    def prints() -> str:
        return f"{torch.tensor([1.0, 2.0])!r}"

    assert prints() == "tensor([1., 2.])"
    assert found(reads) == {("print()", "prints"): 1}


def test_values_on_the_host_and_of_other_threads_do_not_count(reads: HostReads) -> None:
    torch.tensor(1.0, dtype=torch.float64).item()
    other = threading.Thread(target=torch.tensor(1.0).item)
    other.start()
    other.join()
    torch.ones(2).to(torch.float16)  # stays where it is
    assert found(reads) == {}


def test_a_copy_to_the_host_counts(reads: HostReads) -> None:
    def copies() -> None:
        torch.ones(2).to(torch.float64)

    copies()
    assert found(reads) == {("to()", "copies"): 1}


def test_an_error_of_the_read_is_the_scripts(reads: HostReads) -> None:
    with pytest.raises(RuntimeError, match="Scalar"):
        torch.ones(2).item()
    torch.ones(1).item()
    assert sum(found(reads).values()) == 1


def test_torch_is_afterwards_as_before() -> None:
    before = dict(vars(torch.Tensor))
    made = HostReads()
    for _ in range(2):
        made.watch(True)
        assert dict(vars(torch.Tensor)) != before
        made.watch(False)
        made.watch(False)
        assert dict(vars(torch.Tensor)) == before


@pytest.fixture
def uncounted() -> Iterator[None]:
    """Forget what this test compiles, since ddpprof asks torch's counters whether the process compiles."""
    before = deepcopy(dict(torch._dynamo.utils.counters))
    yield
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.counters.update(before)


@pytest.mark.usefixtures("uncounted")
def test_torch_compile_makes_the_same_graphs_meanwhile(reads: HostReads) -> None:
    def reads_twice(values: torch.Tensor) -> torch.Tensor:
        if values.sum() > 0:
            values = values + 1
        return values * values.max().item()

    values = torch.ones(4)
    reads.watch(False)
    alone = torch._dynamo.explain(reads_twice)(values)
    torch._dynamo.reset()
    reads.watch(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        meanwhile = torch._dynamo.explain(reads_twice)(values)
        assert torch.equal(torch.compile(reads_twice, backend="eager")(values), torch.full((4,), 4.0))
    torch._dynamo.reset()
    assert (meanwhile.graph_count, meanwhile.graph_break_count) == (alone.graph_count, alone.graph_break_count)
