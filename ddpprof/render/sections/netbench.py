"""Speed of collectives by size, like the table of nccl-tests; times in µs as there."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from ddpprof.layout import ABSENT, Line, Section, Table, clean, columns, count, gigabytes_per_s, table_of
from ddpprof.model.netbench import NetBench
from ddpprof.topics.collectives.table import is_disturbed, measure_link

_NS_WITH_TENTHS = 1_000_000


def netbench_sections(bench: NetBench) -> Iterable[Section]:
    ranks, hosts = count(bench.world_size, "rank"), count(len(set(bench.hosts)), "host")
    name = bench.collective.replace("_", "-")
    setting = (name, bench.dtype, ranks, hosts, bench.backend, bench.device, f"torch {bench.torch}")
    yield Line(" · ".join(clean(part) for part in setting))
    speeds = measure_link(bench)
    yield table_of(
        "",
        speeds,
        {
            "bytes": lambda speed: str(speed.num_bytes),
            "times": lambda speed: str(speed.num_iterations),
            "median µs": lambda speed: _us(speed.median_ns),
            "min µs": lambda speed: _us(speed.least_ns),
            "max µs": lambda speed: _us(speed.most_ns),
            "algbw GB/s": lambda speed: gigabytes_per_s(speed.algbw_bytes_per_s),
            "busbw GB/s": lambda speed: gigabytes_per_s(speed.busbw_bytes_per_s),
            "CPU µs": lambda speed: _us(speed.cpu_ns),
            "pair": lambda speed: ABSENT if speed.two_at_once is None else f"{speed.two_at_once:.2f}",
        },
        note="time: on the slowest rank, after a barrier; busbw: link bandwidth as defined by nccl-tests; "
        "1 GB is 10⁹ bytes; CPU: CPU time of one rank; pair: time of two concurrent collectives ÷ time of one, "
        "undisturbed (1: the second is free, 2: they run in turn)",
    )
    if bench.beside:
        yield _beside(bench)
    if is_disturbed(speeds):
        yield Line(
            "For most sizes, most runs took more than twice the shortest time: other work disturbs the hosts or the "
            "network.",
            is_warning=True,
        )
    if bench.left_out:
        left_out = f"{bench.left_out[0]} bytes{' and more' if len(bench.left_out) > 1 else ''}"
        yield Line(f"Left out because {bench.sizes[-1].num_bytes} bytes took too long: {left_out}.", is_aside=True)


def _beside(bench: NetBench) -> Table:
    """Return one row per size; values are medians over rounds."""
    rows = []
    for one in bench.beside:
        taken_ns = round(median(one.taken_ns))
        lasts, takes = _us(round(median(one.lasted_ns))), _us(taken_ns)
        rows.append((str(one.num_bytes), lasts, takes, f"{taken_ns / one.num_bytes:.2f}"))
    note = (
        "measured while every rank multiplies matrices and several collectives run; takes: computing time lost on "
        "the rank that loses the most"
    )
    return Table(
        "During computation", columns("bytes", "each lasts µs", "takes µs", "takes ns per byte"), tuple(rows), note
    )


def _us(ns: int) -> str:
    return f"{ns / 1e3:.1f}" if ns < _NS_WITH_TENTHS else f"{ns / 1e3:.0f}"
