"""Predictions of the step under other settings, in words."""

from __future__ import annotations

from collections.abc import Iterable

from ddpprof.engine.frameworks import ddp_argument
from ddpprof.engine.predictions import DEFAULT_CAP, equal_caps, since_torch
from ddpprof.layout import Column, Line, Section, Table, clean, count, gigabytes_per_s, ms, percent, three_digits
from ddpprof.model.backends import sends_unchanged
from ddpprof.report.whatif import PredictedSetting, WhatIf

_COLUMNS = ("step ms", "95% interval", "saves ms", "compute", "slowed", "exposed", "rest")

_DEFAULT = "; None: torch's default, 25 MiB after a first bucket of 1 MiB"
_HUNDRED_MS = 100e6


def whatif_sections(answer: WhatIf) -> Iterable[Section]:
    yield Line(" · ".join(filter(None, _head(answer))))
    yield Table(
        "Predicted step" + (f" with {clean(answer.world)}" if answer.world else ""),
        (Column("setting", is_number=False), *map(Column, _COLUMNS)),
        tuple(map(_row, answer.outcomes)),
        "saves: relative to the first line; compute: forward and backward pass without communication; slowed: "
        "compute time lost to communication; exposed: time after the last gradient spent waiting for buckets and "
        "copying them; rest: everything else, negative if the replayed parts add up to more than the step"
        + (_DEFAULT if any(one.label == DEFAULT_CAP for one in answer.outcomes) else ""),
    )
    yield from _of_world(answer)
    yield from _best(answer)
    yield Line(_network(answer))
    replayed_ns = (1 + answer.replay_error) * answer.measured_step_ns
    yield Line(
        f"Replay of the recorded step: {ms(replayed_ns)} ms, measured {ms(answer.measured_step_ns)} ± "
        f"{ms(answer.measured_error_ns)} ms."
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
    step_ns, before = answer.outcomes[0].prediction.step_ns, ms(answer.without_world_ns)
    said = f"With {clean(answer.world)} and the recorded buckets a step takes {ms(step_ns)} ms"
    if answer.work_ratio != 1:
        more = f"{three_digits(answer.work_ratio)} times as many samples per rank"
        yield Line(
            f"{said} for {more}: the current number of samples takes {ms(step_ns / answer.work_ratio)} ms instead of "
            f"{before}.{_of_which_ddp(answer, step_ns)}"
        )
    elif ms(step_ns) != before:
        yield Line(f"{said} instead of {before}.")


def _of_which_ddp(answer: WhatIf, step_ns: float) -> str:
    """Return a sentence on the share of communication in the saving of larger batches, which change the training."""
    was_ns, ratio = answer.without_world_comm_ns, answer.work_ratio
    if was_ns is None or answer.without_world_ns is None or ratio <= 1:
        return ""
    saved_ns = answer.without_world_ns - step_ns / ratio
    comm_ns = was_ns - answer.outcomes[0].prediction.parts.communication_ns / ratio
    return (
        f" Of the {ms(saved_ns)} ms saved, {ms(comm_ns)} ms is communication; the rest is saved because the "
        f"optimizer steps less often. Each optimizer step then uses a batch {three_digits(ratio)} times as large."
    )


def _best(answer: WhatIf) -> Iterable[Section]:
    best = answer.best
    if best is None:
        return
    if not best.label:
        yield Line("Best buckets found: the recorded ones.")
        return
    caps = f"{best.label}{equal_caps(answer.equal_mb)}"
    found = f"Best buckets found: {caps}: {ms(best.prediction.step_ns)} ms, {_saving(best)}"
    if best.gain.low_ns <= 0:
        yield Line(f"{found}. This is within the prediction's error: measure it with ddpprof sweep.")
    else:
        call = f"{ddp_argument(answer.job.framework, best.label)}{since_torch(best.label)}"
        where = "In the script, for every module" if len(answer.job.modules) > 1 else "In the script"
        yield Line(f"{found}. {where}: {call}")


def _saving(best: PredictedSetting) -> str:
    gain = best.gain
    saves = "saves" if gain.low_ns > 0 else "may save"
    return f"which {saves} {ms(gain.gain_ns)} ms ({_span(gain.low_ns, gain.high_ns)}) per step"


def _network(answer: WhatIf) -> str:
    network = answer.network
    source = "measured by ddpprof netbench" if network.is_benched else "estimated from the run's buckets"
    hooks = {one.comm_hook for one in answer.job.modules if not sends_unchanged(one.comm_hook)}
    if hooks and not network.is_benched:
        source = f"{source}, with sizes before {clean(', '.join(sorted(map(str, hooks))))}"
    rate, busbw = gigabytes_per_s(1e9 / network.ns_per_byte), gigabytes_per_s(network.bus_bytes_per_s)
    return (
        f"Network among {count(network.world_size, 'rank')}, {source}: {network.latency_ns / 1e3:.0f} µs + bytes at "
        f"{rate} GB/s (busbw {busbw} GB/s), fit error "
        f"{percent(network.relative_error)} over {count(network.num_sizes, 'message size')} of "
        f"{three_digits(network.least_bytes / 1e6)} to {three_digits(network.most_bytes / 1e6)} MB"
        + (
            f"; each byte costs {network.taken_ns_per_byte:.2g} ns of computation."
            if network.taken_ns_per_byte
            else "."
        )
    )


def _span(low_ns: float, high_ns: float) -> str:
    """Format a range; three digits would suggest more precision than there is."""
    digits = 0 if high_ns >= _HUNDRED_MS else 1 if high_ns >= _HUNDRED_MS / 10 else 2
    return f"{low_ns / 1e6:.{digits}f} – {high_ns / 1e6:.{digits}f}"
