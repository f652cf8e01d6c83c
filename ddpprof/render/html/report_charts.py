"""Charts for a run's page: many ranks, buckets, collectives, slowed kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ddpprof.layout import MAX_RANKS, PARTS, Line, clean, median_of, megabytes, ms, three_digits
from ddpprof.render.html.chart import Chart, bar_trace, bars_layout, bucket_label, byte_ticks, decade_ticks, limit_line
from ddpprof.render.sections.overlap_slowdown import kernel_name
from ddpprof.render.sections.spread import parts_of_ranks
from ddpprof.render.sections.steps import of_device, typical_step
from ddpprof.report import Report
from ddpprof.topics.buckets.rows import BucketRow
from ddpprof.topics.collectives.table import CollectiveSummary
from ddpprof.topics.overlap_slowdown import SlowedKernel

_MAX_BUCKETS, _MAX_KERNELS = 40, 15
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon")
_STAGES = (("held back", "held"), ("queued", "queued"), ("all-reduce", "comm"))
"""name and role of each stage: ready to launched, launched to started, started to finished"""
_STAGES_ON_CPU = (
    "held back: from ready to launched, as buckets are launched in index order; queued: from launched to started; "
    "all-reduce: from started to finished"
)
_ON_ACCELERATORS = (
    "held back: until the host launches the all-reduce, as buckets are launched in index order; queued: until the "
    "device, which may still be busy with earlier work, starts it; all-reduce: how long the device takes"
)


def ranks_chart(report: Report) -> Iterable[Chart]:
    """Draw the parts of the step of many ranks as a map."""
    ranks, values = parts_of_ranks(report)
    if len(ranks) <= MAX_RANKS:
        return
    columns = np.array(values, np.int64).T
    beyond = (columns - np.median(columns, axis=1, keepdims=True)) / 1e6
    trace = {
        "type": "heatmap",
        "x": ranks,
        "y": list(PARTS),
        "z": beyond.tolist(),
        "customdata": columns.tolist(),
        "text": [
            [f"rank {rank}: {part} {ms(ns)} ms" for rank, ns in zip(ranks, column.tolist(), strict=True)]
            for part, column in zip(PARTS, columns, strict=True)
        ],
        "hoverinfo": "text",
        "zmid": 0,
        "colorbar": {"title": {"text": "ms"}, "thickness": 12},
    }
    layout = {
        "xaxis": {"title": {"text": "rank"}, "showgrid": False},
        "yaxis": {"autorange": "reversed", "fixedrange": True, "showgrid": False},
    }
    title = f"All ranks by kind of work: step {typical_step(report)}"
    note = (
        f"difference from the median of the ranks, ms{of_device(report)}; click a rank to add it to those drawn below"
    )
    yield Chart(title, (trace,), layout, 300, note, kind="ranks")


def bucket_chart(report: Report) -> Iterable[Chart]:
    rows = [row for row in report.buckets[:_MAX_BUCKETS] if sum(time is not None for time in _times(row)) >= 2]
    if not rows:
        return
    traces = [_stage(rows, stage) for stage in range(len(_STAGES))]
    clock = ", on the host's clock" if report.times else ""
    layout = bars_layout(f"ms after the end of the forward, medians{clock}", "overlay")
    note = _ON_ACCELERATORS if report.times else _STAGES_ON_CPU
    kept = [trace for trace in traces if trace["x"]]
    yield Chart("Buckets from ready to finished", kept, layout, 70 + 26 * len(rows), note)


def _times(row: BucketRow) -> tuple[int | None, ...]:
    return (row.ready_ns, row.launched_ns, row.started_ns, row.finished_ns)


def _span(row: BucketRow, stage: int) -> tuple[int, int] | None:
    begin, end = _times(row)[stage : stage + 2]
    return None if begin is None or end is None else (begin, end)


def _stage(rows: Sequence[BucketRow], stage: int) -> dict[str, Any]:
    """Return the bars of one stage, for all buckets whose beginning and end of it are known."""
    name, role = _STAGES[stage]
    known = [(row, *span) for row in rows if (span := _span(row, stage)) is not None]
    labels = [bucket_label(row.module, row.index, row.num_bytes) for row, _, _ in known]
    return {
        **bar_trace(name, role, labels, [end - begin for _, begin, end in known]),
        "base": [begin / 1e6 for _, begin, _ in known],
        "text": [
            f"{label}: {name} {ms(end - begin)} ms, from {ms(begin)} to {ms(end)} ms"
            for label, (_, begin, end) in zip(labels, known, strict=True)
        ],
    }


def collective_chart(report: Report) -> Iterable[Chart]:
    """Draw the link's rate by message size, or durations if only these are known."""
    rows = report.across.collectives if report.across is not None else ()
    sized = [row for row in rows if (row.num_bytes or 0) > 0 and row.num_calls > 0]
    rated = [row for row in sized if row.busbw_bytes_per_s is not None]
    timed = [row for row in sized if row.transfer_ns > 0]
    if rated:
        best = max(row.busbw_bytes_per_s or 0 for row in rated) / 1e9
        traces = _by_kind(rated, [(row.busbw_bytes_per_s or 0) / 1e9 for row in rated], "GB/s")
        layout = _over_size(rated, "busbw, GB/s", {"rangemode": "tozero"})
        layout["shapes"] = [limit_line(best)]
        layout["annotations"] = [
            {
                "xref": "paper", "x": 0, "y": best, "text": f"highest rate of the link: {three_digits(best)} GB/s",
                "showarrow": False, "xanchor": "left", "yanchor": "bottom",
            }
        ]  # fmt: skip
        note = "busbw: what the link carries, comparable for any number of ranks; small ones are dominated by latency"
        yield Chart("The link's rate by message size", traces, layout, 340, note)
    elif timed:
        durations = [row.transfer_ns / 1e6 for row in timed]
        traces = _by_kind(timed, durations, "ms")
        layout = _over_size(timed, f"duration, ms{of_device(report)}", decade_ticks(durations))
        note = "not matched between ranks: durations include waiting for others, so the link's rate is unknown"
        yield Chart("Duration by message size", traces, layout, 340, note)


