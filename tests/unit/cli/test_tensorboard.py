"""Which signals end `ddpprof tensorboard`, and how long it waits for the profiler plugin."""

import gzip
import json
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from random_traces import Event
from tables import collective, record, run, trace

from ddpprof import rundir
from ddpprof.cli import main, tensorboard
from ddpprof.cli.tensorboard import _ended_like_ctrl_c, _write, distinct_names, write_log_directory
from ddpprof.model import Rank, Run
from ddpprof.pipeline.analysis import AnalysisOptions, analysed
from ddpprof.report.build import build_report


@pytest.fixture
def without_hangup() -> Iterator[None]:
    """As nohup starts commands."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_commands_end_it(number: int) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # under nohup, SIGHUP is ignored
    try:
        with _ended_like_ctrl_c() as came, pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        assert came == [number]
    finally:
        signal.signal(number, before)


def test_what_nohup_starts_outlives_its_terminal(without_hangup: None) -> None:
    with _ended_like_ctrl_c() as came:
        os.kill(os.getpid(), signal.SIGHUP)
        assert came == []
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


class Plugin(tensorboard.Server):
    """A server whose plugin gives these answers, one a second, and the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self.now_s, self._answers = 0, answers

    def _get(self, _route: str) -> Any:
        return self._answers[min(self.now_s, len(self._answers) - 1)]

    def _pause(self) -> None:
        self.now_s += 1


def runs(*names: str, loading: bool) -> dict[str, Any]:
    return {"runs": list(names), "loading": loading}


@pytest.mark.parametrize(
    ("answers", "has_read", "after_s"),
    [
        pytest.param([runs("a", "b", loading=False)], True, 0, id="at-once"),
        pytest.param([None, runs(loading=True), runs("a", "b", loading=False)], True, 2, id="after-no-answer"),
        pytest.param([*[runs(loading=True)] * 90, runs("a", "b", loading=False)], True, 90, id="slowly"),
        pytest.param(
            [*[runs(loading=True)] * 90, *[runs("a", loading=False)] * 2, runs("a", "b", loading=False)],
            True, 92, id="the-last-one-on-its-way",
        ),
        pytest.param([runs("a", loading=False)], False, 61, id="not-all"),
        pytest.param([None], False, 61, id="no-plugin"),
    ],
)  # fmt: skip
def test_the_plugin_gets_a_minute_in_which_it_does_nothing(
    answers: list[Any], has_read: bool, after_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = Plugin(*answers)
    monkeypatch.setattr(tensorboard.time, "monotonic", lambda: float(plugin.now_s))
    assert plugin.wait_for_plugin(["a", "b"]) == has_read
    assert plugin.now_s == after_s


SAMPLE = Path(__file__).parents[3] / "sample_traces" / "convnet-gloo-2ranks"


@pytest.fixture
def made() -> Run:
    pytest.importorskip("tensorboard")
    return run(Rank(0, trace(comm=[collective(10, 20)]), record()))


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory).parent) for path in directory.rglob("*") if path.is_file())


