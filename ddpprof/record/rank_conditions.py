"""Some collectives of a training script may be called on some ranks only, as within ``if rank == 0:``; they are found.

Other ranks never take part, so the job hangs there. Only the script itself is read, once, and only what leaves no doubt
counts: it is the one call of that collective in the script, it is of the default group, and no other branch of the
function is for other ranks.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from ddpprof.model import CollectiveOfSomeRanks
from ddpprof.model.stack import COLLECTIVES_OF_ALL

_MOST_BYTES = 100_000
"""scripts that take less than 0.1 s to read"""
_RANK_NAMES = frozenset({"rank", "global_rank"})
"""names of a number that every rank has to itself; a local rank may be 0 on all of them"""
_RANK_WORDS = re.compile(r"rank|main_process|master", re.IGNORECASE)
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_ESCAPED = b"\\'\"abfnrtvxuUN01234567\r\n"
_NAMES = ast.Name | ast.Attribute
_GROUP_ARGUMENTS = frozenset({"group", "process_group", "pg", None})
"""None stands for ``**kwargs``"""
_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


@cache
def of_main_script() -> tuple[CollectiveOfSomeRanks, ...]:
    """Return the collectives that the running script calls on some ranks only; none if it cannot be read."""
    try:
        path = Path(str(sys.modules["__main__"].__file__))
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return ()
        content = path.read_bytes()
        if not any(name.encode() in content for name in COLLECTIVES_OF_ALL):
            return ()
        return tuple(collectives_of_some_ranks(ast.parse(without_warnings(content)), path.name))
    except Exception:  # whatever the script is, its training goes on
        return ()


def without_warnings(source: bytes) -> bytes:
    """Return the source without escapes that mean nothing, of which Python would warn for a second time.

    Those warnings cannot be switched off for one thread only.
    """
    return _ESCAPE.sub(lambda found: found[0] if found[1] in _ESCAPED else b"\\" + found[0], source)


def collectives_of_some_ranks(script: ast.Module, file: str) -> Iterator[CollectiveOfSomeRanks]:
    """Give the collectives of a script that only some of the ranks call."""
    names = _names_of_distributed(script)
    calls = (one for one in ast.walk(script) if isinstance(one, ast.Call))
    collectives = {call: name for call in calls if (name := _collective(call, names)) is not None}
    num_calls = Counter(collectives.values())
    for function in (one for one in ast.walk(script) if isinstance(one, _Function)):
        branches = [one for one in _own_nodes(function.body) if isinstance(one, ast.If) and _mentions_ranks(one.test)]
        if len({ast.unparse(one.test) for one in branches}) != 1:
            continue  # there may be one for the other ranks
        for branch in branches:
            if not _compares_rank(branch.test) or branch.orelse or _leaves(branch.body):
                continue
            for call in (one for one in _own_nodes(branch.body) if isinstance(one, ast.Call)):
                name = collectives.get(call)
                if name is not None and num_calls[name] == 1 and _is_of_default_group(call, name):
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
    return any(_RANK_WORDS.search(name) for name in names)


def _compares_rank(test: ast.expr) -> bool:
    """Return whether it compares the rank with a number, as in ``rank == 0``."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq | ast.NotEq):
        return False
    left, right = test.left, test.comparators[0]
    if not isinstance(right, ast.Constant) or type(right.value) is not int:
        return False
    if isinstance(left, ast.Call):
        return not left.args and not left.keywords and ast.unparse(left.func).rpartition(".")[2] == "get_rank"
    return isinstance(left, _NAMES) and ast.unparse(left).rpartition(".")[2] in _RANK_NAMES


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Return whether what follows the branch may be for the other ranks only."""
    return any(isinstance(one, _LEAVES) for one in _own_nodes(body))


def _is_of_default_group(call: ast.Call, name: str) -> bool:
    most = 0 if name in ("barrier", "monitored_barrier") else 2
    by_position = len(call.args) <= most and not any(isinstance(one, ast.Starred) for one in call.args)
    return by_position and not any(one.arg in _GROUP_ARGUMENTS for one in call.keywords)
