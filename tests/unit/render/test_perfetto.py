"""The file for Perfetto: every track adds up to the report, nothing overlaps, arrows start and end in slices."""

import json
from collections import defaultdict
from dataclasses import astuple, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from drawn_runs import build_timeline
from reports import HOSTILE
from shared import TRACES

from ddpprof.load.run import load_run
from ddpprof.render.perfetto import render_perfetto
from ddpprof.report import Report
from ddpprof.report.build import build_report
from ddpprof.topics.steps.timeline import Timeline

CHECKOUT = Path(__file__).parents[3]
PATHS = {
    "gloo-2": CHECKOUT / "sample_traces" / "convnet-gloo-2ranks",
    "gloo-4": CHECKOUT / "sample_traces" / "transformer-gloo-4ranks",
    "nccl": TRACES / "resnet50_a100_rank0of2.json.gz",
    "several-streams": TRACES / "dlrm_rank3of8.json.gz",
}

PARTS = ("forward", "backward", "exposed comm", "optimizer", "data", "other", "copy", "idle")


class File:
    def __init__(self, timeline: Timeline, report: Report, shortest_ns: int = 0) -> None:
        self.content = json.loads(b"".join(render_perfetto(timeline, report, shortest_ns)))
        self.events: list[dict[str, Any]] = self.content["traceEvents"]
        about = [event for event in self.events if event["ph"] == "M"]
        self.process = {e["pid"]: e["args"]["name"] for e in about if e["name"] == "process_name"}
        self.track = {e["tid"]: e["args"]["name"] for e in about if e["name"] == "thread_name"}
        assert len(self.track) == sum(e["name"] == "thread_name" for e in about), "threads of one number"
        self.slices = defaultdict(list)
        for event in self.events:
            if event["ph"] == "X":
                begin = round(event["ts"] * 1000)
                self.slices[event["tid"]].append((begin, begin + round(event["dur"] * 1000), event["name"]))

    def total(self, rank: int, track: str, name: str | None = None) -> int:
        """Of a track and of those that stand in for it where slices overlap."""
        return sum(
            end - begin
            for tid, slices in self.slices.items()
            if tid // 10_000 == rank + 1 and self.track[tid].partition(" (")[0].startswith(track)
            for begin, end, of in slices
            if name in (None, of)
        )

    def counter(self, rank: int, name: str) -> list[tuple[int, int]]:
        of = [e for e in self.events if e["ph"] == "C" and e["pid"] == rank + 1 and e["name"] == name]
        return [(round(event["ts"] * 1000), event["args"]["value"]) for event in of]


def build(path: Path) -> tuple[Timeline, Report]:
    run = load_run(path)
    report = build_report(run)
    return build_timeline(run, report), report


@pytest.fixture(scope="module", params=PATHS)
def case(request: pytest.FixtureRequest) -> tuple[File, Report]:
    path = PATHS[request.param]
    if not path.exists():
        pytest.skip("the traces of others are not part of the project: no ../shared")
    timeline, report = build(path)
    return File(timeline, report), report


def test_tracks_add_up_to_the_report(case: tuple[File, Report]) -> None:
    file, report = case
    for rank in report.ranks:
        number = rank.rank
        assert file.total(number, "exposed communication") == sum(s.exposed_ns for s in rank.steps)
        assert file.total(number, "trailing communication") == sum(s.trailing_ns or 0 for s in rank.steps)
        parts = [astuple(step.parts) for step in rank.steps if step.parts]
        assert [file.total(number, "step bar", name) for name in PARTS] == [
            sum(column) for column in zip(*parts, strict=True)
        ]


def test_the_counter_of_hidden_communication_adds_up_to_the_report(case: tuple[File, Report]) -> None:
    file, report = case
    for rank in report.ranks:
        points = file.counter(rank.rank, "hidden communication")
        hidden = sum(later - at for (at, value), (later, _) in pairwise(points) if value)
        assert hidden == sum(step.overlap_ns for step in rank.steps)


def test_what_is_in_flight_lands(case: tuple[File, Report]) -> None:
    file, report = case
    for rank in report.ranks:
        points = file.counter(rank.rank, "bytes in flight")
        if points:
            assert points[-1][1] == 0
            assert max(value for _, value in points) > 0
            assert min(value for _, value in points) == 0


def test_slices_of_a_track_do_not_overlap(case: tuple[File, Report]) -> None:
    """Perfetto drops those that do."""
    file, _ = case
    for slices in file.slices.values():
        in_order = sorted(slices)
        assert all(end <= begin for (_, end, _), (begin, _, _) in pairwise(in_order))


def test_arrows_lead_from_slice_to_slice(case: tuple[File, Report]) -> None:
    file, report = case
    arrows = defaultdict(list)
    for event in file.events:
        if event["ph"] in "stf":
            at = round(event["ts"] * 1000)
            held = [name for begin, end, name in file.slices[event["tid"]] if begin <= at < end]
            assert len(held) == 1
            arrows[event["id"]].append((event["ph"], at))
    for points in arrows.values():
        assert [kind for kind, _ in points] == ["s", *"t" * (len(points) - 2), "f"]
        assert points == sorted(points, key=lambda point: point[1])
    steps = sum(len(rank.steps) for rank in report.ranks)
    assert 0 < len(arrows) <= steps * len(report.buckets)


def test_ranks_are_processes_and_no_time_is_negative(case: tuple[File, Report]) -> None:
    file, report = case
    assert [name.split(" (")[0] for name in file.process.values()] == [f"rank {rank.rank}" for rank in report.ranks]
    assert min(event["ts"] for event in file.events if "ts" in event) >= 0


def test_short_kernels_are_left_out_and_communication_stays() -> None:
    timeline, report = build(PATHS["gloo-2"])
    whole, short = File(timeline, report), File(timeline, report, 1_000_000)
    for rank in (0, 1):
        assert 0 < short.total(rank, "compute") < whole.total(rank, "compute")
        assert short.total(rank, "communication") == whole.total(rank, "communication") > 0
        assert short.total(rank, "exposed") == whole.total(rank, "exposed")
    kernels = [slices for tid, slices in short.slices.items() if short.track[tid].startswith("compute")]
    assert min(end - begin for slices in kernels for begin, end, _ in slices) >= 1_000_000


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_names_stay_text(name: str) -> None:
    timeline, report = build(PATHS["gloo-2"])
    first = timeline.ranks[0]
    hostile = replace(timeline, ranks=(replace(first, names=(name,) * len(first.names)),))
    shown = name.encode("utf-8", "replace").decode()  # as hosts and jobs are in a report
    ranks = (replace(report.ranks[0], host=shown), *report.ranks[1:])
    file = File(hostile, replace(report, ranks=ranks, job=replace(report.job, name=shown)))
    assert file.process == {1: f"rank 0 ({shown})"}
    assert {n for tid, slices in file.slices.items() if "compute" in file.track[tid] for *_, n in slices} == {shown}
