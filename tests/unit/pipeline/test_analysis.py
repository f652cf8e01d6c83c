"""From a path to a report: by summaries, in one process or several, read or kept, it is always the same."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_runs import build_timeline
from fleets import make_fleet, make_traces, write_rank

from ddpprof.cli.arguments import numbers
from ddpprof.errors import BadTrace, DdpprofError, NotARun
from ddpprof.load.run import find_ranks, load_run
from ddpprof.pipeline.analysis import ALL, AnalysisOptions, analysed, select_ranks
from ddpprof.pipeline.entry import ReadProgress
from ddpprof.render.json import render_json
from ddpprof.report.build import build_report


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    return make_fleet(tmp_path / "fleet", 5)


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def report_of(path: Path, choice: AnalysisOptions = ALL) -> str:
    with analysed(path, choice) as analysis:
        return render_json(analysis.report)


def in_memory(path: Path) -> str:
    return render_json(build_report(load_run(path)))


def read_by(path: Path, choice: AnalysisOptions = ALL) -> list[str]:
    """The files that were read, in order."""
    seen: list[ReadProgress] = []
    with analysed(path, choice, seen.append):
        return list(dict.fromkeys(step.path.name for step in seen))


def test_what_is_kept_gives_the_same_report_and_reads_nothing(fleet: Path) -> None:
    first = report_of(fleet)
    assert read_by(fleet) == []
    assert report_of(fleet) == first


def test_one_more_rank_reads_one_file(fleet: Path) -> None:
    report_of(fleet)
    write_rank(fleet, 5, 6)
    assert read_by(fleet) == ["rank-5.trace.json.gz"]
    assert report_of(fleet) == in_memory(fleet)


def test_a_changed_file_is_read_again(fleet: Path) -> None:
    report_of(fleet)
    steps = fleet / "rank-3.steps.jsonl"
    steps.write_bytes(steps.read_bytes().split(b"\n", 1)[1])
    assert read_by(fleet) == ["rank-3.trace.json.gz"]
    assert report_of(fleet) == in_memory(fleet)


def test_without_the_cache_nothing_is_kept_and_nothing_used(fleet: Path, cache_home: Path) -> None:
    report_of(fleet, AnalysisOptions(use_cache=False))
    assert not cache_home.exists()
    report_of(fleet)
    assert len(read_by(fleet, AnalysisOptions(use_cache=False))) == 5


def test_traces_without_a_run_use_the_users_cache(tmp_path: Path, cache_home: Path) -> None:
    traces = make_traces(tmp_path / "traces", 3)
    expected = in_memory(traces)
    assert report_of(traces) == expected
    assert {path.suffix for path in traces.iterdir()} == {".gz"}, "a folder of the user's is left alone"
    assert read_by(traces) == []
    assert report_of(traces) == expected
    one = traces / "rank-2.json.gz"
    assert report_of(one) == in_memory(one)
    assert read_by(one) == []


def test_a_trace_that_cannot_be_read_is_named_and_tried_again(fleet: Path) -> None:
    trace = fleet / "rank-2.trace.json.gz"
    whole = trace.read_bytes()
    trace.write_bytes(whole[:5000])
    assert report_of(fleet) == in_memory(fleet)
    assert "rank 2:" in report_of(fleet)
    assert read_by(fleet) == ["rank-2.trace.json.gz"]
    trace.write_bytes(whole)
    assert report_of(fleet) == in_memory(fleet)


def test_one_bad_trace_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b"no"))
    with pytest.raises(BadTrace, match="is not JSON"):
        report_of(path)
    with pytest.raises(NotARun, match="does not exist"):
        report_of(tmp_path / "none")


def test_timelines_are_those_of_a_run_in_memory(fleet: Path) -> None:
    run = load_run(fleet)
    expected = build_timeline(run, build_report(run), numbers("11-12"), (1, 4))
    for _ in range(2):
        with analysed(fleet) as analysis:
            made = analysis.timeline(numbers("11-12"), (1, 4))
        assert made.clock_error_ns == expected.clock_error_ns
        assert [rank.rank for rank in made.ranks] == [1, 4]
        for one, other in zip(made.ranks, expected.ranks, strict=True):
            assert [step.step for step in one.steps] == [step.step for step in other.steps] != []
            assert [step.buckets for step in one.steps] == [step.buckets for step in other.steps]
            for step, same in zip(one.steps, other.steps, strict=True):
                assert step.exposed == same.exposed
                assert step.compute.start_ns.tolist() == same.compute.start_ns.tolist()


def test_chosen_ranks_are_read_alone_and_the_report_says_so(fleet: Path) -> None:
    with analysed(fleet, AnalysisOptions(ranks=numbers("1,3-9"))) as analysis:
        report = analysis.report
    assert [rank.rank for rank in report.ranks] == [1, 3, 4]
    assert report.missing[:2] == (
        "only 3 of 5 ranks were read, as requested", "ranks 5-9 were requested, but the run has ranks 0-4"
    )  # fmt: skip
    assert not any("left no" in text for text in report.missing)
    assert read_by(fleet, AnalysisOptions(ranks=numbers("0,1"))) == ["rank-0.trace.json.gz"]
    with pytest.raises(DdpprofError, match="no such rank: the run has ranks 0-4"):
        report_of(fleet, AnalysisOptions(ranks=numbers("7")))


def test_chosen_steps_are_measured_alone(fleet: Path) -> None:
    with analysed(fleet) as analysis:
        everything = analysis.report
    wanted = everything.ranks[0].steps[1].step
    with analysed(fleet, AnalysisOptions(steps=numbers(str(wanted)))) as analysis:
        report = analysis.report
        assert [step.step for rank in analysis.timeline().ranks for step in rank.steps] == [wanted] * 5
    assert report.missing[0] == "only 1 step was measured, as requested"
    for rank, same in zip(report.ranks, everything.ranks, strict=True):
        (step,) = rank.steps
        # DDP publishes the times of a step in the next one, which was not asked for.
        assert step == replace(same.steps[1], torch_times=step.torch_times)
    assert report_of(fleet) == render_json(everything), "entries of some steps are not those of all"
    with pytest.raises(DdpprofError, match="no such step: the run has steps 4, 6, 8, 10, 12-14"):
        report_of(fleet, AnalysisOptions(steps=numbers("999")))


def test_of_many_ranks_some_are_replayed_and_those_that_are_asked_for(tmp_path: Path) -> None:
    with analysed(make_fleet(tmp_path / "fleet", 40)) as analysis:
        some, also = analysis.to_replay(), analysis.to_replay([7])
    assert set(some.recorded) == set(some.passes) == set(range(0, 40, 3))
    assert set(also.recorded) == set(also.passes) == {7, *range(0, 40, 3)}


def test_progress_goes_on_within_a_file(fleet: Path) -> None:
    seen: list[ReadProgress] = []
    with analysed(fleet, AnalysisOptions(jobs=1), seen.append):
        pass
    assert any(step.done_bytes > 0 for step in seen if step.num_done == 0)
    assert [step.done_bytes for step in seen] == sorted(step.done_bytes for step in seen)


def test_names_need_not_be_utf_8(tmp_path: Path, cache_home: Path) -> None:
    traces = make_traces(tmp_path / "traces-\udcff", 2)
    (traces / "rank-1.json.gz").rename(traces / "rank-1-\udcff.json.gz")
    (traces / "no-trace-\udcff.json").write_text("{}")
    made = report_of(traces)
    assert made == in_memory(traces)
    assert "no-trace-?.json is not a profiler trace" in made
    assert read_by(traces) == []
    assert read_by(traces / "rank-1-\udcff.json.gz") == ["rank-1-\udcff.json.gz"]


def chosen(path: Path, sample: int) -> tuple[list[int | None], tuple[str, ...]]:
    selection = select_ranks(find_ranks(path).ranks, None, sample)
    return [one.rank for one in selection.ranks], selection.notes


@pytest.mark.parametrize(
    ("sample", "ranks"), [(1, [0]), (2, [0, 8]), (3, [0, 4, 8]), (5, [0, 2, 4, 6, 8]), (9, [*range(9)])]
)
def test_ranks_are_chosen_evenly(tmp_path: Path, sample: int, ranks: list[int]) -> None:
    """Traces say nothing of who is late until they are read."""
    found, notes = chosen(make_traces(tmp_path, 9), sample)
    assert found == ranks
    were = "was" if sample == 1 else "were"
    assert notes == ((f"only {sample} of 9 ranks {were} read, as requested, evenly spaced",) if sample < 9 else ())


def test_a_rank_that_is_late_by_the_light_record_is_read(tmp_path: Path) -> None:
    found, notes = chosen(make_fleet(tmp_path / "fleet", 8, late=5), 3)
    assert found == [0, 5, 7]
    assert notes == ("only 3 of 8 ranks were read, as requested; rank 5 is late in the light recording",)
