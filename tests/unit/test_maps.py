"""Files and folders say in their maps what they are for, and a class name stands once."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import ddpprof

PACKAGE = Path(ddpprof.__file__).parent
FOLDERS = sorted(init.parent for init in PACKAGE.rglob("__init__.py") if init.parent != PACKAGE)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(PACKAGE)))
def test_every_file_is_on_the_map(folder: Path) -> None:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    lines = re.findall(r"^([\w.-]+\.py)( +)", text, re.MULTILINE)
    assert sorted(name for name, _ in lines) == sorted({file.name for file in folder.glob("*.py")} - {"__init__.py"})
    assert len({len(name + gap) for name, gap in lines}) <= 1  # the descriptions form a column


def test_contributing_has_every_file_and_folder_of_the_package_itself() -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = {f"{folder.name}/" for folder in FOLDERS if folder.parent == PACKAGE}
    files = {file.name for file in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    named = set(re.findall(r"`([a-z_]+(?:/|\.py))`", text))
    assert folders | files <= named
    assert {name for name in named if name.endswith(".py")} - {"__init__.py"} <= files


def test_a_class_name_stands_once() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []
