"""The package's structure: what a reader can count on. `tests/support/structure.py` prints the numbers."""

from structure import circles, imports_at_start, modules


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for types alone count, too."""
    assert circles(imports_at_start(modules())) == []


def test_functions_stay_short() -> None:
    lengths = sorted(length for one in modules() for length in one.function_lines)
    assert lengths[len(lengths) // 2] <= 8
    assert lengths[len(lengths) * 95 // 100] < 30
    assert lengths[-1] <= 80
