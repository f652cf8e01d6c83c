"""Measures of the package's structure, counted from its source: modules, lines, functions and import circles.

python tests/support/structure.py

`analyses/roads/count.py` counts the modules that data passes through.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

PACKAGE = Path(__file__).parents[2] / "ddpprof"


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the package."""

    name: str
    lines: Sequence[str]
    tree: ast.Module

    @property
    def function_lines(self) -> list[int]:
        functions = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        return [(one.end_lineno or one.lineno) - one.lineno + 1 for one in functions]


def modules() -> list[Module]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found.append(Module(name, text.splitlines(), ast.parse(text)))
    return found


def imports_at_start(known: Sequence[Module]) -> dict[str, set[str]]:
    """Return which modules each one imports when it is imported, and what it imports for its types."""
    names = {one.name for one in known}
    return {one.name: set(_imported(one.tree.body, names)) - {one.name} for one in known}


def _imported(body: Sequence[ast.stmt], names: set[str]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.If):
            yield from _imported(node.body, names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield from {full if full in names else node.module} & names
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & names


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(one: str) -> None:
        index[one] = low[one] = len(index)
        stack.append(one)
        for other in sorted(imports[one]):
            if other not in index:
                visit(other)
                low[one] = min(low[one], low[other])
            elif other in stack:
                low[one] = min(low[one], index[other])
        if low[one] == index[one]:
            group = []
            while not group or group[-1] != one:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for one in imports:
        if one not in index:
            visit(one)
    return found


def main() -> None:
    known = modules()
    lengths = [length for one in known for length in one.function_lines]
    print(f"{len(known)} modules, {sum(len(one.lines) for one in known):,} lines")
    print(
        f"functions: median {median(lengths):g} lines, 95 % at most {quantiles(lengths, n=20)[-1]:.0f}, longest "
        f"{max(lengths)}"
    )
    for group in circles(imports_at_start(known)):
        print(f"circle: {', '.join(group)}")


if __name__ == "__main__":
    main()
