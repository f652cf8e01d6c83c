"""The studies: their results are what their recordings give, and their READMEs say what their results do."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from study import PICTURE, README, RECORDINGS, RESULTS, readme_table

from ddpprof.engine.finding import TRACK_RECORD
from ddpprof.model.hang import Fault

ANALYSES = Path(__file__).parents[1] / "analyses"
STUDIES = sorted(readme.parent.name for readme in ANALYSES.glob(f"*/{README}"))
MOST_BYTES, MOST_PICTURE_BYTES = 1_600_000, 60_000


def analysis_of(study: str) -> ModuleType:
    return script_of(study, "analyse")


def script_of(study: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_{study}", ANALYSES / study / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_studies() -> None:
    assert {"trailing_communication", "overlap", "wrapper_overhead"} <= set(STUDIES)


def test_the_track_record_of_rules_is_what_the_study_of_advice_found() -> None:
    results = json.loads((ANALYSES / "advice" / RESULTS).read_text(encoding="utf-8"))
    assert {rule: list(tried) for rule, tried in TRACK_RECORD.items()} == results["rules"]


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


def test_no_road_through_the_package_has_become_longer() -> None:
    recorded = json.loads((ANALYSES / "roads" / RECORDINGS / "roads.json").read_text(encoding="utf-8"))
    for name, modules in script_of("roads", "count").read_roads().items():
        assert len(modules) <= len(recorded["read"][name]), (name, modules)


PLANTING = script_of("fault_injection", "planted_faults")
"""the classes of fault and pause, and what is right to say of each"""


def source_of_fault(name: str) -> str:
    """Return the function that plants a fault, or what `train.py` has of it."""
    script = (ANALYSES / "fault_injection" / PLANTING.CLASSES[name].script).read_text(encoding="utf-8")
    if PLANTING.CLASSES[name].script == PLANTING.TRAIN:
        return "\n".join(line for line in script.splitlines() if line.endswith(f"# FAULT {name}"))
    return functions_of(PLANTING.CLASSES[name].script)[name]


def functions_of(script: str) -> dict[str, str]:
    text = (ANALYSES / "fault_injection" / script).read_text(encoding="utf-8")
    functions = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    lines = text.splitlines()
    return {each.name: "\n".join(lines[each.lineno - 1 : each.end_lineno]) for each in functions}


@pytest.mark.parametrize("name", PLANTING.CLASSES)
def test_a_planted_fault_has_its_script_its_line_and_what_is_right(name: str) -> None:
    planted, source = PLANTING.CLASSES[name], source_of_fault(name)
    assert ("# FAULT" in source) >= planted.has_line
    assert ("job.fixed" in source) == planted.has_fix
    assert set(planted.kinds) <= {str(fault) for fault in Fault}
    assert bool(planted.kinds) != bool(planted.says)
    assert all(culprit < planted.ranks for culprit in planted.culprits or ())
    for pattern in (planted.says.format(rank=1), planted.advice, planted.misleading):
        re.compile(pattern)


def test_a_fault_whose_advice_can_be_followed_has_advice_to_look_for() -> None:
    fixed = [planted for planted in PLANTING.CLASSES.values() if planted.has_fix]
    assert len(fixed) >= 10
    assert all(planted.advice or planted.says for planted in fixed)


def test_every_pause_has_its_function() -> None:
    script = (ANALYSES / "fault_injection" / "pauses.py").read_text(encoding="utf-8")
    assert all(name in functions_of("pauses.py") or f'"{name}"' in script for name in PLANTING.PAUSES)


def test_a_third_of_the_classes_is_set_aside_and_none_of_those_that_were_tuned_to() -> None:
    for classes, held_out, second, third in (
        (PLANTING.CLASSES, PLANTING.HELD_OUT, PLANTING.SECOND_HELD_OUT, PLANTING.THIRD_HELD_OUT),
        (PLANTING.PAUSES, PLANTING.HELD_OUT_PAUSES, PLANTING.SECOND_HELD_OUT_PAUSES, PLANTING.THIRD_HELD_OUT_PAUSES),
    ):
        first = set(classes) - set(second) - set(third)
        assert held_out <= first
        assert len(held_out) == len(first) // 3
        assert len(second) >= len(first) // 3
    assert all(PLANTING.CLASSES[name].script != PLANTING.TRAIN for name in PLANTING.HELD_OUT)
