"""Pulses built by hand: steps of a rank from a few numbers in ms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from ddpprof.model import UNKNOWN
from ddpprof.model import pulse_layout as layout
from ddpprof.model.pulse import Pulse, PulseIdentity, PulseSamples, PulseSteps, PulseSummaries, summary_of
from ddpprof.model.tables import rows_of

MS = 1_000_000
BEGIN_NS = 1_700_000_000 * 10**9
USUAL_MS = {"data": 5.0, "forward": 20.0, "backward": 30.0, "optimizer": 4.0, "other": 1.0, "wait": 10.0}
"""a step of 60 ms; backward contains the wait"""


def steps_of(rows: Sequence[dict[str, float]], first: int = 0) -> PulseSteps:
    """Return steps; each row says what differs from `USUAL_MS`, and may have `flags`, `save`, `evaluation` and more."""
    columns: dict[str, list[int]] = {field.name: [] for field in fields(PulseSteps)}
    at_ns = BEGIN_NS
    for number, row in enumerate(rows, first):
        ms = {**USUAL_MS, "first_gradient": 8.0, "cpu": 50.0, "save": 0.0, "evaluation": 0.0, **row}
        parts = ("data", "forward", "backward", "optimizer", "save", "evaluation", "other")
        length = round(sum(ms[part] for part in parts) * MS)
        known = {
            "number": number,
            "start_ns": at_ns,
            "length_ns": length,
            "flags": int(row.get("flags", 0)),
            "wait_ns": UNKNOWN if ms["wait"] < 0 else round(ms["wait"] * MS),
        }
        for name, values in columns.items():
            values.append(known[name] if name in known else round(ms[name.removesuffix("_ns")] * MS))
        at_ns += length
    return PulseSteps(**{name: np.array(values, np.int64) for name, values in columns.items()})


def with_noise(rows: Sequence[dict[str, float]], seed: int = 0) -> list[dict[str, float]]:
    """Return the rows with up to 1 ms more in the script's own code, the same for all ranks."""
    draw = np.random.default_rng(seed)
    return [{**row, "other": row.get("other", 1.0) + draw.uniform(0, 1)} for row in rows]


def samples_of(steps: PulseSteps, **per_step: Sequence[float]) -> PulseSamples:
    """Return a sample after every 20 steps; `per_step`: what a sum grows by in each step."""
    rows = np.arange(0, len(steps), 20)
    columns = {field.name: np.full(len(rows), UNKNOWN) for field in fields(PulseSamples)}
    columns["at_ns"] = steps.start_ns[rows]
    for name, growth in per_step.items():
        columns[name] = np.concatenate(([0], np.cumsum(growth)))[rows].astype(np.int64)
    return PulseSamples(**columns)


def no_samples() -> PulseSamples:
    return PulseSamples(*(np.empty(0, np.int64) for _ in fields(PulseSamples)))


def summaries_of(steps: PulseSteps, per_summary: int = 100) -> PulseSummaries:
    """Return summaries of whole hundreds of steps."""
    rows = [
        summary_of(rows_of(steps, slice(begin, begin + per_summary)), 0)
        for begin in range(0, len(steps) - per_summary + 1, per_summary)
    ]
    table = np.array(rows, np.int64).reshape(-1, len(fields(PulseSummaries)))
    return PulseSummaries(*table.T)


def pulse_of(
    steps: PulseSteps, rank: int = 0, samples: PulseSamples | None = None, summaries: PulseSummaries | None = None
) -> Pulse:
    return Pulse(
        identity=PulseIdentity("run", rank, 2, "host", "", 1, BEGIN_NS, "", ""),
        state=layout.empty_state(),
        stack=None,
        steps=steps,
        summaries=summaries_of(rows_of(steps, slice(0, 0))) if summaries is None else summaries,
        samples=no_samples() if samples is None else samples,
    )
