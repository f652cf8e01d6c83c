"""Rules about single ranks: one for which all others wait."""

from __future__ import annotations

from collections.abc import Iterator

from ddpprof.findings.finding import Finding, Observed, hoped_for, ms
from ddpprof.measures.stragglers import Part


def straggler(o: Observed) -> Iterator[Finding]:
    """The slowest rank sets the pace. Without it the next one does, so that is all that can be gained."""
    if not o.stragglers:
        return
    slowest, others = o.stragglers[0], o.stragglers[1:]
    part = "" if slowest.part_late_ns >= _NEARLY_ALL * slowest.late_ns else f"{ms(slowest.part_late_ns)} of it "
    where = "" if slowest.part is None else f", {part}{_WHERE[slowest.part]}"
    since = "" if slowest.since_step is None else f" since step {slowest.since_step}"
    evidence = [f"it was the last in {slowest.num_last} of {slowest.num_steps} steps{since}"]
    gradients = o.late_gradients.get(slowest.rank, ())
    if gradients:
        after = gradients[0].previous_parameter
        evidence.append(
            f"the gradient of {gradients[0].parameter} comes {ms(gradients[0].jump_ns)} late"
            + (f", after that of {after}" if after else "")
        )
    if others:
        listed = ", ".join(str(other.rank) for other in others)
        evidence.append(f"also late, by less: rank{'s' if len(others) > 1 else ''} {listed}")
    late_ns = max(0, slowest.late_ns - (others[0].late_ns if others else 0))
    gain_ns, predicted = hoped_for(late_ns, o.predictions.without_straggler)
    yield Finding(
        "straggler",
        f"All ranks wait for rank {slowest.rank}: {ms(slowest.late_ns)} per step{where}",
        "; ".join(evidence),
        _ADVICE.get(slowest.part, _ADVICE[None]),
        gain_ns,
        predicted=predicted,
    )


_NEARLY_ALL = 0.9

_WHERE = {
    Part.DATA: "waiting for its data",
    Part.FORWARD: "in its forward",
    Part.BACKWARD: "in its backward",
    Part.OPTIMIZER: "in its optimizer",
    Part.OTHER: "between its steps",
}

_ADVICE: dict[Part | None, str] = {
    Part.DATA: "Look at what feeds this rank: its storage, its DataLoader workers, larger samples in its shard.",
    Part.OTHER: "Look for what only this rank does in the loop: logging, metrics, checkpoints, evaluation.",
    None: "Look at its device: clocks and temperature (nvidia-smi -q -d PERFORMANCE), other processes on it, its CPU "
    "cores; and whether its batches are larger.",
}
