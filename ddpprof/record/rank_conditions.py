"""Which collectives does the training script call on some ranks only, as within ``if rank == 0:``?

Other ranks never take part, so the job hangs there. Only the script itself is read, once, and only what leaves no doubt
counts: it is the one call of that collective in the script, it is of the default group, and no other branch of the
function is for other ranks.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from ddpprof.model import CollectiveOfSomeRanks
from ddpprof.model.stack import COLLECTIVES_OF_ALL

_MOST_BYTES = 1_000_000
_RANKS = frozenset({"rank", "global_rank", "local_rank"})
_OF_RANKS = re.compile(r"rank|main_process|master", re.IGNORECASE)
_NAMES = ast.Name | ast.Attribute
_GROUP_ARGUMENTS = frozenset({"group", "process_group", "pg", None})
"""None stands for ``**kwargs``"""
_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


@cache
def of_main_script() -> tuple[CollectiveOfSomeRanks, ...]:
    """Return those of the script that runs; none if it cannot be read."""
    try:
        path = Path(str(sys.modules["__main__"].__file__))
        content = path.read_bytes()
        if len(content) > _MOST_BYTES:
            return ()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tuple(collectives_of_some_ranks(ast.parse(content), path.name))
    except Exception:
        return ()


def collectives_of_some_ranks(script: ast.Module, file: str) -> Iterator[CollectiveOfSomeRanks]:
    """Give the collectives of a script that only some of the ranks call."""
    names = _names_of_distributed(script)
    every_call = (one for one in ast.walk(script) if isinstance(one, ast.Call))
    calls = {call: name for call in every_call if (name := _collective(call, names)) is not None}
    times = Counter(calls.values())
    for function in (one for one in ast.walk(script) if isinstance(one, _Function)):
        branches = [one for one in _own_nodes(function.body) if isinstance(one, ast.If) and _mentions_ranks(one.test)]
        if len({ast.unparse(one.test) for one in branches}) != 1:
            continue  # there may be one for the other ranks
        for branch in branches:
            if not _compares_rank(branch.test) or branch.orelse or _leaves(branch.body):
                continue
            for call in (one for one in _own_nodes(branch.body) if isinstance(one, ast.Call)):
                name = calls.get(call)
                if name is not None and times[name] == 1 and _is_of_default_group(call, name):
                    where = "" if isinstance(function, ast.Module) else f" in {function.name}"
                    yield CollectiveOfSomeRanks(name, f"{file}:{call.lineno}{where}", ast.unparse(branch.test))


def _own_nodes(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Give all nodes of a body, without those of functions and classes within it, which run at another time."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield node
            waiting.extend(ast.iter_child_nodes(node))


def _names_of_distributed(script: ast.Module) -> dict[str, str]:
    """Return what the script calls ``torch.distributed``, and functions that it imports from there, by their names."""
    names = {"torch.distributed": ""}
    for node in ast.walk(script):
        if isinstance(node, ast.Import):
            names |= {one.asname: "" for one in node.names if one.name == "torch.distributed" and one.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            names |= {one.asname or one.name: "" for one in node.names if one.name == "distributed"}
        elif isinstance(node, ast.ImportFrom) and node.module == "torch.distributed":
            names |= {one.asname or one.name: one.name for one in node.names}
    return names


def _collective(call: ast.Call, names: dict[str, str]) -> str | None:
    """Return the collective that is called; ``None`` if the call is another one."""
    if isinstance(call.func, ast.Attribute) and names.get(ast.unparse(call.func.value)) == "":
        name = call.func.attr
    elif isinstance(call.func, ast.Name):
        name = names.get(call.func.id, "")
    else:
        return None
    return name if name in COLLECTIVES_OF_ALL else None


def _mentions_ranks(test: ast.expr) -> bool:
    names = (one.id if isinstance(one, ast.Name) else one.attr for one in ast.walk(test) if isinstance(one, _NAMES))
    return any(_OF_RANKS.search(name) for name in names)


def _compares_rank(test: ast.expr) -> bool:
    """Return whether it compares the rank with a number, as in ``rank == 0``."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq | ast.NotEq):
        return False
    left, right = test.left, test.comparators[0]
    if not isinstance(right, ast.Constant) or type(right.value) is not int:
        return False
    if isinstance(left, ast.Call):
        return not left.args and ast.unparse(left.func).rpartition(".")[2] == "get_rank"
    return isinstance(left, _NAMES) and ast.unparse(left).rpartition(".")[2] in _RANKS


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Return whether what follows the branch may be for the other ranks only."""
    return any(isinstance(one, _LEAVES) for one in _own_nodes(body))


def _is_of_default_group(call: ast.Call, name: str) -> bool:
    most = 0 if name in ("barrier", "monitored_barrier") else 2
    by_position = len(call.args) <= most and not any(isinstance(one, ast.Starred) for one in call.args)
    return by_position and not any(one.arg in _GROUP_ARGUMENTS for one in call.keywords)
