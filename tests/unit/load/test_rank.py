"""Folders of traces and single files: the rank of each, which belong together, and what is left out."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
from run_files import RUN, distributed, facts, ranks_with_trace, trace_text

from ddpprof.errors import BadTrace, NotARun
from ddpprof.load.file_bytes import Limits
from ddpprof.load.rank import load_times
from ddpprof.load.run import find_ranks, load_run

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def test_traces_compressed_with_zstd_are_traces(tmp_path: Path) -> None:
    for rank in range(2):
        text = trace_text(**distributed(rank)).encode()
        (tmp_path / f"host_7.{rank}000000000.pt.trace.json.zst").write_bytes(zstd.compress(text))
    assert ranks_with_trace(tmp_path) == [(0, True, False), (1, True, False)]


def test_a_folder_of_traces_is_a_run(tmp_path: Path) -> None:
    (tmp_path / "host_1234.99.pt.trace.json").write_text(trace_text(**distributed(1)))
    (tmp_path / "host_1233.98.pt.trace.json.gz").write_bytes(gzip.compress(trace_text(**distributed(0)).encode()))
    (tmp_path / "notes.txt").write_text("not looked at")
    loaded = load_run(tmp_path)
    assert ([rank.rank for rank in loaded.ranks], loaded.world_size, loaded.missing) == ([0, 1], 2, ())


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        pytest.param(["rank-0.json", "rank-1.json"], [0, 1], id="rank-n"),
        pytest.param(["trace_rank12.json", "trace_rank3.json"], [12, 3], id="any-order"),
        pytest.param(["t_0.json", "t_1.json"], [0, 1], id="number"),
        pytest.param(["job7_1.pt.trace.json", "job7_0.pt.trace.json"], [1, 0], id="last-number"),
    ],
)
def test_the_rank_may_come_from_the_name(tmp_path: Path, names: list[str], ranks: list[int]) -> None:
    for name, rank in zip(names, ranks, strict=True):
        (tmp_path / name).write_text(trace_text(start_us=rank))
    loaded = load_run(tmp_path)
    assert {rank.rank: rank.trace.steps[0].start_ns // 1000 for rank in loaded.ranks if rank.trace} == {
        rank: rank for rank in ranks
    }
    assert loaded.missing == ()


def test_a_process_id_is_not_a_rank(tmp_path: Path) -> None:
    (tmp_path / "host_48213.json").write_text(trace_text())
    loaded = load_run(tmp_path)
    assert [rank.rank for rank in loaded.ranks] == [0]
    assert loaded.missing == ("the file name host_48213.json does not contain a rank: rank 0 is assumed",)


def test_of_two_traces_of_a_rank_the_first_is_used(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(trace_text(20, **distributed(0, 1)))
    (tmp_path / "a.json").write_text(trace_text(1, **distributed(0, 1)))
    loaded = load_run(tmp_path)
    assert loaded.ranks[0].trace is not None
    assert loaded.ranks[0].trace.steps[0].start_ns == 1000
    assert loaded.missing == ("left out: b.json is from rank 0, like a.json, and also has step 1",)


def test_other_json_in_the_folder_is_skipped_and_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    (tmp_path / "t.json").write_text(trace_text(**distributed(0, 1)))
    loaded = load_run(tmp_path)
    assert len(loaded.ranks) == 1
    assert loaded.missing[0].startswith("skipped: ")
    assert "config.json is not a profiler trace" in loaded.missing[0]


def test_a_folder_of_other_json_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    with pytest.raises(NotARun, match=r"no run\.json and no trace \(.*config\.json is not a profiler trace"):
        load_run(tmp_path)


def test_one_trace_of_many_ranks_names_the_others(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(trace_text(**distributed(3, 8)))
    loaded = load_run(path)
    assert ([rank.rank for rank in loaded.ranks], loaded.world_size, loaded.name) == ([3], 8, "t.json")
    assert loaded.missing == ("ranks 0-2, 4-7 of 8 wrote no trace",)


def test_one_bad_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("no")
    with pytest.raises(BadTrace, match="is not JSON"):
        load_run(path)


def test_a_folder_of_runs_names_them(tmp_path: Path) -> None:
    for name in ("b", "a", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ("run.json" if name != "notes" else "x.json")).write_text(json.dumps(RUN))
    with pytest.raises(NotARun, match=rf"is not a run, but contains runs: a, b\. Give one run: {tmp_path / 'a'}$"):
        load_run(tmp_path)
    for number in range(20):
        (tmp_path / f"c{number:02}").mkdir()
        (tmp_path / f"c{number:02}" / "run.json").write_text(json.dumps(RUN))
    with pytest.raises(NotARun, match=r"contains runs: a, b, c00, c01, c02, c03, c04, c05 and more\. Give"):
        load_run(tmp_path)


def test_a_rank_of_another_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    for rank, run_id in enumerate("ab"):
        (tmp_path / f"rank-{rank}.facts.json").write_text(json.dumps(facts(rank, run_id=run_id)))
        (tmp_path / f"rank-{rank}.trace.json").write_text(trace_text(**distributed(rank)))
    assert load_run(tmp_path).missing == (
        "rank 1 is from another run: the run_id in rank-1.facts.json differs from the run_id in run.json",
    )


def test_a_rank_of_a_job_of_another_size_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    for rank, size in enumerate([3, 3, 8]):
        (tmp_path / f"rank-{rank}.facts.json").write_text(json.dumps(facts(rank, world_size=size)))
        (tmp_path / f"rank-{rank}.trace.json").write_text(trace_text(**distributed(rank, size)))
    assert load_run(tmp_path).missing == (
        "rank 2 is from another job: its world size is 8, but the world size of most other ranks is 3",
    )


@pytest.mark.parametrize("keys_come_first", [True, False])
def test_of_jobs_of_different_sizes_the_one_with_most_ranks_is_read(tmp_path: Path, keys_come_first: bool) -> None:
    for name, rank, size in [("a", 0, 2), ("b", 1, 2), ("c", 0, 4), ("d", 1, 4), ("e", 3, 4), ("f", 0, 1)]:
        text = trace_text(**distributed(rank, size))
        if not keys_come_first:
            text = json.dumps(dict(reversed(json.loads(text).items())))
        (tmp_path / f"{name}.json").write_text(text)
    loaded = load_run(tmp_path)
    assert [rank.rank for rank in loaded.ranks] == [0, 1, 3]
    assert loaded.missing == (
        "left out: f.json, from a job with 1 rank; the other traces are from a job with 4",
        "left out: a.json, b.json, from a job with 2 ranks; the other traces are from a job with 4",
        "rank 2 of 4 wrote no trace",
    )


def test_a_folder_of_too_many_files_is_refused_at_once(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"trace{number}.json").touch()
    with pytest.raises(NotARun, match=r"contains 4 files that may be traces.* --max-files 4"):
        find_ranks(tmp_path, Limits(files=3))


def test_columns_are_configurations_and_rows_sizes(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("batch, one ,two\n8,1.5,2\n\n16,3,\n8,1.25,2\n", encoding="utf-8")
    table = load_times(path)
    assert table.varied == "batch"
    assert table.times_ns == {"one": {8.0: (1.5e9, 1.25e9), 16.0: (3e9,)}, "two": {8.0: (2e9, 2e9)}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("", "not a table of times", id="empty"),
        pytest.param("batch,one\n", "not a table of times", id="only-names"),
        pytest.param("batch\n1\n", "not a table of times", id="one-column"),
        pytest.param("batch,one\n1,2,3\n", "line 2 has 3 columns, not 2", id="ragged"),
        pytest.param("batch,one\n1,fast\n", "line 2: 'fast' is not a number", id="word"),
        pytest.param("batch,one\n\n1,2\n\n2,fast\n", "line 5: 'fast' is not a number", id="word-after-empty-lines"),
        pytest.param("batch,one\n1,nan\n", "'nan' is not a number", id="nan"),
        pytest.param("batch,one\n0,1\n", "'0' is not a number above 0", id="zero"),
        pytest.param("batch,one\n1,-2\n", "'-2' is not a number above 0", id="negative"),
        pytest.param("batch,one\n1,1e999\n", "'1e999' is not a number", id="infinite"),
        pytest.param("batch,one\n1e300,1\n", "'1e300' is not between 1e-12 and", id="overflows"),
        pytest.param("batch,one\n1,1e-300\n", "'1e-300' is not between", id="underflows"),
    ],
)
def test_what_is_no_table_is_said_in_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "times.csv"
    path.write_text(text)
    with pytest.raises(BadTrace, match=complaint) as caught:
        load_times(path)
    assert "\n" not in str(caught.value)


def test_the_mark_with_which_spreadsheets_begin_a_file_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("batch,one\n8,1.5\n", encoding="utf-8-sig")
    assert load_times(path).varied == "batch"


def test_bytes_are_no_table(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_bytes(b"\xff\xfe\x00a,b")
    with pytest.raises(BadTrace, match="cannot be read"):
        load_times(path)
