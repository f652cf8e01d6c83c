"""Summaries and drawn steps as bytes, and back: nothing is lost, not a bit."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleets import SAMPLE
from shared import TRACES

from ddpprof.load.run import load_run
from ddpprof.pipeline.analysis import analysed
from ddpprof.pipeline.entry import code_version
from ddpprof.report.topics import RunSummary, decode, encode, merge_summaries, summarize_rank
from ddpprof.topics.steps.timeline import DrawnRank, StepTimeline, drawing_of


def plain(value: Any) -> Any:
    if is_dataclass(value):
        return (type(value).__name__, *(plain(getattr(value, field.name)) for field in fields(value)))
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, tuple | list):
        return (type(value).__name__, *map(plain, value))
    return value


def paths() -> list[Any]:
    real = sorted(TRACES.glob("*_rank*of*.json.gz"))
    none = [pytest.param(None, marks=pytest.mark.skip(reason=f"{TRACES} is missing"))]
    return [SAMPLE, *(pytest.param(path, id=path.name) for path in real)] if real else [SAMPLE, *none]


@pytest.mark.parametrize("path", paths())
def test_what_is_decoded_is_what_was_encoded(path: Path) -> None:
    run = load_run(path)
    for rank in run.ranks:
        summary = summarize_rank(rank, run.modules)
        assert plain(decode(encode(summary), RunSummary)) == plain(summary)
        drawing = drawing_of(rank)
        assert drawing is not None
        assert decode(encode(drawing.about), DrawnRank) == drawing.about
        for index in drawing.about.measured:
            step = drawing.draw(index)
            assert plain(decode(encode(step), StepTimeline)) == plain(step)


def test_a_summary_is_kilobytes() -> None:
    run = load_run(SAMPLE)
    assert len(encode(summarize_rank(run.ranks[0], run.modules))) < 20_000


def test_equal_summaries_are_equal_bytes() -> None:
    run = load_run(SAMPLE)
    first, second = (encode(summarize_rank(run.ranks[0], run.modules)) for _ in range(2))
    assert first == second == encode(decode(first, RunSummary))


def test_the_order_and_grouping_of_merges_change_nothing() -> None:
    run = load_run(SAMPLE.with_name("transformer-gloo-4ranks"))
    a, b, c, d = (summarize_rank(rank, run.modules) for rank in run.ranks)
    merged = encode(merge_summaries([a, b, c, d]))
    assert encode(merge_summaries([d, merge_summaries([c, a]), b])) == merged
    assert encode(merge_summaries([merge_summaries([b, d]), merge_summaries([a, c])])) == merged
    assert encode(merge_summaries([RunSummary(), merge_summaries([a, b, c, d])])) == merged


RUN = Path(__file__).parents[3] / "sample_traces" / "convnet-gloo-2ranks"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return shutil.copytree(RUN, tmp_path / "run", ignore=shutil.ignore_patterns("tensorboard"))


def read(run: Path) -> list[str]:
    """Read a run; return the names of the traces that were read for it."""
    seen: list[str] = []
    with analysed(run, watch=lambda step: seen.append(step.path.name)):
        return sorted(set(seen))


def entries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "ddpprof" / "summaries").glob("*/*.zip"))


def test_nobody_else_may_enter_their_folder_and_nothing_is_written_into_the_run(run: Path, tmp_path: Path) -> None:
    before = sorted(run.iterdir())
    assert len(read(run)) == 2
    assert read(run) == []
    assert sorted(run.iterdir()) == before
    (folder,) = {entry.parent for entry in entries(tmp_path)}
    assert [one.stat().st_mode & 0o777 for one in (folder, folder.parent)] == [0o700, 0o700]


def test_a_changed_file_is_read_again(run: Path) -> None:
    read(run)
    os.utime(run / "rank-1.trace.json.gz", ns=(1, 1))
    assert read(run) == ["rank-1.trace.json.gz"]
    steps = run / "rank-0.steps.jsonl"
    steps.write_bytes(steps.read_bytes() + b"\n")
    assert read(run) == ["rank-0.trace.json.gz"]


def test_a_copied_run_has_entries_of_its_own(run: Path, tmp_path: Path) -> None:
    read(run)
    assert len(read(shutil.copytree(run, tmp_path / "copy"))) == 2
    assert len(entries(tmp_path)) == 4


def test_damaged_entries_and_those_of_other_code_are_made_anew(run: Path, tmp_path: Path) -> None:
    read(run)
    first, second = entries(tmp_path)
    first.write_bytes(first.read_bytes()[:100])
    old = second.rename(second.with_name("rank-1.000000000000-00000000.zip"))
    assert len(read(run)) == 2
    assert not old.exists()
    assert entries(tmp_path) == [first, second]
    assert all(code_version() in entry.name for entry in entries(tmp_path))


def test_where_others_may_write_among_the_entries_none_is_kept(run: Path, tmp_path: Path) -> None:
    read(run)
    entries(tmp_path)[0].parent.chmod(0o777)
    assert len(read(run)) == 2


def test_what_nobody_has_read_for_a_month_is_removed(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "cache" / "ddpprof" / "summaries" / "other"
    read(run)
    other.mkdir()
    read(run)
    assert other.exists()
    a_month_ago = time.time() - 31 * 24 * 3600
    os.utime(other, (a_month_ago, a_month_ago))
    read(run)
    assert not other.exists()
