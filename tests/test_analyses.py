"""The studies: their results are what their recordings give, and their READMEs say what their results do."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from study import PICTURE, README, RECORDINGS, RESULTS, readme_table

ANALYSES = Path(__file__).parents[1] / "analyses"
STUDIES = sorted(readme.parent.name for readme in ANALYSES.glob(f"*/{README}"))
MOST_BYTES, MOST_PICTURE_BYTES = 1_600_000, 60_000


def analysis_of(study: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"analyse_{study}", ANALYSES / study / "analyse.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_studies() -> None:
    assert {"trailing_communication", "overlap", "wrapper_overhead"} <= set(STUDIES)


LONGEST = ("gate", "slowdowns")
MEASURE = """
import sys
sys.modules["torch"] = sys.modules["matplotlib"] = None
sys.path[:0] = sys.argv[1:]
from pathlib import Path
import analyse
from study import RECORDINGS, as_json
print(as_json(analyse.measure(Path(sys.argv[1]) / RECORDINGS)), end="")
"""


@pytest.mark.parametrize(
    "study", [pytest.param(name, marks=[pytest.mark.long] * (name in LONGEST)) for name in STUDIES]
)
def test_results_are_those_of_the_recordings(study: str) -> None:
    """To compute them takes neither torch nor matplotlib."""
    folders = [str(ANALYSES / study), str(ANALYSES)]
    done = subprocess.run([sys.executable, "-c", MEASURE, *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (ANALYSES / study / RESULTS).read_text(encoding="utf-8")


@pytest.mark.parametrize("study", STUDIES)
def test_the_table_of_the_readme_is_that_of_the_results(study: str) -> None:
    results = json.loads((ANALYSES / study / RESULTS).read_text(encoding="utf-8"))
    assert readme_table(ANALYSES / study / README) == analysis_of(study).table(results)


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_says_what_a_reader_needs(study: str) -> None:
    text = (ANALYSES / study / README).read_text(encoding="utf-8")
    parts = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
    assert parts == ["Question", "Answer", "Method", "Result", "Limits"]
    assert f"]({PICTURE})" in text
    assert f"analyses/{study}/collect.py" in text
    assert (ANALYSES / study / "collect.py").is_file()


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_is_small(study: str) -> None:
    files = [path for path in (ANALYSES / study).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    assert (ANALYSES / study / PICTURE).stat().st_size < MOST_PICTURE_BYTES


@pytest.mark.parametrize("study", STUDIES)
def test_recordings_tell_nothing_of_where_they_were_made(study: str) -> None:
    for path in (ANALYSES / study / RECORDINGS).rglob("*.json"):
        assert not re.search(r'"/\w', path.read_text(encoding="utf-8")), path


def test_the_table_of_studies_lists_each_once() -> None:
    listed = re.findall(
        r"\| \[(\w+)\]\(\1/README\.md\) \|$", (ANALYSES / README).read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(listed) == STUDIES
