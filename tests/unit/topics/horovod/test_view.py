"""The report of a Horovod timeline, from the file to the terminal."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from reports import HOSTILE, compare_runs
from timelines import Event, cycle, fused, negotiation, tensor, text, together

from ddpprof.engine.finding import Finding
from ddpprof.load.run import load_run
from ddpprof.render.json import read_report, render_json
from ddpprof.render.markdown import render_markdown
from ddpprof.render.sections import sections
from ddpprof.render.terminal import render_terminal
from ddpprof.report import Report
from ddpprof.report.build import build_report

STEP, NUM_STEPS = 10_000, 4


def built(tmp_path: Path, *events: Event) -> Report:
    path = tmp_path / "timeline.json"
    path.write_text(text(*events))
    return build_report(load_run(path))


def one_by_one(num_tensors: int = 6, agreed: int = 100, comm: int = 300, cycles: int = 0) -> list[Event]:
    """Tensors that are announced together, agreed upon `agreed` µs later, and reduced one after the other."""
    events = [event for pid in range(1, num_tensors + 1) for event in tensor(pid, f"t{pid}")]
    events += [cycle(at) for at in range(0, STEP * NUM_STEPS, cycles)] if cycles else []
    for start in range(0, STEP * NUM_STEPS, STEP):
        for pid in range(1, num_tensors + 1):
            events += negotiation(pid, start, start + agreed)
        for pid in range(1, num_tensors + 1):
            begins = start + agreed + (pid - 1) * comm
            events += together([pid], begins, [("GLOO_ALLREDUCE", begins, begins + comm)], begins + comm)
    return events


def ticking(late: Sequence[Mapping[int, int]]) -> list[Event]:
    """One tensor; of each step, when which rank had it."""
    events = tensor(1, "t")
    for index, ranks in enumerate(late):
        start = index * STEP
        ticks = {rank: start + time for rank, time in ranks.items()}
        end = max(ticks.values()) + 1
        events += negotiation(1, start, end, ticks=ticks)
        events += together([1], end, [("NCCL_ALLREDUCE", end, end + 100)], end + 100)
    return events


def found(report: Report) -> dict[str, Finding]:
    return {finding.rule: finding for finding in report.findings}


def test_the_job_and_its_steps(tmp_path: Path) -> None:
    report = built(tmp_path, *one_by_one())
    assert (report.job.name, report.job.backend, report.job.world_size) == ("timeline.json", "gloo", None)
    assert [step.duration_ns for step in report.ranks[0].light_steps] == [STEP * 1000] * (NUM_STEPS - 1)
    assert report.across is None
    assert any("has no computation" in text for text in report.missing)
    assert any("known for 0 of 24 reductions" in text for text in report.missing)


def test_tensors_that_are_not_fused(tmp_path: Path) -> None:
    finding = found(built(tmp_path, *one_by_one()))["horovod-not-fused"]
    assert finding.gain_ns == 5 * 300_000
    assert finding.title == "6 of 6 tensors per step are reduced one by one"
    assert "HOROVOD_FUSION_THRESHOLD" in finding.advice
    assert "horovod-not-fused" not in found(built(tmp_path, *one_by_one(num_tensors=3)))


def test_tensors_that_are_too_large_to_gain_from_fusion_are_left_alone(tmp_path: Path) -> None:
    events = one_by_one()
    for event in events:
        if "args" in event and "shape" in event["args"]:
            event["args"]["shape"] = "[250000]"
    assert "horovod-not-fused" not in found(built(tmp_path, *events))


def test_waiting_for_the_next_cycle(tmp_path: Path) -> None:
    finding = found(built(tmp_path, *one_by_one(agreed=2900, cycles=1000)))["horovod-cycle"]
    assert finding.gain_ns == 2_900_000
    assert "a cycle takes 1.00 ms" in finding.evidence
    assert "horovod-cycle" not in found(built(tmp_path, *one_by_one(agreed=1400, cycles=500)))


def test_waiting_for_a_rank_that_the_timeline_does_not_name(tmp_path: Path) -> None:
    finding = found(built(tmp_path, *one_by_one(agreed=5000)))["horovod-straggler"]
    assert finding.gain_ns == 5_000_000
    assert "for other ranks" in finding.title
    assert "HOROVOD_CACHE_CAPACITY=0" in finding.evidence


def test_a_straggler_by_its_number(tmp_path: Path) -> None:
    report = built(tmp_path, *ticking([{0: 0, 1: 1, 2: 9000}, *[{0: 1000, 2: 1001, 1: 6000}] * 4]))
    finding = found(report)["horovod-straggler"]
    assert finding.title == "Rank 0 waits 5.00 ms per step for rank 1, after its own gradients are ready"
    assert "rank 1 was last for 4 of 4 tensors" in finding.evidence
    assert report.across is not None
    assert [(one.rank, one.num_last) for one in report.across.waiting] == [(0, 0), (1, 4), (2, 1)]
    assert report.job.world_size == 3


def test_no_rank_is_blamed_for_the_start(tmp_path: Path) -> None:
    cached = one_by_one(1, agreed=5000)
    first = ticking([{0: 0, 2: 1, 1: 5000}])
    renamed = [{**event, "ts": event["ts"] + STEP} if "ts" in event else event for event in cached]
    finding = found(built(tmp_path, *[e for e in first if e["ph"] != "M"], *renamed))["horovod-straggler"]
    assert "for other ranks" in finding.title


def test_nothing_is_said_where_rank_0_is_the_last(tmp_path: Path) -> None:
    assert found(built(tmp_path, *ticking([{1: 0, 0: 6000}] * 4))) == {}


def test_copies(tmp_path: Path) -> None:
    events = [*tensor(1, "a"), *tensor(2, "b")]
    for start in range(0, STEP * NUM_STEPS, STEP):
        events += negotiation(1, start, start + 1) + negotiation(2, start, start + 1)
        events += together([1, 2], start + 1, fused(start + 1, (start + 302, start + 400), start + 501), start + 501)
    finding = found(built(tmp_path, *events))["horovod-copies"]
    assert finding.gain_ns == 400_000
    assert "2 tensors per step are fused" in finding.evidence


def test_without_steps_it_says_why(tmp_path: Path) -> None:
    report = built(tmp_path, *tensor(1, "t"), *negotiation(1, 0, 5), *together([1], 5, [("MPI_ALLREDUCE", 5, 9)], 9))
    assert report.findings == ()
    assert any("no tensor is reduced twice" in text for text in report.missing)
    assert "1 × all-reduce, 0.00 ms" in drawn(report)


def drawn(report: Report, width: int = 80) -> str:
    file = io.StringIO()
    render_terminal(sections(report), file, width)
    return file.getvalue()


def test_it_is_drawn(tmp_path: Path) -> None:
    shown = drawn(built(tmp_path, *one_by_one()))
    assert "Horovod timeline · 3 steps" in shown.replace("\n", " ")
    median = next(line for line in shown.splitlines() if line.startswith("median"))
    assert median.split() == ["median", "10.00", "1.90", "1.80", "0.00", "0.00", "0.10", "0.00", "1.90"]
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("name", HOSTILE)
def test_names_stay_names(name: str, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    hostile = HOSTILE[name].encode("utf-8", "replace").decode()
    path.write_text(text(*one_by_one(1)).replace('"t1"', json.dumps(hostile)))
    report = build_report(load_run(path))
    shown = drawn(report)
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "<script>" not in render_markdown("x", sections(report))


def test_the_json_report_is_read_back_and_compared(tmp_path: Path) -> None:
    a, b = built(tmp_path, *one_by_one()), built(tmp_path, *one_by_one(comm=200))
    path = tmp_path / "report.json"
    path.write_text(render_json(a))
    assert read_report(path) == a
    changes = [(change.metric, change.a_ns, change.b_ns) for change in compare_runs(a, b).metrics]
    assert changes == [("step", STEP * 1000, STEP * 1000), ("fastest step", STEP * 1000, STEP * 1000)]


def test_in_a_folder_of_traces_it_is_skipped_by_name(tmp_path: Path) -> None:
    built(tmp_path, *one_by_one())
    of_step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 1, "dur": 5, "pid": 1, "tid": 1}
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [of_step]}))
    missing = build_report(load_run(tmp_path)).missing
    assert any("timeline.json is a Horovod timeline; give it alone" in text for text in missing)
