"""Speed of collectives by size, like the table of nccl-tests; times in µs as there."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from ddpprof.layout import ABSENT, Column, Line, Section, Table, clean, count
from ddpprof.measures.collectives.link_speed import LinkSpeed, is_disturbed, measure_link
from ddpprof.model.netbench import NetBench

_COLUMNS = ("bytes", "times", "median µs", "min µs", "max µs", "algbw GB/s", "busbw GB/s", "CPU µs", "pair")

_NS_WITH_TENTHS = 1_000_000


def netbench_sections(bench: NetBench) -> Iterable[Section]:
    ranks, hosts = count(bench.world_size, "rank"), count(len(set(bench.hosts)), "host")
    name = bench.collective.replace("_", "-")
    setting = (name, bench.dtype, ranks, hosts, bench.backend, bench.device, f"torch {bench.torch}")
    yield Line(" · ".join(clean(part) for part in setting))
    speeds = measure_link(bench)
    yield Table(
        "",
        tuple(Column(column) for column in _COLUMNS),
        tuple(map(_row, speeds)),
        "time: on the slowest rank, after a barrier; busbw: of the link, as defined by nccl-tests; 1 GB is 10⁹ bytes; "
        "CPU: processor time of one rank; pair: time of two at once ÷ time of one, undisturbed (1: the second is "
        "free, 2: they take turns)",
    )
    if bench.beside:
        yield _beside(bench)
    if is_disturbed(speeds):
        yield Line(
            "For most sizes, most runs took over twice the shortest time: other work disturbs the hosts or the "
            "network.",
            is_warning=True,
        )
    if bench.left_out:
        left_out = f"{bench.left_out[0]} bytes{' and more' if len(bench.left_out) > 1 else ''}"
        yield Line(f"Left out because {bench.sizes[-1].num_bytes} bytes took so long: {left_out}.", is_aside=True)


def _beside(bench: NetBench) -> Table:
    """Return one row per size; values are medians over rounds."""
    columns = ("bytes", "each lasts µs", "takes µs", "takes ns per byte")
    rows = []
    for one in bench.beside:
        taken_ns = round(median(one.taken_ns))
        lasts, takes = _us(round(median(one.lasted_ns))), _us(taken_ns)
        rows.append((str(one.num_bytes), lasts, takes, f"{taken_ns / one.num_bytes:.2f}"))
    note = (
        "measured while every rank multiplies matrices and several collectives run; takes: computing time lost on the "
        "rank that loses most"
    )
    return Table("During computation", tuple(map(Column, columns)), tuple(rows), note)


def _row(speed: LinkSpeed) -> tuple[str, ...]:
    return (
        str(speed.num_bytes),
        str(speed.num_iterations),
        *(_us(ns) for ns in (speed.median_ns, speed.least_ns, speed.most_ns)),
        *(_gigabytes(rate) for rate in (speed.algbw_bytes_per_s, speed.busbw_bytes_per_s)),
        _us(speed.cpu_ns),
        ABSENT if speed.two_at_once is None else f"{speed.two_at_once:.2f}",
    )


def _us(ns: int) -> str:
    return f"{ns / 1e3:.1f}" if ns < _NS_WITH_TENTHS else f"{ns / 1e3:.0f}"


def _gigabytes(bytes_per_s: float | None) -> str:
    return ABSENT if bytes_per_s is None else f"{bytes_per_s / 1e9:.3g}"
