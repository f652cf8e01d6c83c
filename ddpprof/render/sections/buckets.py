"""Gradient buckets: when each was ready, sent and done, and what is in it."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.measures.bucket_table import BucketSummary
from ddpprof.render.sections.layout import ABSENT, Column, Section, Table, clean, megabytes, ms
from ddpprof.report import Report

_MAX_BUCKETS = 24


def bucket_tables(report: Report) -> Iterable[Section]:
    if not report.buckets:
        return
    rows = []
    for b in report.buckets:
        late = ABSENT if b.late_rank is None else f"rank {b.late_rank} +{ms(b.late_by_ns)}"
        rows.append(
            (
                _bucket_name(report, b),
                megabytes(b.num_bytes),
                str(b.num_parameters),
                ms(b.ready_ns),
                ms(b.launched_ns),
                ms(b.started_ns),
                ms(b.finished_ns),
                late,
            )
        )
    names = ("bucket", "MB", "params", "ready", "launched", "started", "finished", "late")
    yield Table(
        "Gradient buckets, ms after the end of the forward (medians)",
        tuple(Column(name, name != "late") for name in names),
        tuple(rows[:_MAX_BUCKETS]),
        "ready: all its gradients are there; late: the rank that launches it last in most steps, and how long after "
        "the first",
    )
    yield Table(
        "",
        (
            Column("bucket"),
            *(Column(name, False) for name in ("first parameter", "last parameter", "slowest gradient")),
        ),
        tuple(
            (
                _bucket_name(report, b),
                clean(b.first_parameter),
                clean(b.last_parameter),
                ABSENT if b.slowest_parameter is None else clean(b.slowest_parameter),
            )
            for b in report.buckets[:_MAX_BUCKETS]
        ),
        f"{len(rows) - _MAX_BUCKETS} more buckets are in the JSON report" if len(rows) > _MAX_BUCKETS else "",
    )


def _bucket_name(report: Report, bucket: BucketSummary) -> str:
    return str(bucket.index) if len(report.job.modules) == 1 else f"{bucket.module}/{bucket.index}"
