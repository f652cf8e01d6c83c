"""Only the helper writes and removes files. Ruff finds functions that do; methods of a `Path` are looked for here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import ddpprof

PACKAGE = Path(ddpprof.__file__).parent
WRITING = {"write_text", "write_bytes", "unlink", "rmdir", "rename", "touch", "symlink_to", "hardlink_to", "mkdir"}
ALLOWED = {
    "own_files.py": "the helper",
    "files/remote.py": "stores far away, which have their own names for it",
    "cli/output.py": "the same, where --out names one",
    "rundir.py": "removes folders that are empty",
    "pipeline/entry.py": "fills the part that the helper has made",
    "pipeline/workers.py": "likewise",
    "cli/timeline.py": "likewise",
    "load/plugin_trace.py": "likewise",
    "record/profiler.py": "likewise",
    "cli/tensorboard.py": "in a scratch folder; moves folders that the helper has made to where links are not followed",
    "record/launch.py": "in a scratch folder",
    "record/inject/_ddpprof_ends.py": "in a scratch folder, in a process that imports nothing of ddpprof",
}


def writing_calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        modes = [one.value for one in (*node.args, *(word.value for word in node.keywords))
                 if isinstance(one, ast.Constant) and isinstance(one.value, str)]  # fmt: skip
        opens = name in ("open", "_gzip_open") and any(set(mode) & set("wax+") and len(mode) <= 3 for mode in modes)
        if name in WRITING or opens:
            yield node


def test_files_are_written_and_removed_by_the_helper() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(writing_calls(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert found - ALLOWED.keys() == set(), "use ddpprof.own_files, or say here why not"
    assert ALLOWED.keys() - found == set(), "no longer needed"
