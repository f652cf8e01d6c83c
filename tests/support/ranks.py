"""Made-up collectives of several ranks: by hand, or many of them with known clocks and known lateness."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tables import ints

from ddpprof.model import NO_STEP, UNKNOWN, CollectiveKind, Collectives, Phase, ProcessGroup, Step, Trace
from ddpprof.topics.collective_matching import RankCollectives
from ddpprof.topics.ranks.own_time import StepProgress

WORLD = ProcessGroup("0")


def call(
    start: int,
    end: int,
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE,
    *,
    step: int = 0,
    size: int = UNKNOWN,
    sequence: int = UNKNOWN,
    group: int = UNKNOWN,
    launched: int | None = None,
    phase: Phase = Phase.BACKWARD,
) -> dict[str, int]:
    """Make one row, which by default is launched where it starts."""
    return {
        "start": start, "end": end, "kind": kind, "step": step, "size": size, "sequence": sequence, "group": group,
        "launched": start if launched is None else launched, "phase": phase,
    }  # fmt: skip


def calls(*rows: dict[str, int]) -> Collectives:
    ordered = sorted(rows, key=lambda row: row["start"])
    zeros = [0] * len(rows)

    def column(name: str) -> list[int]:
        return [row[name] for row in ordered]

    return Collectives(
        start_ns=ints(column("start")),
        end_ns=ints(column("end")),
        name=ints(zeros, np.int32),
        phase=ints(column("phase"), np.int8),
        step=ints(column("step"), np.int32),
        lane=ints(zeros),
        kind=ints(column("kind"), np.int8),
        launched_ns=ints(column("launched")),
        num_bytes=ints(column("size")),
        group=ints(column("group"), np.int32),
        sequence=ints(column("sequence")),
        device=ints([UNKNOWN] * len(rows), np.int32),
    )


def rank(
    number: int,
    *rows: dict[str, int],
    steps: Sequence[int] = (10, 11, 12),
    groups: Sequence[ProcessGroup] = (),
    host: str | None = "node",
    epoch: int | None = 0,
) -> RankCollectives:
    named = tuple(Step(step, index * 1000, (index + 1) * 1000) for index, step in enumerate(steps))
    return RankCollectives(number, host, epoch, named, tuple(groups), calls(*rows))


def job(
    num_ranks: int,
    num_collectives: int,
    *,
    offsets: Sequence[int] = (),
    drift_ppm: Mapping[int, float] | None = None,
    noise_ns: int = 0,
    late: Callable[[int, int], int] = lambda _rank, _collective: 0,
    period_ns: int = 10_000_000,
    transfer_ns: int = 1_000_000,
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE,
    hosts: Sequence[str] = (),
    seed: int = 0,
) -> list[RankCollectives]:
    """Make all-reduces over all ranks, one per step, that end together a transfer after the last rank's start.

    `offsets`: each rank's clock at time 0. `late`: lateness of each rank's start. The noise is a delay of ends, 0 or
    more.
    """
    random = np.random.default_rng(seed)
    made = []
    begin = np.arange(1, num_collectives + 1) * period_ns
    lateness = np.array([[late(r, c) for r in range(num_ranks)] for c in range(num_collectives)]).reshape(-1, num_ranks)
    over = begin + lateness.max(axis=1, initial=0) + transfer_ns
    for number in range(num_ranks):
        ends = over + np.round(random.exponential(noise_ns, num_collectives)).astype(np.int64)
        offset, drift = (offsets or [0] * num_ranks)[number], (drift_ppm or {}).get(number, 0.0)

        def shown(times: Any, offset: int = offset, drift: float = drift) -> Any:
            return times + offset + np.round(times * drift * 1e-6).astype(np.int64)

        rows = [
            call(int(start), int(end), kind, step=index, size=1 << 20, group=0)
            for index, (start, end) in enumerate(
                zip(shown(begin + lateness[:, number]), shown(ends), strict=True),
            )
        ]
        one = rank(number, *rows, steps=range(num_collectives), groups=[ProcessGroup("0", num_ranks)])
        made.append(replace(one, host=hosts[number] if hosts else f"node{number}"))
    return made


def without(one: RankCollectives, *rows: int) -> RankCollectives:
    """Return the same rank without those rows."""
    kept = np.setdiff1d(np.arange(len(one.collectives)), rows)
    return replace(one, collectives=_take(one.collectives, kept))


def shifted(one: RankCollectives, by_ns: int) -> RankCollectives:
    """Return the same rank with its clock put forward."""
    comm = one.collectives
    return replace(
        one,
        collectives=replace(
            comm, start_ns=comm.start_ns + by_ns, end_ns=comm.end_ns + by_ns, launched_ns=comm.launched_ns + by_ns
        ),
    )


def shifted_trace(trace: Trace, by_ns: int) -> Trace:
    """Return the same trace by a clock that was put forward."""

    def moved(table: Any) -> Any:
        times = ("start_ns", "end_ns", "launched_ns")
        columns = {name: getattr(table, name) for name in times if name in table.__dataclass_fields__}
        return replace(
            table, **{name: np.where(column == UNKNOWN, UNKNOWN, column + by_ns) for name, column in columns.items()}
        )

    return replace(
        trace,
        steps=tuple(replace(s, start_ns=s.start_ns + by_ns, end_ns=s.end_ns + by_ns) for s in trace.steps),
        compute=moved(trace.compute),
        copies=moved(trace.copies),
        collectives=moved(trace.collectives),
        host_spans=moved(trace.host_spans),
    )


def _take(comm: Collectives, rows: Any) -> Collectives:
    return Collectives(*(getattr(comm, name)[rows] for name in Collectives.__dataclass_fields__))


def own(step: int, *, traced: bool = True, step_ns: int = 1000, arrival: int = 0, **parts: int) -> StepProgress:
    """Make a rank's own time in a step by parts; parts that are not named are 0."""
    given = dict.fromkeys(("data_ns", "forward_ns", "backward_ns", "optimizer_ns", "other_ns"), 0)
    given |= {f"{part}_ns": length for part, length in parts.items()}
    return StepProgress(step, traced, step_ns, arrival, **given)


__all__ = ["NO_STEP", "WORLD", "call", "calls", "job", "own", "rank", "shifted", "shifted_trace", "without"]
