"""The first screen says what ddpprof itself costs, in one line outside the findings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reports import report

from ddpprof.layout import Line, Remarks
from ddpprof.render.sections.overview import first_screen
from ddpprof.report import Report
from ddpprof.topics.steps.view import recording_cost_line


def with_cost(light_ratio: float, profiled_ns: int) -> Report:
    """Unrecorded steps take 66.8 ms and differ by 10 %."""
    made = report()
    ranks = [
        rank
        if rank.recording_cost is None
        else replace(
            rank,
            recording_cost=replace(
                rank.recording_cost, light_ratio=light_ratio, profiled_ns=profiled_ns, profiler_pause_ns=None
            ),
        )
        for rank in made.ranks
    ]
    return replace(made, ranks=tuple(ranks))


@pytest.mark.parametrize(
    ("light_ratio", "profiled_ns", "says"),
    [
        pytest.param(1.02, 67_000_000, "no measurable cost (± 10%)", id="chance"),
        pytest.param(
            0.8,
            33_375_000,
            "unknown, because the duration of steps varies too much",
            id="recording-makes-no-step-faster",
        ),
        pytest.param(
            1.02,
            133_500_000,
            "profiled steps took 2.00 × as long (134 ms instead of 66.8 ms); light recording had no measurable cost "
            "(± 10%)",
            id="the-profiler-costs",
        ),
        pytest.param(
            1.2,
            86_840_000,
            "profiled steps took 1.30 × as long (86.8 ms instead of 66.8 ms); lightly recorded steps took 1.20 × as "
            "long (67.0 ms instead of 66.8 ms)",
            id="light-recording-costs",
        ),
        pytest.param(1.2, 67_000_000, "no measurable cost (± 20%)", id="light-recording-costs-no-more-than-profiling"),
    ],
)
def test_the_cost_of_recording_is_one_line(light_ratio: float, profiled_ns: int, says: str) -> None:
    shown = with_cost(light_ratio, profiled_ns)
    [line] = recording_cost_line(shown)
    assert isinstance(line, Line)
    assert line.text == f"Recording overhead: {says}."
    screen = first_screen(shown, ["runs/a"])
    assert line in screen
    remarks = [remark for section in screen if isinstance(section, Remarks) for remark in section.remarks]
    assert not any("Cost of ddpprof" in text for text in remarks)


def test_a_cost_that_may_be_anything_is_unknown() -> None:
    made = with_cost(1.02, 67_000_000)
    vague = [replace(rank, recording_cost=replace(rank.recording_cost, spread=6.2)) for rank in made.ranks
             if rank.recording_cost is not None]  # fmt: skip
    [line] = recording_cost_line(replace(made, ranks=tuple(vague)))
    assert isinstance(line, Line)
    assert line.text == "Recording overhead: unknown, because the duration of steps varies too much."