def test_writing_again_replaces_what_was_written(tmp_path: Path, made: Run) -> None:
    for _ in range(2):
        write_log_directory(tmp_path, build_report(made), [])
        assert files(tmp_path) == ["rank-0", "run"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0", "run"], "nothing half made is left"


def test_a_run_is_removed_with_what_tensorboard_shows_of_it(tmp_path: Path, made: Run) -> None:
    (tmp_path / rundir.RUN_FILE).write_text("{}")
    folder = tmp_path / rundir.TENSORBOARD_DIRECTORY
    write_log_directory(folder, build_report(made), [])
    rundir.remove_run(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_others_put_there_stays(tmp_path: Path, made: Run) -> None:
    folder = tmp_path / rundir.TENSORBOARD_DIRECTORY
    write_log_directory(folder, build_report(made), [])
    (folder / "rank-0" / "mine.txt").touch()
    (folder / "mine").mkdir()
    rundir.remove_run(tmp_path)
    assert sorted(path.name for path in folder.rglob("*")) == ["mine", "mine.txt", "rank-0"]


def test_what_others_put_there_does_not_keep_the_run_from_being_written_again(tmp_path: Path, made: Run) -> None:
    folder = tmp_path / rundir.TENSORBOARD_DIRECTORY
    write_log_directory(folder, build_report(made), [])
    (folder / "rank-0" / ".nfs01").touch()
    (before,) = (folder / "rank-0").glob("events*")
    before.write_text("old")
    write_log_directory(folder, build_report(made), [])
    (after,) = (folder / "rank-0").glob("events*")
    assert after.read_bytes() != b"old"
    assert sorted(path.name for path in folder.iterdir()) == ["rank-0", "run"], "nothing half made is left"


def test_a_folder_behind_a_link_is_written_again(tmp_path: Path, made: Run) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder = tmp_path / rundir.TENSORBOARD_DIRECTORY
    folder.symlink_to(tmp_path / "elsewhere")
    for _ in range(2):
        write_log_directory(folder, build_report(made), [])
    assert files(tmp_path / "elsewhere") == ["rank-0", "run"]


def test_files_and_links_with_a_name_of_ours_stay(tmp_path: Path, made: Run) -> None:
    write_log_directory(tmp_path / "elsewhere", build_report(made), [])
    folder = tmp_path / "run" / rundir.TENSORBOARD_DIRECTORY
    folder.mkdir(parents=True)
    (folder / "rank-0").touch()
    (folder / "run").symlink_to(tmp_path / "elsewhere" / "run")
    rundir.remove_run(tmp_path / "run")
    assert sorted(path.name for path in folder.iterdir()) == ["rank-0", "run"]
    assert files(tmp_path / "elsewhere") == ["rank-0", "run"]


def test_folders_behind_a_link_are_not_emptied(tmp_path: Path, made: Run) -> None:
    write_log_directory(tmp_path / "elsewhere", build_report(made), [])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / rundir.TENSORBOARD_DIRECTORY).symlink_to(tmp_path / "elsewhere")
    rundir.remove_run(tmp_path / "run")
    assert files(tmp_path / "elsewhere") == ["rank-0", "run"]


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        pytest.param(["runs/a"], ["a"], id="one"),
        pytest.param(["runs/a", "runs/b"], ["a", "b"], id="different"),
        pytest.param(["x/a", "y/a"], ["x-a", "y-a"], id="same-end"),
        pytest.param(["runs/a", "runs/a"], None, id="the-same-twice"),
        pytest.param(["a/b", "a-b"], None, id="the-same-when-joined"),
        pytest.param(["a/b", "a-b", "a-b-0"], None, id="the-same-when-numbered"),
        pytest.param(["t/rank0.json.gz"], ["rank0"], id="a-trace"),
        pytest.param(["...json", ".json"], ["run-0", "run-1"], id="nothing-left-of-it"),
        pytest.param(["<script>x", "a\x1b[31m\u202e"], ["-script-x", "a-31m-"], id="hostile"),
        pytest.param(["x" * 250], ["x" * 100], id="endless"),
    ],
)
def test_runs_side_by_side_have_names_of_their_own(paths: list[str], names: list[str] | None) -> None:
    found = distinct_names([Path("/top", path) for path in paths])
    assert len(set(found)) == len(paths)
    if names is not None:
        assert found == names


def options(*paths: Path, logdir: Path | None = None) -> Namespace:
    reading = {
        "jobs": None,
        "no_cache": False,
        "scheduler": None,
        "max_trace_gb": None,
        "max_events": None,
        "max_files": None,
    }
    return Namespace(runs=list(paths), logdir=logdir, no_plugin=True, **reading)


def copy_of_sample(path: Path) -> Path:
    path.mkdir(parents=True)
    for file in SAMPLE.iterdir():
        if file.is_file():
            (path / file.name).write_bytes(file.read_bytes())
    return path


