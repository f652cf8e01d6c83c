"""The report as JSON, and its published schema."""

import json
from pathlib import Path

import jsonschema
import pytest
from reports import compare_runs, gpu_report, light_report, report
from tables import ddp_module, record, recorded, run, trace

from ddpprof.errors import NotARun
from ddpprof.model import Rank
from ddpprof.render.json import read_report, render_json
from ddpprof.render.json_documents import ComparisonFile, schema
from ddpprof.report import Report
from ddpprof.report.build import build_report

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    of = schema(Report)
    jsonschema.Draft202012Validator.check_schema(of)
    return jsonschema.Draft202012Validator(of)


BUILT = run(
    Rank(0, trace(), record(modules=[ddp_module()], steps=[recorded(ready={0: (40, 30)})])), Rank(1, None, record(1))
)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(report(), id="whole"),
        pytest.param(light_report(), id="light"),
        pytest.param(gpu_report(), id="accelerator"),
        pytest.param(build_report(BUILT), id="built"),
        pytest.param(build_report(run(Rank(0, trace(steps=[]), None))), id="no-steps"),
        pytest.param(build_report(run(Rank(0, trace(), None), name="a\udcff", command=("b\udcff",))), id="undecodable"),
    ],
)
def test_reports_are_as_their_schema_says(validator: jsonschema.Draft202012Validator, made: Report) -> None:
    text = render_json(made)
    validator.validate(json.loads(text))
    assert text.endswith("}\n")


@pytest.mark.parametrize("made", [report(), gpu_report(), light_report(), build_report(BUILT)])
def test_a_written_report_is_read_back(tmp_path: Path, made: Report) -> None:
    path = tmp_path / "report.json"
    path.write_text(render_json(made))
    assert read_report(path) == made


def test_a_report_of_an_older_version_lacks_what_came_later(tmp_path: Path) -> None:
    content = json.loads(render_json(report()))
    for added in ("kernels", "overlap_slowdown", "across"):
        del content[added]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(content))
    assert read_report(path) is not None


def test_other_files_are_no_reports(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": []}')
    assert read_report(path) is None
    path.write_text('{"format": 1, "ddpprof": "0.1.0", "job": 3}')
    with pytest.raises(NotARun, match="is not a report"):
        read_report(path)
    path.write_text('{"format": 99, "ddpprof": "9"}')
    with pytest.raises(NotARun, match="newer version of ddpprof: its format is 99"):
        read_report(path)


def test_the_schema_forbids_what_is_not_a_report(validator: jsonschema.Draft202012Validator) -> None:
    good = json.loads(render_json(report()))
    assert validator.is_valid(good)
    assert not validator.is_valid({**good, "ranks": None})
    assert not validator.is_valid({key: value for key, value in good.items() if key != "format"})


def test_measures_have_the_names_of_the_definitions() -> None:
    step = json.loads(render_json(report()))["ranks"][1]["steps"][0]
    assert {name: step[name] for name in ("compute_ns", "comm_ns", "overlap_ns", "exposed_ns", "trailing_ns")} == {
        "compute_ns": 56_000_000, "comm_ns": 18_000_000, "overlap_ns": 9_000_000, "exposed_ns": 9_000_000,
        "trailing_ns": 4_420_000,
    }  # fmt: skip
    assert json.loads(render_json(report()))["ranks"][1]["steps"][1]["trailing_ns"] is None


def test_a_comparison_is_no_report_and_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(render_json(ComparisonFile(compare_runs(report(), report()), ())))
    with pytest.raises(NotARun, match="is a comparison, not a report"):
        read_report(path)
