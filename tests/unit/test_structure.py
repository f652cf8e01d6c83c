"""The package's structure: what a reader can count on. `tests/support/structure.py` prints the numbers."""

import ast
from collections import Counter

import pytest
from structure import Module, circles, imports_at_start, modules


@pytest.fixture(scope="module")
def known() -> list[Module]:
    return modules()


def test_no_modules_import_each_other_in_a_circle(known: list[Module]) -> None:
    """Imports for types alone count, too."""
    assert circles(imports_at_start(known)) == []


def test_functions_stay_short(known: list[Module]) -> None:
    lengths = sorted(length for one in known for length in one.function_lines)
    assert lengths[len(lengths) // 2] <= 8
    assert lengths[len(lengths) * 95 // 100] < 30
    assert lengths[-1] <= 80


def test_no_name_of_a_module_is_given_twice(known: list[Module]) -> None:
    """After modules were merged, a constant of one replaced that of the other."""
    twice = {
        f"{module.name}: {name}"
        for module in known
        for name, times in Counter(_assigned(module.tree)).items()
        if times > 1
    }
    assert twice == set()


def _assigned(module: ast.Module) -> list[str]:
    targets = [target for node in module.body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in module.body if isinstance(node, ast.AnnAssign)]
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
