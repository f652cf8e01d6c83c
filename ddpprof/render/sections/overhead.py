"""The measured overhead of DDP, and what explains it, in words."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.experiments.overhead import OverheadReport
from ddpprof.layout import Line, Section, Table, columns, count, ms, notes
from ddpprof.statistics.paired_ratio import Ratio


def overhead_sections(report: OverheadReport) -> Iterable[Section]:
    yield Line(_verdict(report))
    yield _parts(report)
    yield Table(
        "Rounds: median step, ms",
        columns("round", "with DDP", "without", "ratio", "pairs"),
        tuple(
            (str(number), ms(one.with_ns), ms(one.without_ns), f"{one.ratio:.3f}", str(one.num_pairs))
            for number, one in enumerate(report.rounds, 1)
        ),
        "pairs: a block of steps with DDP and one without, in the same start of the job, or, with --apart, one job "
        "with and one without DDP; ratio: median over the pairs",
    )


def _verdict(report: OverheadReport) -> str:
    ratio = report.ratio
    world = report.job.world_size or 1
    on = "on one rank" if world == 1 else f"on {world} ranks, communication included"
    pairs, times = count(ratio.num_pairs, "pair"), f"{ms(report.with_ns)} against {ms(report.without_ns)} ms"
    if ratio.is_beyond_noise:
        return f"With DDP a step takes {interval(ratio)} × as long as without it, {on}: {times}."
    if ratio.low is None or ratio.high is None or ratio.high - ratio.low > _VAGUE:
        few = "is not enough" if ratio.num_pairs == 1 else "are not enough"
        return (
            f"{pairs} {few} to tell whether a step takes longer with DDP, {on}: {interval(ratio)} × ({times}). "
            "Run more: --rounds"
        )
    return (
        f"With DDP a step takes as long as without it, as far as {pairs} can tell, {on}: {interval(ratio)} × ({times})."
    )


_VAGUE = 0.1
"""width of its interval above which a ratio says little, whether it is close to 1 or not"""


def interval(ratio: Ratio) -> str:
    """Return the ratio with its interval, if that is known and narrow enough to say something."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.ratio:.3f}"
    if ratio.is_vague:
        return f"{ratio.ratio:.2f} (trials vary too much to tell)"
    return f"{ratio.ratio:.3f} ({ratio.low:.3f} – {ratio.high:.3f})"


def _parts(report: OverheadReport) -> Section:
    rows = [("measured: step with DDP minus step without", ms(report.overhead_ns), _range(report))]
    wrapper, parts = report.wrapper, report.parts
    if wrapper is not None:
        rows += [
            ("  pre-forward: buffer sync, bookkeeping", ms(wrapper.pre_forward_ns), ""),
            ("  search for unused parameters", ms(wrapper.unused_search_ns), ""),
            ("  gradients copied into buckets", ms(wrapper.copy_in_ns), ""),
            ("  all-reduces handed to the backend", ms(wrapper.launch_ns), ""),
            ("  buckets copied into .grad", ms(wrapper.copy_out_ns), ""),
            ("  finalisation", ms(wrapper.finalise_ns), ""),
        ]
    explained = report.explained_ns
    if parts is not None and explained is not None:
        rows += [
            ("  exposed communication", ms(parts.transfer_ns + parts.waiting_ns), ""),
            ("explained by these", ms(explained), ""),
            ("not explained", ms(report.overhead_ns - explained), ""),
        ]
    on_device = wrapper is not None and explained is None
    return Table(
        "Parts of the overhead, ms per step",
        columns("", "ms", "95 % interval", words=("",)),
        tuple(rows),
        notes(
            "measured: (ratio - 1) × step without DDP; parts are from profiled steps, scaled to the length of "
            "unprofiled ones",
            "they are the host's time, which the device's work may hide, so they need not add up" if on_device else "",
        ),
    )


def _range(report: OverheadReport) -> str:
    low, high = report.ratio.low, report.ratio.high
    if low is None or high is None:
        return ""
    return (
        "" if report.ratio.is_vague else f"{ms((low - 1) * report.without_ns)} – {ms((high - 1) * report.without_ns)}"
    )
