"""Summaries and drawn steps as bytes, and back: nothing is lost, not a bit."""

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleets import SAMPLE
from shared import TRACES

from ddpprof.load.run import load_run
from ddpprof.report.topics import RunSummary, decode, encode, merge_summaries, summarise_rank
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
        summary = summarise_rank(rank, run.modules)
        assert plain(decode(encode(summary), RunSummary)) == plain(summary)
        drawing = drawing_of(rank)
        assert drawing is not None
        assert decode(encode(drawing.about), DrawnRank) == drawing.about
        for index in drawing.about.measured:
            step = drawing.draw(index)
            assert plain(decode(encode(step), StepTimeline)) == plain(step)


def test_a_summary_is_kilobytes() -> None:
    run = load_run(SAMPLE)
    assert len(encode(summarise_rank(run.ranks[0], run.modules))) < 20_000


def test_equal_summaries_are_equal_bytes() -> None:
    run = load_run(SAMPLE)
    first, second = (encode(summarise_rank(run.ranks[0], run.modules)) for _ in range(2))
    assert first == second == encode(decode(first, RunSummary))


def test_the_order_and_grouping_of_merges_change_nothing() -> None:
    run = load_run(SAMPLE.with_name("transformer-gloo-4ranks"))
    a, b, c, d = (summarise_rank(rank, run.modules) for rank in run.ranks)
    merged = encode(merge_summaries([a, b, c, d]))
    assert encode(merge_summaries([d, merge_summaries([c, a]), b])) == merged
    assert encode(merge_summaries([merge_summaries([b, d]), merge_summaries([a, c])])) == merged
    assert encode(merge_summaries([RunSummary(), merge_summaries([a, b, c, d])])) == merged
