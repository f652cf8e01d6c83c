"""The command line without a job: help, reports, mistakes."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from one_step import event, write_one_step
from shared import TRACES

from ddpprof.cli import main
from ddpprof.cli.commands import COMMANDS, GROUPS
from ddpprof.render.json_documents import DOCUMENTS
from ddpprof.report import REPORT_FORMAT

REAL_TRACES = sorted(TRACES.glob("*.json*"))


Out = Callable[[], tuple[str, str]]


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    return write_one_step(tmp_path)


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Out:
    def read() -> tuple[str, str]:
        captured = capsys.readouterr()
        return captured.out, captured.err

    return read


def test_help_lists_the_commands(output: Out) -> None:
    assert main([]) == 0
    text, _ = output()
    listed = [line.split()[0] for line in text.splitlines() if line.startswith("  ") and line[2] != " "]
    assert listed == list(COMMANDS)
    assert list(GROUPS) == ["Record", "Read", "Act", "Watch", "More"]
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["exposed"], "Communication that does not overlap with computation", id="by-name"),
        pytest.param(["Exposed-Comm"], "Communication that does not overlap with computation", id="by-a-column"),
        pytest.param(["DDP's", "own", "work"], "Time that the training thread spends", id="several-words"),
        pytest.param(
            ["straggler"], "\nstraggler\n   A finding. Reported if a rank is later than", id="a-term-and-a-finding"
        ),
        pytest.param([], "busbw\n   Bus bandwidth", id="all"),
    ],
)
def test_explain(output: Out, arguments: list[str], said: str) -> None:
    assert main(["explain", *arguments]) == 0
    assert said in output()[0]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_document_has_a_schema_that_is_one(output: Out, name: str) -> None:
    assert main(["schema", name]) == 0
    printed = json.loads(output()[0])
    jsonschema.Draft202012Validator.check_schema(printed)
    assert printed["title"] == f"ddpprof {name}"


RUN = {"format": 1, "run_id": "a", "command": [], "world_size": 1, "settings": {}}


def mistakes(tmp_path: Path) -> dict[str, tuple[list[str], str]]:
    (tmp_path / "empty").mkdir()
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "run.json").write_text(json.dumps({**RUN, "format": 99}))
    (tmp_path / "bad.json").write_text('{"traceEvents": [')
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}')[:-9])
    (tmp_path / "good.json").write_text(
        json.dumps({"traceEvents": [event("user_annotation", "ProfilerStep#1", 0, 9)]})
    )  # fmt: skip
    good, nowhere = str(tmp_path / "good.json"), str(tmp_path / "none" / "x.json")
    return {
        "no-such-path": (["report", str(tmp_path / "none")], "does not exist"),
        "not-a-run": (["report", str(tmp_path / "empty")], "is not a run"),
        "newer-format": (["report", str(tmp_path / "newer")], "newer version of ddpprof"),
        "bad-trace": (["report", str(tmp_path / "bad.json")], "bad.json"),
        "cut-off": (["report", str(tmp_path / "cut.json.gz")], "is truncated"),
        "endless-name": (["report", "x" * 5000], "File name too long"),
        "endless-name-to-draw": (["timeline", "x" * 5000], "File name too long"),
        "endless-name-to-serve": (["tensorboard", "x" * 5000], "File name too long"),
        "ranks-of-one-trace": (["report", good, "--only-ranks", "5"], "--only-ranks selects ranks of a run"),
        "steps-of-times": (["report", str(tmp_path / "t.csv"), "--only-steps", "5"], "--only-steps needs a run"),
        "unwritable": (["report", good, "--out", nowhere], f"cannot write {nowhere}"),
        "no-path": (["report"], "required: path. See: ddpprof report --help"),
        "two-paths": (
            ["report", good, "b.json"],
            "folder with a part of the run. To read several traces, give their folder.",
        ),
        "no-such-format": (["report", good, "--format", "xml"], "invalid choice: 'xml'"),
        "no-such-command": (["nope"], "there is no command nope"),
        "nothing-to-trace": (["trace"], "nothing to trace"),
        "nothing-after-the-dashes": (["trace", "--"], "nothing to trace"),
        "no-such-script": (["trace", str(tmp_path / "none.py")], "there is no script"),
        "no-such-option": (["trace", "--bogus", "x.py"], "unrecognized arguments: --bogus"),
        "not-a-number": (["trace", "--steps", "many", "x.py"], "many is not a whole number"),
        "no-steps": (["trace", "--steps", "0", "x.py"], "must be at least 1"),
        "negative": (["trace", "--warmup", "-1", "x.py"], "must not be negative"),
        "no-such-term": (["explain", "expsed"], "there is no term 'expsed'. Did you mean exposed?"),
        "no-such-shell": (["completion", "csh2"], "invalid choice: 'csh2'"),
        "no-list-of-numbers": (
            ["timeline", good, "--only-steps", "1-"],
            "'1-' is not a list of numbers; write, for example, 0-7,64",
        ),
        "no-such-step": (["timeline", good, "--only-steps", "7"], "The run has steps 1-1 of ranks 0-0"),
        "no-duration": (["timeline", good, "--min-duration", "5"], "'5' is not a duration; write, for example, 10us"),
        "backwards": (["timeline", good, "--only-ranks", "3-1"], "3-1 ends before it begins"),
        "torchrun-twice": (
            ["trace", "--nnodes", "2", "--", "torchrun", "x.py"],
            "pass these options to torchrun itself",
        ),
    }


MISTAKES = (
    "no-such-path", "not-a-run", "newer-format", "bad-trace", "cut-off", "endless-name", "unwritable", "no-path",
    "endless-name-to-draw", "endless-name-to-serve", "ranks-of-one-trace", "steps-of-times",
    "no-such-format", "no-such-command", "two-paths", "nothing-to-trace", "nothing-after-the-dashes", "no-such-script",
    "no-such-option", "not-a-number", "no-steps", "negative", "torchrun-twice",
    "no-such-term", "no-such-shell", "no-list-of-numbers", "no-such-step", "no-duration", "backwards",
)  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: Out, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    cases = mistakes(tmp_path)
    assert set(cases) == set(MISTAKES)
    arguments, message = cases[name]
    assert main(arguments) == 2
    text, error = output()
    assert text == ""
    assert error.startswith("ddpprof: ")
    assert error.count("\n") == 1
    assert message in error


def test_a_path_alone_is_reported_on(trace_file: Path, output: Out) -> None:
    assert main(["report", str(trace_file)]) == 0
    whole = output()[0]
    assert main([str(trace_file)]) == 0
    assert output()[0] == whole


def test_a_brief_report_is_json_whatever_the_terminal(trace_file: Path, output: Out, tmp_path: Path) -> None:
    assert main(["report", str(trace_file), "--brief"]) == 0
    assert json.loads(output()[0])["verdict"].startswith("A step takes 0.10 ms.")
    assert main(["report", str(trace_file), "--brief", "--format", "html"]) == 2
    assert "--brief prints JSON" in output()[1]
    both = [str(trace_file), str(trace_file)]
    assert main(["compare", *both, "--brief", "--out", str(tmp_path / "c.json")]) == 0
    assert json.loads((tmp_path / "c.json").read_text())["changes"][0]["metric"] == "step"


def test_report_on_a_file_and_on_its_folder(trace_file: Path, output: Out) -> None:
    for path in (trace_file, trace_file.parent):
        assert main(["report", str(path), "--format", "json"]) == 0
        made = json.loads(output()[0])
        assert made["missing"] == ["rank 1 of 2 wrote no trace"]
        (step,) = made["ranks"][0]["steps"]
        measured = [
            step[name] for name in ("step", "duration_ns", "compute_ns", "comm_ns", "overlap_ns", "trailing_ns")
        ]
        assert measured == [3, 100_000, 59_000, 40_000, 20_000, 20_000]


def test_the_file_for_perfetto_beside_the_traces_is_no_trace(
    trace_file: Path, output: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trace_file.parent)
    assert main(["timeline", "."]) == 0
    assert "(1 rank, 1 step, 0.0 MB)" in output()[0]
    assert main(["report", ".", "--format", "json"]) == 0
    assert json.loads(output()[0])["missing"] == ["rank 1 of 2 wrote no trace"]


def test_formats(trace_file: Path, output: Out) -> None:
    texts = {}
    for form in ("terminal", "json", "markdown"):
        assert main(["report", str(trace_file), "--format", form]) == 0
        texts[form] = output()[0]
    assert texts["terminal"].startswith("trace_rank0.json · 1 of 2 ranks · gloo · cpu · 1 profiled step\n")
    assert json.loads(texts["json"])["format"] == REPORT_FORMAT
    assert texts["markdown"].startswith("# trace\\_rank0.json\n")
    for to_standard_output in ([], ["--out", "-"]):
        assert main(["report", str(trace_file), *to_standard_output]) == 0
        assert output()[0] == texts["terminal"]


@pytest.mark.parametrize(
    ("name", "form", "begins"),
    [
        pytest.param("x.json", None, "{", id="json-by-name"),
        pytest.param("x.md", None, "# trace", id="markdown-by-name"),
        pytest.param("x.txt", None, "trace_rank0.json ·", id="terminal-otherwise"),
        pytest.param("x.md", "json", "{", id="format-goes-before-the-name"),
    ],
)
def test_out_writes_a_file_and_says_so(
    trace_file: Path, tmp_path: Path, output: Out, name: str, form: str | None, begins: str
) -> None:
    path = tmp_path / name
    assert main(["report", str(trace_file), "--out", str(path), *(["--format", form] if form else [])]) == 0
    assert output() == (f"Wrote {path}.\n", "")
    text = path.read_text(encoding="utf-8")
    assert text.startswith(begins)
    assert "\x1b" not in text


@pytest.mark.parametrize("form", ["terminal", "json", "markdown"])
@pytest.mark.parametrize("path", [p for p in REAL_TRACES if "horovod" not in p.name], ids=lambda path: path.name)
def test_real_traces_of_others_give_a_report(path: Path, form: str, output: Out) -> None:
    assert main(["report", str(path), "--format", form]) == 0
    text, error = output()
    assert error == ""
    assert "nan" not in text.lower().split()
    if form == "json":
        assert json.loads(text)["ranks"]


@pytest.mark.skipif(not REAL_TRACES, reason="the traces of others are not part of the project: no ../shared")
def test_a_folder_of_real_traces_gives_a_report(output: Out) -> None:
    assert main(["report", str(TRACES), "--format", "json"]) == 0
    made = json.loads(output()[0])
    assert len(made["ranks"]) == 6
    assert [text.partition("a job with ")[2] for text in made["missing"] if "a job with" in text] == [
        f"{size}; the other traces are from a job with 128" for size in ("1 rank", "2 ranks", "8 ranks", "300 ranks")
    ]
    assert any("horovod" in text for text in made["missing"])


@pytest.mark.skipif(not REAL_TRACES, reason="the traces of others are not part of the project: no ../shared")
def test_a_timeline_of_horovod_gives_a_report(output: Out) -> None:
    assert main(["report", str(TRACES / "horovod_timeline_2ranks.json")]) == 0
    text, error = output()
    assert error == ""
    assert "Horovod timeline" in text
    assert "median  36.83" in text


def test_a_timeline_of_another_tool_is_refused_in_one_line(tmp_path: Path, output: Out) -> None:
    path = tmp_path / "timeline.json"
    path.write_text('[{"name": "step", "ph": "B", "ts": 1, "pid": 1}, {"ph": "E", "ts": 5, "pid": 1}]')
    assert main(["report", str(path)]) == 2
    text, error = output()
    assert text == ""
    assert "no ops, kernels or steps from torch.profiler" in error
    assert error.count("\n") == 1
