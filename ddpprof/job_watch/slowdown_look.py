"""Since when, by how much and why do steps take longer?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ddpprof.job_watch.run_watch import Say
from ddpprof.model.pulse import Pulse
from ddpprof.model.slowdown import Slowdowns, StepSlowdown
from ddpprof.monitor.job_steps import common_steps
from ddpprof.monitor.pauses import pauses_in
from ddpprof.monitor.pulse_files import read_pulses
from ddpprof.monitor.slowdowns import SlowdownWatch, world_size_of
from ddpprof.monitor.verdict_files import write_slowdowns
from ddpprof.render.slowdown_words import slowdown_sentence

_MOST_SAID = 20
"""number of slow-downs of which the launcher speaks; all are in the report"""
_WORTH_SAYING = 0.10
"""growth of a step from which on the launcher speaks of it"""
_MUCH_WORSE = 0.5
"""growth beyond that of which it spoke from which on it speaks of it again"""
_LASTING_S = 20.0
"""seconds for which steps are slow before the launcher speaks of it"""


class SlowdownLook:
    """Says since when, by how much and why steps take longer, and keeps ``slowdowns.json``."""

    every_s = 2.0

    def __init__(self, say: Say) -> None:
        self._say = say
        self._directory: Path | None = None
        self._told: dict[int, float] = {}
        """slow-downs of which it has spoken, by their first step, with the growth that it told; 0 once they are over"""

    def at(self, directory: Path, _missed_s: float, is_over: bool) -> None:
        """Speak of what is new, and keep it; at the end, also keep what all pauses took."""
        if self._directory != directory:
            self._directory, self._watch = directory, SlowdownWatch()
            self._told = {}
        pulses = read_pulses(directory)
        before = self._watch.slowdowns
        self._watch.update(pulses)
        if is_over or self._watch.slowdowns != before:
            self._write(directory, pulses)
        self._tell(world_size_of(pulses))

    def _write(self, directory: Path, pulses: Mapping[int, Pulse]) -> None:
        steps = common_steps({rank: pulse.steps for rank, pulse in pulses.items()})
        pauses = () if steps is None else pauses_in(steps)
        with suppress(OSError):
            write_slowdowns(directory, Slowdowns(self._watch.slowdowns, pauses))

    def _tell(self, world_size: int) -> None:
        chains = _chains(self._watch.slowdowns)
        shown = {one.first_step for one in self._watch.slowdowns}
        for withdrawn in [step for step, growth in self._told.items() if growth and step not in shown]:
            self._told[withdrawn] = 0.0
            self._say(f"the steps from {withdrawn:,} on turned out to be within the normal range of this job")
        for chain in chains:
            last, step = chain[-1], next((one.first_step for one in chain if one.first_step in self._told), None)
            told = 0.0 if step is None else self._told[step]
            if step is None:
                large = [one for one in chain if one.growth >= _WORTH_SAYING]
                if large and _have_lasted(large) and len(self._told) < _MOST_SAID:
                    self._say(slowdown_sentence(large[-1], world_size))
                    self._told[large[0].first_step] = large[-1].growth if last.last_step is None else 0.0
            elif told and last.last_step is not None:
                self._told[step] = 0.0
                if chain is chains[-1]:
                    self._say(f"from step {last.last_step + 1:,} on, steps are as before")
            elif told and last.growth >= told + _MUCH_WORSE and _have_lasted([last]):
                self._say(slowdown_sentence(last, world_size))
                self._told[step] = last.growth


def _chains(slowdowns: Sequence[StepSlowdown]) -> list[list[StepSlowdown]]:
    """Return slow-downs that follow each other without a normal step in between, together."""
    chains: list[list[StepSlowdown]] = []
    for one in slowdowns:
        if chains and chains[-1][-1].last_step == one.first_step - 1:
            chains[-1].append(one)
        else:
            chains.append([one])
    return chains


def _have_lasted(slowdowns: Sequence[StepSlowdown]) -> bool:
    """Return whether slow-downs took longer than what other work on a machine does to a step now and then."""
    if any(one.began_ns is None for one in slowdowns):
        return True
    now_ns = time.time_ns()
    took_ns = sum((now_ns if one.ended_ns is None else one.ended_ns) - (one.began_ns or 0) for one in slowdowns)
    return took_ns >= _LASTING_S * 1e9