def _over_size(rows: Sequence[CollectiveSummary], what: str, axis: dict[str, Any]) -> dict[str, Any]:
    sizes = {"title": {"text": "size of a message"}, **byte_ticks([_size(row) for row in rows])}
    return {"xaxis": sizes, "yaxis": {"title": {"text": what}, **axis}}


def _size(row: CollectiveSummary) -> float:
    return (row.num_bytes or 0) / row.num_calls


def _by_kind(rows: Sequence[CollectiveSummary], values: Sequence[float], unit: str) -> list[dict[str, Any]]:
    traces = []
    names = [row.kind.replace("_", "-") + (f", group {clean(row.group, most=30)}" if row.group else "") for row in rows]
    for number, name in enumerate(dict.fromkeys(names)):
        own = [(row, value) for row, value, of in zip(rows, values, names, strict=True) if of == name]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [_size(row) for row, _ in own],
                "y": [value for _, value in own],
                "text": [_about(name, row, value, unit) for row, value in own],
                "hoverinfo": "text",
                "marker": {"size": 11, "symbol": _SYMBOLS[number % len(_SYMBOLS)]},
                "meta": {"role": f"series-{number % 6}"},
            }
        )
    return traces


def _about(name: str, row: CollectiveSummary, value: float, unit: str) -> str:
    size = megabytes(round(_size(row)))
    return (
        f"{name} of {size} MB: {three_digits(value)} {unit}; {row.num_calls} calls, transfer {ms(row.transfer_ns)} ms"
    )


_SEEN = 0.01
"""least visible length, as a fraction of the longest bar"""


_WORTH_A_CHART = 0.001
"""least share of the step that all kernels together lose"""


def slowdown_chart(report: Report) -> Iterable[Chart | Line]:
    kernels = report.overlap_slowdown.kernels if report.overlap_slowdown is not None else ()
    most_ns = max((row.lost_ns for row in kernels), default=0)
    seen = [row for row in kernels if row.ratio is not None and abs(row.lost_ns) > most_ns * _SEEN]
    known = seen[:_MAX_KERNELS]
    if not known:
        return
    lost_ns = sum(abs(row.lost_ns) for row in kernels)
    step_ns = median_of([step for rank in report.ranks for step in rank.measured_steps], lambda step: step.duration_ns)
    if lost_ns < _WORTH_A_CHART * (step_ns or 0):
        yield Line("All kernels together lose less than 0.1% of the step to communication, so none is drawn.")
        return
    labels = [f"{number}. {row.ratio:.2f} × {kernel_name(row.kernel)}" for number, row in enumerate(known, 1)]
    trace = {**bar_trace("lost", "series-1", labels, [row.lost_ns for row in known]), "text": list(map(_slowed, known))}
    layout = {**bars_layout(f"lost, ms{of_device(report)} per step and rank"), "showlegend": False}
    note = "factor: duration under communication relative to that without it"
    yield Chart("Time lost by kernel", (trace,), layout, 90 + 28 * len(known), note)


def _slowed(row: SlowedKernel) -> str:
    name = clean(row.kernel.name, most=120)
    return f"{name}: {row.ratio:.2f} × as long ({row.num_covered} runs under communication, {row.num_alone} alone)"
