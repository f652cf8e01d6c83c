"""Parameters that are trained apart, and collectives that only some ranks call."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddpprof.model import CollectiveOfSomeRanks, UnaveragedParameters, UntrainedParameters
from ddpprof.record.consistency import Unaveraged, collectives_of_some_ranks, of_main_script, without_warnings
from ddpprof.record.ddp_construction import known_to_ddp, noting_parameters
from ddpprof.record.events import Events
from ddpprof.record.machine import PATIENCE_S, TrainingDevice


@pytest.fixture
def noting_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: Events) -> Iterator[None]:
    monkeypatch.setattr(DDP, "_ddp_init_helper", noting_parameters(DDP._ddp_init_helper))
    monkeypatch.setattr("ddpprof.record.ddp_construction._noted", type(_noted())())
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _noted() -> Any:
    from ddpprof.record import ddp_construction

    return ddp_construction._noted


def found_after_a_step(
    called: list[DDP],
    *trained: nn.Module | nn.Parameter,
    calls_later: tuple[DDP, ...] = (),
    device: TrainingDevice | None = None,
) -> Any:
    """Take one step of an optimizer of these between the two looks; each value becomes one smaller."""
    parameters = [one for each in trained for one in ([each] if isinstance(each, nn.Parameter) else each.parameters())]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    unaveraged = Unaveraged(device or TrainingDevice())
    for ddp in called:
        unaveraged.forward_begins(ddp)
    unaveraged.optimizer_begins(optimizer)
    unaveraged.optimizer_ends(optimizer)
    unaveraged.step_ends(1)
    unaveraged.optimizer_begins(optimizer)  # by now, ranks may differ
    unaveraged.second_look(2)  # too early: the recording has not begun
    unaveraged.first_look(3)
    for one in parameters:
        one.grad = torch.ones_like(one)
    optimizer.step()
    for ddp in calls_later:
        unaveraged.forward_begins(ddp)
    unaveraged.second_look(5)
    return unaveraged.facts()["unaveraged"]


def ones(*shape: int) -> nn.Linear:
    layer = nn.Linear(*shape)
    for one in layer.parameters():
        nn.init.ones_(one)
    return layer


@pytest.mark.usefixtures("noting_group")
def test_a_module_that_is_called_is_averaged() -> None:
    ddp = DDP(ones(2, 1))
    assert found_after_a_step([ddp], ddp) == ()
    assert found_after_a_step([], ddp, calls_later=(ddp,)) == ()


@pytest.mark.usefixtures("noting_group")
def test_a_module_that_is_never_called() -> None:
    ddp, other = DDP(ones(2, 1)), DDP(ones(2, 1))
    (one,) = found_after_a_step([other], ddp, other)
    assert (one.module, one.names, one.is_wrapped) == ("Linear", ("weight", "bias"), True)
    assert (one.replica.steps, one.replica.before, one.replica.after) == ((3, 5), (1.0,) * 3, (0.0,) * 3)
    assert one.shapes == ((1, 2), (1,))


@pytest.mark.usefixtures("noting_group")
@pytest.mark.parametrize(
    ("change", "names"),
    [
        pytest.param(None, ("0.weight", "0.bias"), id="forgotten"),
        pytest.param("frozen", (), id="frozen-after-wrapping"),
        pytest.param("changed", (), id="trained-by-something-else"),
        pytest.param("later", (), id="of-an-optimizer-that-steps-later"),
        pytest.param("rarely", (), id="of-an-optimizer-that-has-not-stepped"),
        pytest.param("copies", (), id="of-which-optimizers-have-copies"),
    ],
)
def test_parameters_that_no_optimizer_has(change: str | None, names: tuple[str, ...]) -> None:
    ddp = DDP(nn.Sequential(ones(2, 1), ones(1, 1)))
    lower, upper = ddp.module
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))] if change == "copies" else upper.parameters(), lr=1.0)
    of_lower = torch.optim.SGD(lower.parameters(), lr=1.0) if change in ("later", "rarely") else None
    unaveraged = Unaveraged(TrainingDevice())
    unaveraged.forward_begins(ddp)
    unaveraged.optimizer_ends(optimizer)
    if change == "frozen":
        lower.requires_grad_(False)
    unaveraged.first_look(3)
    if change == "changed":
        lower.weight.data = lower.weight.data - 1
    if change == "later":
        assert of_lower is not None
        unaveraged.optimizer_ends(of_lower)
    unaveraged.second_look(5)
    found = unaveraged.facts()["untrained"]
    assert found == ((UntrainedParameters("Sequential", names, 12),) if names else ())


@pytest.mark.usefixtures("noting_group")
@pytest.mark.parametrize(
    ("rates", "later", "names"),
    [
        pytest.param((0.0, 1.0), 0.0, ("0.weight", "0.bias"), id="a-part"),
        pytest.param((0, 1), 0, ("0.weight", "0.bias"), id="integers"),
        pytest.param((0.0, 1.0), 0.5, (), id="which-warms-up"),
        pytest.param((0.0, 0.0), 0.0, (), id="everything"),
        pytest.param((1.0, 1.0), 1.0, (), id="nothing"),
    ],
)
def test_parameters_whose_learning_rate_is_0(rates: tuple[float, float], later: float, names: tuple[str, ...]) -> None:
    ddp = DDP(nn.Sequential(ones(2, 1), ones(1, 1)))
    groups = [{"params": layer.parameters(), "lr": rate} for layer, rate in zip(ddp.module, rates, strict=True)]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    unaveraged = Unaveraged(TrainingDevice())
    unaveraged.forward_begins(ddp)
    unaveraged.optimizer_ends(optimizer)
    unaveraged.first_look(3)
    optimizer.param_groups[0]["lr"] = later
    for _ in range(2):
        ddp(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    unaveraged.second_look(5)
    expected = (UntrainedParameters("Sequential", names, 12, has_no_rate=True),) if names else ()
    assert unaveraged.facts()["untrained"] == expected


@pytest.mark.usefixtures("noting_group")
@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        pytest.param(None, True, id="a-teacher-with-gradients"),
        pytest.param("no-new-gradients", False, id="a-copy-with-old-gradients"),
        pytest.param("averaged", False, id="a-moving-average"),
        pytest.param("optimized", False, id="of-an-optimizer"),
    ],
)
def test_a_module_outside_ddp_that_gets_gradients_in_vain(change: str | None, is_found: bool) -> None:
    ddp, teacher = DDP(ones(2, 1)), nn.Sequential(ones(2, 1))
    trained = [*ddp.parameters(), *(teacher.parameters() if change == "optimized" else ())]
    optimizer = torch.optim.SGD(trained, lr=1.0)
    unaveraged = Unaveraged(TrainingDevice())
    unaveraged.forward_begins(ddp)
    unaveraged.optimizer_ends(optimizer)
    teacher(torch.ones(1, 2)).sum().backward()
    unaveraged.first_look(3)
    if change != "no-new-gradients":
        teacher(torch.ones(1, 2)).sum().backward()
    if change == "averaged":
        with torch.no_grad():
            teacher[0].weight.lerp_(torch.zeros(1, 2), 0.1)
    unaveraged.second_look(5)
    found = unaveraged.facts()["untrained"]
    names = ("0.weight", "0.bias")
    assert found == ((UntrainedParameters("Sequential", names, 12, False),) if is_found else ())


@pytest.mark.usefixtures("noting_group")
def test_a_module_that_was_not_wrapped() -> None:
    body, head = DDP(ones(2, 1)), nn.Sequential(ones(1, 1))
    (one,) = found_after_a_step([body], body, head)
    assert (one.module, one.names, one.is_wrapped) == ("Sequential", ("0.weight", "0.bias"), False)
    assert one.replica.steps == (0, 5), "it is looked at before its first step"


@pytest.mark.usefixtures("noting_group")
def test_a_parameter_outside_all_modules() -> None:
    body = DDP(ones(2, 1))
    (one,) = found_after_a_step([body], body, nn.Parameter(torch.ones(2)))
    assert one == UnaveragedParameters("", ("shape (2,)",), False, one.replica, ((2,),))


@pytest.mark.usefixtures("noting_group")
def test_parameters_that_are_not_missed() -> None:
    """Those that DDP was told to ignore, those of a module that no optimizer trains, and all of a job without DDP."""
    assert found_after_a_step([], ones(2, 1)) == ()
    inner = nn.Sequential(ones(2, 1), ones(1, 1))
    DDP._set_params_and_buffers_to_ignore_for_model(inner, ["0.weight", "0.bias"])
    ddp, idle = DDP(inner), DDP(ones(2, 1))
    assert found_after_a_step([ddp], ddp) == ()
    assert idle is not None


@pytest.mark.usefixtures("noting_group")
def test_modules_that_cannot_be_asked_do_not_matter() -> None:
    """One whose constructor does not call that of `nn.Module`, and one with an attribute ``modules`` of its own."""

    class Bare(nn.Module):
        def __init__(self) -> None:
            pass

    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.modules = [1]

    odd = [Bare(), Lists()]
    body, head = DDP(ones(2, 1)), ones(1, 1)
    (one,) = found_after_a_step([body], body, head)
    assert (one.module, one.names, len(odd)) == ("Linear", ("weight", "bias"), 2)


@pytest.mark.usefixtures("noting_group")
def test_an_optimizer_that_takes_the_place_of_another() -> None:
    """Its identity may be that of one that the script has dropped."""
    ddp = DDP(ones(2, 1))
    unaveraged = Unaveraged(TrainingDevice())
    for _ in range(20):
        unaveraged.optimizer_ends(torch.optim.SGD(ones(1, 1).parameters(), lr=1.0))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    unaveraged.optimizer_ends(optimizer)
    unaveraged.first_look(3)
    for one in ddp.parameters():
        one.grad = torch.ones_like(one)
    optimizer.step()
    unaveraged.second_look(5)
    assert [one.module for one in unaveraged.facts()["unaveraged"]] == ["Linear"]


@pytest.mark.usefixtures("noting_group")
def test_values_on_an_accelerator_wait_for_it_at_most_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those on an accelerator that is stuck, or on one on which DDP does not train, are not read."""
    device = TrainingDevice()
    unaveraged = Unaveraged(device)
    values = torch.ones(2, device="meta")
    assert unaveraged._values_of([values]) is None
    device.accelerators = (torch.device("meta"),)
    asked: list[float] = []
    monkeypatch.setattr(TrainingDevice, "comes_to_rest", lambda _device, patience_s: bool(asked.append(patience_s)))
    assert unaveraged._values_of([values]) is None
    assert asked == [PATIENCE_S]
    assert unaveraged._values_of([torch.ones(1)]) == (1.0,)
    assert asked == [PATIENCE_S]


