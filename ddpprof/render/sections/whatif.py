"""Sections of the results of `ddpprof whatif` and `ddpprof netbench`."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from ddpprof.engine.finding import DEFAULT_CAP, equal_caps, since_torch
from ddpprof.engine.frameworks import ddp_argument
from ddpprof.layout import (
    ABSENT,
    Column,
    Line,
    Section,
    Table,
    clean,
    columns,
    count,
    gigabytes_per_s,
    in_ms,
    ms,
    percent,
    table_of,
    three_digits,
)
from ddpprof.model.backends import sends_unchanged
from ddpprof.model.json_files import NetBench
from ddpprof.report.whatif import PredictedSetting, WhatIf
from ddpprof.topics.collectives import is_disturbed, measure_link
from ddpprof.topics.link_limit import reached_by_netbench

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
        "1 GB is 10⁹ bytes; CPU: CPU time of one rank; pair: time of two concurrent collectives ÷ time of one "
        "(1: the second takes no additional time, 2: they run one after the other)",
    )
    reached = reached_by_netbench(bench)
    if reached is not None:
        yield Line(reached)
    if bench.beside:
        yield _beside(bench)
    if is_disturbed(speeds):
        yield Line(
            "For most sizes, the median time is more than twice the shortest time: other work uses the hosts or the "
            "network.",
            is_warning=True,
        )
    if bench.left_out:
        left_out = f"{bench.left_out[0]} bytes{' and more' if len(bench.left_out) > 1 else ''}"
        yield Line(f"Left out because {bench.sizes[-1].num_bytes} bytes took too long: {left_out}.", is_aside=True)


def _beside(bench: NetBench) -> Table:
    """Return a table with one row per size. Values are medians over rounds."""
    rows = []
    for one in bench.beside:
        taken_ns = round(median(one.taken_ns))
        lasts, takes = _us(round(median(one.lasted_ns))), _us(taken_ns)
        rows.append((str(one.num_bytes), lasts, takes, f"{taken_ns / one.num_bytes:.2f}"))
    note = (
        "measured while every rank multiplies matrices and several collectives run; takes: computation time lost on "
        "the most affected rank"
    )
    return Table(
        "During computation", columns("bytes", "each lasts µs", "takes µs", "takes ns per byte"), tuple(rows), note
    )


def _us(ns: int) -> str:
    return f"{ns / 1e3:.1f}" if ns < _NS_WITH_TENTHS else f"{ns / 1e3:.0f}"


_COLUMNS = ("step ms", "95% interval", "saves ms", "compute", "slowed", "exposed", "rest")

_DEFAULT = "; None: torch's default, 25 MiB after a first bucket of 1 MiB"
_HUNDRED_MS = 100e6


def whatif_sections(answer: WhatIf) -> Iterable[Section]:
    yield Line(" · ".join(filter(None, _head(answer))))
    yield Table(
        "Predicted step" + (f" with {clean(answer.world)}" if answer.world else ""),
        (Column("setting", is_number=False), *map(Column, _COLUMNS)),
        tuple(map(_row, answer.outcomes)),
        "saves: relative to the first row; compute: forward and backward pass without communication; slowed: "
        "compute time lost to communication; exposed: time spent waiting for buckets and copying them after the last "
        "gradient is ready; rest: everything else, negative if the replayed parts add up to more than the step"
        + (_DEFAULT if any(one.label == DEFAULT_CAP for one in answer.outcomes) else ""),
    )
    yield from _of_world(answer)
    yield from _best(answer)
    yield Line(_network(answer))
    replayed_ns = (1 + answer.replay_error) * answer.measured_step_ns
    yield Line(
        f"Replay of the recorded step: {in_ms(replayed_ns)}, measured {in_ms(answer.measured_step_ns)} ± "
        f"{in_ms(answer.measured_error_ns)}."
    )
    for text in dict.fromkeys(text for one in answer.outcomes for text in one.prediction.widened):
        yield Line(f"Intervals are wider: {clean(text)}.", is_warning=True)
    yield Line(f"Assumptions: {'; '.join(answer.assumes)}.", is_aside=True)


def _head(answer: WhatIf) -> Iterable[str]:
    job = answer.job
    yield clean(job.name)
    if job.num_averaging is not None:
        are_all = job.num_averaging == job.world_size
        yield count(job.num_averaging, "rank") if are_all else f"{job.num_averaging} of {job.world_size} ranks"
    yield clean(job.backend or "")
    yield f"from {count(answer.num_steps, 'recorded step')}"


def _row(outcome: PredictedSetting) -> tuple[str, ...]:
    one, parts = outcome.prediction, outcome.prediction.parts
    times = (parts.forward_ns + parts.backward_ns, parts.slowed_ns, parts.exposed_ns, parts.rest_ns)
    return (
        clean(outcome.label),
        ms(one.step_ns),
        _span(one.low_ns, one.high_ns),
        ms(outcome.gain.gain_ns),
        *map(ms, times),
    )


def _of_world(answer: WhatIf) -> Iterable[Section]:
    if answer.without_world_ns is None:
        return
    step_ns, before = answer.outcomes[0].prediction.step_ns, in_ms(answer.without_world_ns)
    said = f"With {clean(answer.world)} and the recorded buckets a step takes {in_ms(step_ns)}"
    if answer.work_ratio != 1:
        more = f"{three_digits(answer.work_ratio)} times as many samples per rank"
        yield Line(
            f"{said} for {more}: {in_ms(step_ns / answer.work_ratio)} for the current number of samples, instead of "
            f"{before}.{_of_which_ddp(answer, step_ns)}"
        )
    elif in_ms(step_ns) != before:
        yield Line(f"{said} instead of {before}.")


def _of_which_ddp(answer: WhatIf, step_ns: float) -> str:
    """Return sentences that say how much of the time saved by larger batches is communication time."""
    was_ns, ratio = answer.without_world_comm_ns, answer.work_ratio
    if was_ns is None or answer.without_world_ns is None or ratio <= 1:
        return ""
    saved_ns = answer.without_world_ns - step_ns / ratio
    comm_ns = was_ns - answer.outcomes[0].prediction.parts.communication_ns / ratio
    return (
        f" Of the {in_ms(saved_ns)} saved, {in_ms(comm_ns)} is communication. The rest is saved because the "
        f"optimizer steps less often. Each optimizer step then uses a batch {three_digits(ratio)} times as large."
    )


def _best(answer: WhatIf) -> Iterable[Section]:
    best = answer.best
    if best is None:
        return
    if not best.label:
        yield Line("Best buckets found: the recorded buckets.")
        return
    caps = f"{best.label}{equal_caps(answer.equal_mb)}"
    found = f"Best buckets found: {caps}: {in_ms(best.prediction.step_ns)}, {_saving(best)}"
    if best.gain.low_ns <= 0:
        yield Line(f"{found}. This is within the prediction's error: measure it with ddpprof sweep.")
    else:
        call = f"{ddp_argument(answer.job.framework, best.label)}{since_torch(best.label)}"
        where = "In the script, for every module" if len(answer.job.modules) > 1 else "In the script"
        yield Line(f"{found}. {where}: {call}")


def _saving(best: PredictedSetting) -> str:
    gain = best.gain
    saves = "saves" if gain.low_ns > 0 else "may save"
    return f"which {saves} {in_ms(gain.gain_ns)} ({_span(gain.low_ns, gain.high_ns)}) per step"


def _network(answer: WhatIf) -> str:
    network = answer.network
    source = "measured by ddpprof netbench" if network.is_benched else "estimated from the run's buckets"
    hooks = {one.comm_hook for one in answer.job.modules if not sends_unchanged(one.comm_hook)}
    busbw = f" (busbw {gigabytes_per_s(network.bus_bytes_per_s)} GB/s)"
    if hooks and not network.is_benched:
        source, busbw = f"{source}, with sizes before {clean(', '.join(sorted(map(str, hooks))))}", ""
    return (
        f"Network among {count(network.world_size, 'rank')}, {source}: {network.latency_ns / 1e3:.0f} µs + bytes at "
        f"{gigabytes_per_s(1e9 / network.ns_per_byte)} GB/s{busbw}, fit error "
        f"{percent(network.relative_error)} over {count(network.num_sizes, 'message size')} of "
        f"{three_digits(network.least_bytes / 1e6)} to {three_digits(network.most_bytes / 1e6)} MB"
        + (
            f"; each byte takes {network.taken_ns_per_byte:.2g} ns of computation time."
            if network.taken_ns_per_byte
            else "."
        )
    )


def _span(low_ns: float, high_ns: float) -> str:
    """Format a range in ms with few digits, because predictions are not more precise."""
    digits = 0 if high_ns >= _HUNDRED_MS else 1 if high_ns >= _HUNDRED_MS / 10 else 2
    return f"{low_ns / 1e6:.{digits}f}–{high_ns / 1e6:.{digits}f}"
