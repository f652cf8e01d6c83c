"""Is a loss NaN or infinite, and on which rank did it begin?"""

from __future__ import annotations

from pathlib import Path

from ddpprof.job_watch.run_watch import Say
from ddpprof.monitor.pulse_files import read_heads
from ddpprof.monitor.whole_run import nonfinite_steps
from ddpprof.topics.losses import nonfinite_finding


class LossLook:
    """Says once that a loss is NaN or infinite, and on which rank it began."""

    every_s = 2.0

    def __init__(self, say: Say) -> None:
        self._say = say
        self._told_of: Path | None = None
        """the attempt of which it has spoken"""
        self._waits_in: Path | None = None
        """the attempt in which it gave the ranks time to tell their learning rates"""

    def at(self, directory: Path, _missed_s: float, is_over: bool) -> None:
        """Speak of it once the other ranks have had a step in which to follow, or the job has ended."""
        if self._told_of == directory:
            return
        heads = list(read_heads(directory, 0))
        ranks = {one.identity.rank: nonfinite_steps(one.state) for one in heads}
        first = min((one.first_step for one in ranks.values() if one is not None), default=None)
        if first is None or not (is_over or all(one.state.step > first + 1 for one in heads)):
            return
        if any(one.facts is None for one in heads) and not is_over and self._waits_in != directory:
            self._waits_in = directory
            return
        rates = {one.identity.rank: one.facts.learning_rate for one in heads if one.facts is not None}
        found = nonfinite_finding(ranks, is_over=is_over, learning_rates=rates)
        if found is not None:
            self._told_of = directory
            self._say(f"{found.title}: {found.evidence}. {found.advice}")