@pytest.mark.usefixtures("noting_group")
def test_many_parameters_are_compared_at_once() -> None:
    """The sets of parameters are made once per module, not once per parameter."""
    made = []

    def counted(*args: Any, **kwargs: Any) -> set[int]:
        made.append(args)
        return known_to_ddp(*args, **kwargs)

    ddp, other = DDP(nn.Sequential(*(ones(1, 1) for _ in range(50)))), DDP(ones(2, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ddpprof.record.consistency.known_to_ddp", counted)
        assert len(found_after_a_step([other], ddp, other)) == 1
    assert len(made) <= 5


HEAD = "import torch.distributed as dist\n"


def found(source: str) -> list[CollectiveOfSomeRanks]:
    return list(collectives_of_some_ranks(ast.parse(source), "train.py"))


@pytest.mark.parametrize(
    ("source", "name", "place", "condition"),
    [
        pytest.param(
            f"{HEAD}def log(rank, loss):\n  if rank == 0:\n    dist.all_reduce(loss)\n    print(loss)\n",
            "all_reduce",
            "train.py:4 in log",
            "rank == 0",
            id="within-a-function",
        ),
        pytest.param(
            "import torch\nif torch.distributed.get_rank() != 1:\n  for i in x:\n    torch.distributed.barrier()\n",
            "barrier",
            "train.py:4",
            "torch.distributed.get_rank() != 1",
            id="deeper-in-the-script-itself",
        ),
        pytest.param(
            "from torch import distributed\ndef f(args):\n  if args.rank == 0:\n   distributed.broadcast(t, 0)\n",
            "broadcast",
            "train.py:4 in f",
            "args.rank == 0",
            id="rank-of-an-object",
        ),
        pytest.param(
            "from torch.distributed import all_gather_object as g\ndef f(rank):\n  if rank == 0:\n   g(a, b)\n",
            "all_gather_object",
            "train.py:4 in f",
            "rank == 0",
            id="under-another-name",
        ),
    ],
)
def test_a_collective_within_a_rank_condition(source: str, name: str, place: str, condition: str) -> None:
    assert found(source) == [CollectiveOfSomeRanks(name, place, condition)]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("dist.barrier()", id="without-a-condition"),
        pytest.param("if rank == 0:\n  print(1)\n dist.barrier()", id="behind-the-condition"),
        pytest.param("if rank == 0:\n  dist.barrier()\n else:\n  wait()", id="other-ranks-do-something-else"),
        pytest.param("if rank != 0:\n  dist.barrier()\n load()\n if rank == 0:\n  dist.barrier()", id="rank-0-first"),
        pytest.param("if rank == 0:\n  dist.barrier()\n if not is_master:\n  wait()", id="elsewhere-for-others"),
        pytest.param("if rank == 0:\n  dist.barrier()\n  return\n wait()", id="the-rest-is-for-others"),
        pytest.param("if rank == 0:\n  dist.barrier(group)", id="group-by-position"),
        pytest.param("if rank == 0:\n  dist.all_reduce(x, group=mine)", id="group-by-name"),
        pytest.param("if rank == 0:\n  dist.all_reduce(x, **options)", id="unknown-arguments"),
        pytest.param("if rank == 0:\n  dist.all_reduce(*arguments)", id="unknown-positions"),
        pytest.param("if rank == 0:\n  dist.send(x, 1)", id="not-of-all-ranks"),
        pytest.param("if rank == 0:\n  other.barrier()", id="of-another-library"),
        pytest.param("if rank < world_size:\n  dist.barrier()", id="not-plain"),
        pytest.param("if local_rank == 0:\n  dist.barrier()", id="the-same-on-all-hosts"),
        pytest.param("if dist.get_rank(group) == 0:\n  dist.barrier()", id="rank-within-a-group"),
        pytest.param("if dist.get_rank(group=mine) == 0:\n  dist.barrier()", id="rank-within-a-named-group"),
        pytest.param("if rank == 0:\n  dist.new_group([0])", id="a-group-of-its-members"),
        pytest.param("if step == 0:\n  dist.barrier()", id="not-of-ranks"),
        pytest.param("if rank == 0:\n  dist.barrier()\n dist.barrier()", id="twice"),
        pytest.param("if rank == 0:\n  def later():\n   dist.barrier()", id="at-another-time"),
    ],
)
def test_what_may_be_right_is_not_reported(body: str) -> None:
    assert found(f"{HEAD}def f(rank):\n {body}\n") == []


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Let a file be the script that runs."""

    def run(path: Path) -> None:
        monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=str(path)))  # type: ignore[arg-type]
        of_main_script.cache_clear()

    yield run
    of_main_script.cache_clear()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"if rank == 0:\n", id="no-python"),
        pytest.param(b"\xff\xfe\x00", id="no-text"),
        pytest.param(HEAD.encode() + b"#" * 100_001 + b"\nif rank == 0:\n  dist.barrier()\n", id="very-long"),
        pytest.param(None, id="not-there"),
    ],
)
def test_a_script_that_cannot_be_read(
    content: bytes | None, tmp_path: Path, run_script: Callable[[Path], None]
) -> None:
    script = tmp_path / "train.py"
    if content is not None:
        script.write_bytes(content)
    run_script(script)
    assert of_main_script() == ()


def test_the_script_that_runs_is_read_without_a_warning(
    tmp_path: Path, run_script: Callable[[Path], None], recwarn: pytest.WarningsRecorder
) -> None:
    patterns = 'first, second, third = "\\d", r"\\d", "\\\\d"\n'
    (tmp_path / "train.py").write_text(f"{HEAD}{patterns}if rank == 0:\n  dist.barrier()\n")
    run_script(tmp_path / "train.py")
    assert of_main_script() == (CollectiveOfSomeRanks("barrier", "train.py:4", "rank == 0"),)
    assert not recwarn.list


@pytest.mark.parametrize("literal", [r"'\n\t\\ \'\" \x41 \u00e9 \101 \N{BULLET}'", "r'\\d'", "'a\\\nb'"])
def test_escapes_that_mean_something_stay(literal: str) -> None:
    source = f"text = {literal}".encode()
    assert without_warnings(source) == source or literal.startswith("r")
    ast.parse(without_warnings(source))