def test_one_run_is_a_log_directory_itself(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    one = copy_of_sample(tmp_path / "one")
    logdir, _ = _write(options(one), tmp_path / "scratch")
    assert logdir == one / "tensorboard"
    assert files(logdir) == ["rank-0", "rank-1", "run"]


def test_several_runs_stand_side_by_side(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    scratch = tmp_path / "scratch"
    a, b, bare = copy_of_sample(tmp_path / "x" / "a"), copy_of_sample(tmp_path / "y" / "a"), tmp_path / "bare"
    bare.mkdir()
    (bare / "rank0.json.gz").write_bytes((SAMPLE / "rank-0.trace.json.gz").read_bytes())
    logdir, _ = _write(options(a, b, bare), scratch)
    assert logdir == scratch
    assert {path.name: path.is_symlink() for path in scratch.iterdir()} == {"x-a": True, "y-a": True, "bare": False}
    assert [path.name for path in bare.iterdir()] == ["rank0.json.gz"], "a folder of the user's is left alone"


def test_what_cannot_be_written_into_the_run_goes_with_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    one = copy_of_sample(tmp_path / "one")
    (one / "tensorboard").symlink_to("/proc/sys")  # nobody, root included, can make files there
    logdir, _ = _write(options(one), tmp_path / "scratch")
    assert logdir == tmp_path / "scratch"
    assert files(logdir) == ["one/rank-0", "one/rank-1", "one/run"]


def test_a_place_of_the_users_choice_is_left_standing(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    logdir, _ = _write(options(SAMPLE, logdir=tmp_path / "logs"), tmp_path / "scratch")
    assert logdir == tmp_path / "logs"
    assert files(logdir) == [f"{SAMPLE.name}/{name}" for name in ("rank-0", "rank-1", "run")]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    assert main(["tensorboard", str(SAMPLE), "--logdir", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.endswith("Not a directory. Choose another folder with --logdir DIR\n")


def test_without_tensorboard_one_line_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    assert main(["tensorboard", str(SAMPLE), "--no-plugin", "--logdir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("ddpprof: TensorBoard cannot be used (")
    assert said.endswith("Install it with: pip install tensorboard\n")


def window(path: Path, step: int, epoch_ns: int) -> None:
    """Write one of the profiler's windows: a step with a collective, on a clock that began at `epoch_ns`."""
    events = [
        Event("user_annotation", f"ProfilerStep#{step}", 1_000, 9_000, 1),
        Event("cpu_op", "aten::mm", 1_500, 2_000, 1),
        Event("user_annotation", "gloo:all_reduce", 4_000, 6_000, 2),
    ]
    text = ", ".join(event.text() for event in events)
    path.write_text(f'{{"baseTimeNanoseconds": {epoch_ns}, "distributedInfo": {{"rank": 0}}, "traceEvents": [{text}]}}')


def test_the_plugin_gets_a_copy_of_each_window_with_its_own_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    traces = tmp_path / "traces"
    traces.mkdir()
    window(traces / "host_1.1700000000000.pt.trace.json", 3, 1_000_000)
    window(traces / "host_1.1800000000000.pt.trace.json", 9, 5_000_000)
    with analysed(traces, AnalysisOptions(jobs=1, use_cache=False)) as analysis:
        ranks = list(analysis.traced_ranks())
        missing = write_log_directory(tmp_path / "logs", analysis.report, analysis.drawings(), ranks)
    assert [text for text in missing if "counted" in text] == []
    copies = sorted((tmp_path / "logs" / rundir.TENSORBOARD_TRACES).iterdir())
    assert [copy.name for copy in copies] == [f"host_0000.{number}.pt.trace.json.gz" for number in (1, 2)]
    for copy, step, epoch_ns in zip(copies, (3, 9), (1_000_000, 5_000_000), strict=True):
        document = json.loads(gzip.decompress(copy.read_bytes()))
        counted = [event for event in document["traceEvents"] if event["cat"] == "user_annotation"]
        assert [(event["name"], event["ts"], event["dur"]) for event in counted] == [
            (f"ProfilerStep#{step}", 0, 8),
            ("gloo:all_reduce", 3, 2),
        ]
        assert document["baseTimeNanoseconds"] == epoch_ns + 1_000
