"""Collectives that a script calls on some ranks only are found, and nothing else is reported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddpprof.model import CollectiveOfSomeRanks
from ddpprof.record.rank_conditions import collectives_of_some_ranks, of_main_script, without_warnings

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
