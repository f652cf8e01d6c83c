"""Real traces of others through the whole report, against an independent script's numbers, to the nanosecond."""

import functools
import json
from pathlib import Path

import pytest
from shared import REFERENCE, TRACES

from ddpprof.load.run import load_run
from ddpprof.report import StepReport
from ddpprof.report.build import build_report

REFERENCES = sorted((REFERENCE).glob("*.json"))
STEPS = [(path, step) for path in REFERENCES for step in json.loads(path.read_text())["steps"]]
MEASURES = ("compute_ns", "comm_ns", "overlap_ns", "exposed_ns", "copy_ns", "trailing_ns", "num_comm_kernels")

pytestmark = pytest.mark.skipif(not REFERENCES, reason="the traces of others are not part of the project: no ../shared")


@functools.cache
def steps_of(path: Path) -> dict[int, StepReport]:
    reference = json.loads(path.read_text())
    (rank,) = build_report(load_run(TRACES / reference["trace"])).ranks
    return {step.step: step for step in rank.steps}


@pytest.mark.parametrize(("path", "name"), STEPS, ids=lambda value: getattr(value, "stem", value))
def test_a_step_of_the_report_is_as_the_reference_says(path: Path, name: str) -> None:
    expected = json.loads(path.read_text())["steps"][name]
    step = steps_of(path)[int(name.partition("#")[2])]
    assert {measure: getattr(step, measure) for measure in MEASURES} == {
        measure: expected.get(measure) for measure in MEASURES
    }
    assert step.parts is not None
