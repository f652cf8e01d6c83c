"""Run directories, folders of traces and single files; what is missing is named, and the rest loads."""

import gzip
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from run_files import RUN, distributed, facts, ranks_with_trace, trace_text

from ddpprof.errors import NotARun
from ddpprof.load.rank import load_rank
from ddpprof.load.run import find_ranks, load_run

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two whole ranks."""
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "run.json").write_text(json.dumps(RUN))
    for rank in range(2):
        (directory / f"rank-{rank}.facts.json").write_text(json.dumps(facts(rank)))
        step = {"number": 3, "mode": "light", "start_ns": 1, "end_ns": 2}
        (directory / f"rank-{rank}.steps.jsonl").write_text(json.dumps(step) + "\n")
        (directory / f"rank-{rank}.trace.json.gz").write_bytes(gzip.compress(trace_text(**distributed(rank)).encode()))
    return directory


def test_a_whole_run_loads(run: Path) -> None:
    loaded = load_run(run)
    assert (loaded.name, loaded.command, loaded.world_size, loaded.missing) == ("run", ("train.py",), 2, ())
    assert loaded.settings == {"steps": 5}
    assert ranks_with_trace(run) == [(0, True, True), (1, True, True)]
    assert loaded.ranks[0].record is not None
    assert [step.number for step in loaded.ranks[0].record.steps] == [3]


@pytest.mark.parametrize(
    ("ending", "content"), [("", trace_text().encode()), (".zst", zstd.compress(trace_text().encode()))]
)
def test_a_trace_that_is_not_compressed_as_it_was_loads(run: Path, ending: str, content: bytes) -> None:
    (run / "rank-1.trace.json.gz").unlink()
    (run / f"rank-1.trace.json{ending}").write_bytes(content)
    assert ranks_with_trace(run)[1] == (1, True, True)


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        pytest.param(None, "it was killed, or called os._exit(), before the profiled steps ended", id="killed"),
        pytest.param("finished", "training finished before the profiled steps were complete", id="finished"),
        pytest.param("failed: ValueError: x", "it failed before the profiled steps ended", id="failed"),
    ],
)
def test_a_rank_without_its_trace_is_named_with_the_reason(run: Path, ended: str | None, why: str) -> None:
    (run / "rank-1.trace.json.gz").unlink()
    (run / "rank-1.facts.json").write_text(json.dumps(facts(1, ended=ended)))
    assert load_run(run).missing == (f"rank 1 wrote no trace: {why}",)
    assert ranks_with_trace(run) == [(0, True, True), (1, False, True)]


def step_line(number: int, mode: str) -> str:
    return json.dumps({"number": number, "mode": mode, "start_ns": number, "end_ns": number + 1}) + "\n"


def change_facts(run: Path, rank: int, **changes: Any) -> None:
    (run / f"rank-{rank}.facts.json").write_text(json.dumps(facts(rank, **changes)))


@pytest.mark.parametrize(("device", "is_kept"), [("cuda", False), ("xpu", False), ("cpu", True), ("mps", True)])
def test_a_trace_without_kernels_of_a_rank_on_an_accelerator_is_left_out(device: str, is_kept: bool, run: Path) -> None:
    change_facts(run, 1, device=device)
    assert ranks_with_trace(run) == [(0, True, True), (1, is_kept, True)]
    missing = load_run(run).missing
    assert any("has no kernel" in text and "nsys" in text for text in missing) is not is_kept


def test_the_recorder_says_why_there_is_no_trace(run: Path) -> None:
    change_facts(run, 0, no_trace="the profiled steps took too long")
    change_facts(run, 1, no_trace="the device was stuck", ended="failed: ValueError")
    (run / "rank-1.trace.json.gz").unlink()
    assert load_run(run).missing == (
        "rank 0's trace ends early: the profiled steps took too long",
        "rank 1 wrote no trace: the device was stuck",
    )


def test_ranks_that_were_not_to_be_profiled_are_named_once(run: Path) -> None:
    (run / "run.json").write_text(json.dumps({**RUN, "profiled_ranks": "of 2 ranks only 0"}))
    change_facts(run, 1, profiles=False, no_trace="it is not among the profiled ranks")
    (run / "rank-1.trace.json.gz").unlink()
    assert load_run(run).missing == ("of 2 ranks only 0",)


def test_a_trace_that_was_there_is_missed(run: Path) -> None:
    (run / "rank-1.trace.json.gz").unlink()
    (run / "rank-1.steps.jsonl").write_text(step_line(3, "light") + step_line(4, "profiled"))
    assert load_run(run).missing == ("rank 1 wrote no trace: the file is missing, although one step was profiled",)
    (run / "rank-1.steps.jsonl").write_text(step_line(3, "profiled") + step_line(4, "profiled"))
    assert load_run(run).missing == ("rank 1 wrote no trace: the file is missing, although 2 steps were profiled",)


@pytest.mark.parametrize(("traced", "unknown"), [([3], ""), ([3, 4], ""), ([4, 5], "4, 5"), ([3, 4, 5], "4, 5")])
def test_a_record_that_ends_before_its_trace_is_named(run: Path, traced: list[int], unknown: str) -> None:
    """The step in which the job ended is in no record."""
    steps = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "pid": 1, "tid": 1, "ts": 9 * n, "dur": 9}
        for n in traced
    ]
    (run / "rank-1.trace.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": steps}).encode()))
    said = f"rank-1.steps.jsonl is incomplete. Steps {unknown} are in the trace but not in that file, and are left out"
    assert load_run(run).missing == ((f"rank 1: {said}",) if unknown else ())


def test_no_trace_is_missed_where_none_was_asked_for(run: Path) -> None:
    for rank in range(2):
        (run / f"rank-{rank}.trace.json.gz").unlink()
    (run / "run.json").write_text(json.dumps({**RUN, "settings": {"profiler": False}}))
    assert load_run(run).missing == ()
    assert ranks_with_trace(run) == [(0, False, True), (1, False, True)]


def test_a_rank_with_a_broken_trace_is_named_and_keeps_its_record(run: Path) -> None:
    (run / "rank-0.trace.json.gz").write_bytes(gzip.compress(trace_text().encode())[:-10])
    (line,) = load_run(run).missing
    assert line.startswith("rank 0: ")
    assert "rank-0.trace.json.gz is truncated" in line
    assert ranks_with_trace(run) == [(0, False, True), (1, True, True)]


def test_ranks_that_left_nothing_are_named(run: Path) -> None:
    (run / "run.json").write_text(json.dumps({**RUN, "world_size": 6}))
    for file in run.glob("rank-1.*"):
        file.rename(file.with_name(file.name.replace("rank-1", "rank-3")))
    assert load_run(run).missing == ("ranks 1-2, 4-5 of 6 wrote no files",)


def test_a_world_of_absurd_size_costs_nothing(run: Path) -> None:
    (run / "run.json").write_text(json.dumps({**RUN, "world_size": 10**15}))
    assert load_run(run).missing == (f"ranks 2-{10**15 - 1} of {10**15} wrote no files",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 1}',
        json.dumps(facts(1, pid="x")),
        json.dumps(facts(1, format=2)),
        "[" * 100_000,
        json.dumps(facts(1, host="HOST")).replace("HOST", "\xff"),
    ],
)
def test_unreadable_facts_are_named_and_the_trace_is_kept(run: Path, text: str) -> None:
    (run / "rank-1.facts.json").write_text(text, encoding="latin-1")
    (line,) = load_run(run).missing
    assert line.startswith("rank 1: rank-1.facts.json ")
    assert ranks_with_trace(run) == [(0, True, True), (1, True, False)]


def test_a_rank_of_which_nothing_can_be_read_is_named_and_left_out(run: Path) -> None:
    (run / "rank-1.facts.json").unlink()
    (run / "rank-1.trace.json.gz").write_bytes(b"")
    of_facts, of_trace = load_run(run).missing
    assert of_facts.startswith("rank 1: rank-1.facts.json is missing")
    assert "rank-1.trace.json.gz is empty" in of_trace
    assert ranks_with_trace(run) == [(0, True, True)]


def test_a_loaded_rank_can_be_sent_between_processes(run: Path) -> None:
    loaded = load_rank(find_ranks(run).ranks[0])
    again = pickle.loads(pickle.dumps(loaded))
    assert again.rank.trace.steps == loaded.rank.trace.steps
    assert again.missing == loaded.missing == ()


def test_a_newer_format_is_refused_with_the_way_out(run: Path) -> None:
    (run / "run.json").write_text('{"format": 2, "everything": "else changed"}')
    with pytest.raises(NotARun, match=r"newer version of ddpprof: its format is 2.*pip install --upgrade ddpprof"):
        load_run(run)


@pytest.mark.parametrize("text", ["", "{}", "[]", "no", '{"format": "x", "run_id": "a"}'])
def test_a_run_file_of_something_else_is_refused(run: Path, text: str) -> None:
    (run / "run.json").write_text(text)
    with pytest.raises(NotARun, match=r"run\.json was not written by ddpprof"):
        load_run(run)


def test_a_run_without_ranks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    with pytest.raises(NotARun, match="contains no data from any rank"):
        load_run(tmp_path)


def test_nobody_is_told_to_record_a_run_into_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for here in (Path(), tmp_path):
        with pytest.raises(NotARun, match=r"Record a run with: ddpprof trace train\.py$"):
            load_run(here)


def test_a_folder_without_a_run_says_how_to_record_one(tmp_path: Path) -> None:
    with pytest.raises(NotARun) as caught:
        load_run(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} is not a run: it has no run.json and no traces. "
        f"Record a run with: ddpprof trace --out {tmp_path} train.py"
    )
    with pytest.raises(NotARun, match="does not exist"):
        load_run(tmp_path / "none")


def test_what_is_neither_a_file_nor_a_folder_is_not_said_to_be_absent() -> None:
    with pytest.raises(NotARun, match=r"^/dev/null is neither a file nor a folder\. Record a run with: "):
        find_ranks(Path("/dev/null"))
