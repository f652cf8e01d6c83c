"""Overview of the current state of a job, from the pulses of its ranks.

DDP synchronizes the ranks, so the steps of the lowest rank represent the steps of the job. A rank's own time is its
step time without the time spent waiting for other ranks, as the median of its most recent steps. Ranks wait for a rank
that has begun fewer backward passes or, if there is none, for the rank with the largest own time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median_high

import numpy as np

from ddpprof import own_files, rundir
from ddpprof.errors import DdpprofError, NotARun
from ddpprof.model.hang import StartingJob
from ddpprof.model.overdue import place_of_user, read_stack
from ddpprof.model.pulse import Activity, Ended, Pulse, PulseSteps, PulseSummaries, activity_word
from ddpprof.model.tables import UNKNOWN, Int64Column, rows_of
from ddpprof.model.whole_run import NonfiniteSteps
from ddpprof.monitor.processes import start_line, starting_job
from ddpprof.monitor.pulse_files import PulseHead, is_gone, is_silent, last_sign_ns, read_head, read_pulse
from ddpprof.monitor.whole_run import history, nonfinite_steps, usual_length_ns
from ddpprof.words import clauses

_LATE_SIGN_NS = 2 * 10**9
"""if the last heartbeat is older than this, ddpprof checks whether the process still exists; there is a heartbeat every
second
"""


class Standing(StrEnum):
    """The state of a rank."""

    STARTING = "starting"
    """the rank has finished no step and has not begun a backward pass"""
    TRAINING = "training"
    WAITS = "waits"
    """the rank waits for other ranks: it has been in the backward pass for longer than its own computation usually
    takes
    """
    NO_SIGN = "no sign"
    """the rank sends no heartbeats: its process is stopped, or a thread holds Python's GIL, and ddpprof's thread cannot
    run
    """
    GONE = "gone"
    """the process is dead, and it has not recorded how it ended"""
    ENDED = "ended"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    UNWATCHED = "unwatched"
    """ddpprof stopped recording on this rank while training continued"""

    @property
    def is_over(self) -> bool:
        """Whether no further reports of the rank are expected."""
        return self not in (Standing.STARTING, Standing.TRAINING, Standing.WAITS, Standing.NO_SIGN)

    @property
    def is_trouble(self) -> bool:
        """Whether the rank cannot continue, and other ranks have to wait for it."""
        return self in (Standing.NO_SIGN, Standing.GONE, Standing.FAILED)


_ENDS: Mapping[int, Standing] = {
    Ended.FINISHED: Standing.ENDED,
    Ended.FAILED: Standing.FAILED,
    Ended.INTERRUPTED: Standing.INTERRUPTED,
    Ended.UNWATCHED: Standing.UNWATCHED,
}


@dataclass(frozen=True, slots=True)
class RankNow:
    """Current state of a rank. Durations are medians over its most recent steps, and ages are measured until now."""

    rank: int
    host: str
    step: int
    activity: str
    activity_age_ns: int
    step_ns: int | None
    own_ns: int | None
    """own time; ``None`` if the time spent waiting for other ranks is unknown, for example on accelerators"""
    data_ns: int | None
    wait_ns: int | None
    """time spent waiting for other ranks; ``None`` if unknown, for example on accelerators"""
    memory_bytes: int | None
    standing: Standing
    sign_age_ns: int
    num_passes: int
    stack: str | None
    nonfinite: NonfiniteSteps | None = None
    """steps with a NaN or infinite loss; ``None`` if there are none"""


def rank_now(rank: int, head: PulseHead, now_ns: int) -> RankNow:
    state, usual = head.state, _usual(head.steps)
    known = _with_waiting(usual)
    standing = _standing(head, usual, now_ns)
    until_ns = state.last_ns if standing.is_over else now_ns
    return RankNow(
        rank=rank,
        host=head.identity.host,
        step=state.step,
        activity=activity_word(state.activity) or "unknown",
        activity_age_ns=max(until_ns - state.since_ns, 0),
        step_ns=_median(usual.length_ns),
        own_ns=_median(known.own_ns),
        data_ns=_median(usual.data_ns),
        wait_ns=_median(known.wait_ns),
        memory_bytes=head.memory_bytes,
        standing=standing,
        sign_age_ns=max(now_ns - last_sign_ns(head.identity, state), 0),
        num_passes=state.num_passes,
        stack=head.stack,
        nonfinite=nonfinite_steps(state),
    )


def _usual(steps: PulseSteps) -> PulseSteps:
    """Return the steps without a flag, or all steps if every step has a flag."""
    usual = rows_of(steps, steps.flags == 0)
    return usual if len(usual) else steps


def _with_waiting(steps: PulseSteps) -> PulseSteps:
    """Return the steps with a known waiting time.

    For models with many gradients, the waiting time of some steps is unknown.
    """
    return rows_of(steps, steps.wait_ns != UNKNOWN)


def _median(values: Int64Column) -> int | None:
    return int(np.median(values)) if len(values) else None


def _standing(head: PulseHead, usual: PulseSteps, now_ns: int) -> Standing:
    if head.state.ended in _ENDS:
        return _ENDS[head.state.ended]
    if now_ns - last_sign_ns(head.identity, head.state) > _LATE_SIGN_NS and is_gone(head.identity):
        return Standing.GONE
    if is_silent(head.identity, head.state, now_ns):
        return Standing.NO_SIGN
    if head.state.step == head.state.num_passes == 0:
        return Standing.STARTING
    return Standing.WAITS if _waits(head, usual, now_ns) else Standing.TRAINING


def _waits(head: PulseHead, usual: PulseSteps, now_ns: int) -> bool:
    """Return True if the rank has been in the backward pass for longer than its usual computation."""
    known = _with_waiting(usual)
    if head.state.activity != Activity.BACKWARD or not len(known):
        return False
    return now_ns - head.state.since_ns > float(np.median(known.backward_ns - known.wait_ns))


_STUCK_NS = 10**9
"""if a rank makes no progress for this time because another rank is behind, it is reported as waiting for that rank"""
_WORTH = 0.1
"""the slowest rank is named if its own time exceeds that of the other ranks by at least this share of a step"""
_MOST_NAMED = 3


def waiting_lines(ranks: Sequence[RankNow]) -> tuple[str, ...]:
    """Return sentences that name the ranks for which other ranks wait."""
    return (*_behind(ranks), *([] if any(one.standing.is_trouble for one in ranks) else _slowest(ranks)))


def _behind(ranks: Sequence[RankNow]) -> list[str]:
    """Return a sentence that names the ranks that have begun fewer backward passes than the waiting ranks."""
    ahead = max(one.num_passes for one in ranks)
    late = [one for one in ranks if one.num_passes < ahead]
    waiting = [one for one in ranks if one.num_passes == ahead and _stands(one)]
    if not late or not waiting:
        return []
    since_ns = min(one.activity_age_ns for one in waiting)
    named = clauses([_where(one, ahead) for one in late], _MOST_NAMED)
    who = "1 rank has" if len(waiting) == 1 else f"{len(waiting)} ranks have"
    return [f"{who} waited {since_ns / 1e9:.0f} s for {named}"]


def _stands(one: RankNow) -> bool:
    return one.activity == "backward" and one.activity_age_ns > max(_STUCK_NS, 2 * (one.step_ns or 0))


def _where(one: RankNow, ahead: int) -> str:
    passes = ahead - one.num_passes
    behind = "1 backward pass" if passes == 1 else f"{passes} backward passes"
    at = f"in step {one.step}, {one.activity} for {one.activity_age_ns / 1e9:.0f} s"
    place = place_of_user(read_stack(one.stack))
    at += f", at {place}" if place is not None else ""
    state = "" if one.standing is Standing.TRAINING else f", {one.standing}"
    return f"rank {one.rank}, which is {behind} behind ({at}{state})"


def _slowest(ranks: Sequence[RankNow]) -> list[str]:
    """Return a sentence that names the rank with the largest own time, if the other ranks wait for it."""
    known = [(one.own_ns, one) for one in ranks if one.own_ns is not None and one.wait_ns is not None]
    if len(known) < 2:
        return []
    own_ns, slowest = max(known, key=lambda pair: pair[0])
    usual_ns = median_high(own for own, one in known if one is not slowest)
    waiting_ns = median_high(one.wait_ns or 0 for _, one in known if one is not slowest)
    beyond_ns = own_ns - usual_ns
    they_wait_longer_ns = waiting_ns - (slowest.wait_ns or 0)
    if beyond_ns < _WORTH * (slowest.step_ns or 0) or they_wait_longer_ns < beyond_ns / 2:
        return []
    take, wait = ("the other rank takes", "waits") if len(known) == 2 else ("the other ranks take", "wait")
    times = f"{own_ns / 1e6:.1f} ms of own time per step; {take} {usual_ns / 1e6:.1f} ms"
    return [f"rank {slowest.rank} is the slowest: {times}, and {wait} {waiting_ns / 1e6:.1f} ms in each step"]


WINDOW_NS = 300 * 10**9
"""period over which percentiles are computed, and for which step times are drawn"""
_RATE_NS = 60 * 10**9
_STEPS_OF_A_RANK = 50
_NUM_PIECES = 60


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Step times of a rank over the last few minutes. The rank represents all ranks, because DDP synchronizes them."""

    rank: int
    num_steps: int
    span_ns: int
    """time from the first of the steps to now or, if training has ended, to the end of training"""
    median_ns: int
    p90_ns: int
    p99_ns: int
    spark_ns: tuple[int | None, ...]
    """median step time in each of several equal intervals, oldest first; ``None`` for intervals without steps"""


@dataclass(frozen=True, slots=True)
class Overview:
    """Current state of a job."""

    run: str
    world_size: int
    num_steps: int
    """number of finished steps of the rank that is furthest ahead"""
    steps_per_s: float | None
    running_ns: int
    times: StepTimes | None
    ranks: tuple[RankNow, ...]
    waiting: tuple[str, ...]
    """sentences that say which ranks wait for which ranks"""
    missing: tuple[str, ...] = ()
    """messages about pulse files that cannot be read"""

    @property
    def is_over(self) -> bool:
        return all(one.standing.is_over for one in self.ranks)


def why_starting(path: Path) -> str | None:
    """Return a message if a job that will write to `path` has been started, and no rank is training yet."""
    holder = None if rundir.is_run(path) or rundir.repeated_runs_in(path) else own_files.holder_of(path)
    if holder is None:
        return None
    job = starting_job(int(holder)) if holder.isdigit() else StartingJob(0.0, {})
    return f"the job that records into {path} is starting: {start_line(job)}"


def refuse_starting(path: Path) -> None:
    """Raise `DdpprofError` if a job that writes to `path` has just been started, and no rank is training yet."""
    why = why_starting(path)
    if why is not None:
        raise DdpprofError(why)


def find_pulses(path: Path) -> Path:
    """Return the directory with the pulses of the last attempt of a run.

    Raises `NotARun`, and `DdpprofError` if no rank has a pulse.
    """
    refuse_starting(path)
    if path.is_file():
        raise NotARun(f"{path} is a file. Give a run directory: the --out directory of ddpprof watch or trace.")
    if not path.is_dir():
        raise NotARun(f"{path} does not exist. Record a run with: ddpprof trace --out {path} train.py")
    if runs := rundir.repeated_runs_in(path):
        path = Path(str(runs[max(runs)]))
    folders = [path, *(Path(str(folder)) for folder in rundir.attempts_in(path).values())]
    with_pulses = [folder for folder in folders if rundir.pulses_in(folder)]
    if not with_pulses and not rundir.is_run(path):
        raise NotARun(f"{path} is not a run: it has no run.json. Give the --out directory of ddpprof watch or trace.")
    if not with_pulses:
        raise DdpprofError(
            f"{path} has no pulse file. Ranks create pulse files after the skipped steps: try again while the job "
            f"is training, or see: ddpprof report {path}"
        )
    return with_pulses[-1]


def look_at(directory: Path, now_ns: int) -> Overview:
    """Return the current state of the job whose pulse files are in this directory.

    Raises `DdpprofError` if no pulse can be read.
    """
    heads, missing = {}, []
    for rank in rundir.pulses_in(directory):
        try:
            heads[rank] = read_head(directory, rank, _STEPS_OF_A_RANK)
        except DdpprofError as error:
            missing.append(str(error))
        except OSError as error:
            missing.append(f"rank {rank}'s pulse file cannot be read: {error.strerror}.")
    if not heads:
        why = missing[0] if missing else "its pulse files no longer exist."
        raise DdpprofError(f"{directory}: {why} View the recorded part with: ddpprof report {directory}")
    return overview_of(directory.resolve().name, heads, _pulse(directory, min(heads)), now_ns, tuple(missing))


def _pulse(directory: Path, rank: int) -> Pulse | None:
    try:
        return read_pulse(directory, rank)
    except (DdpprofError, OSError):  # it has been replaced since its head was read
        return None


def overview_of(
    run: str, heads: dict[int, PulseHead], pulse: Pulse | None, now_ns: int, missing: tuple[str, ...]
) -> Overview:
    """Return the overview of these ranks.

    `pulse`: pulse of the lowest rank, for the step times of the last few minutes.
    """
    ranks = tuple(rank_now(rank, head, now_ns) for rank, head in sorted(heads.items()))
    over = all(one.standing.is_over for one in ranks)
    end_ns = max(head.state.last_ns for head in heads.values()) if over else now_ns
    first = heads[min(heads)].identity
    begin_ns = min(head.identity.created_ns for head in heads.values())
    rows = history(pulse) if pulse is not None else None
    return Overview(
        run=run,
        world_size=max(first.world_size, len(heads)),
        num_steps=max(head.state.step for head in heads.values()),
        steps_per_s=_rate(rows, end_ns) if rows is not None else None,
        running_ns=max(end_ns - begin_ns, 0),
        times=_step_times(min(heads), rows, end_ns) if rows is not None else None,
        ranks=ranks,
        waiting=() if over else waiting_lines(ranks),
        missing=missing,
    )


def _rate(rows: PulseSummaries, end_ns: int) -> float | None:
    """Return the steps per second over the last minute. The rate decreases while the job makes no progress."""
    if not len(rows):
        return None
    since_ns = max(end_ns - _RATE_NS, int(rows.start_ns[0]))
    recent = rows.end_ns > since_ns
    span_s = (end_ns - since_ns) / 1e9
    if span_s <= 0:
        return None
    lengths = np.maximum(rows.end_ns[recent] - rows.start_ns[recent], 1)
    shares = (rows.end_ns[recent] - np.maximum(rows.start_ns[recent], since_ns)) / lengths
    return float((rows.num_steps[recent] * np.clip(shares, 0, 1)).sum()) / span_s


def _step_times(rank: int, rows: PulseSummaries, end_ns: int) -> StepTimes | None:
    """Return the step times of the last few minutes. Percentiles are over the steps that are stored individually."""
    recent = rows_of(rows, rows.end_ns > end_ns - WINDOW_NS)
    single = recent.longest_ns[recent.num_steps == 1]
    if not len(single):
        return None
    begin_ns = int(recent.start_ns[0])
    span_ns = max(end_ns - begin_ns, 1)
    piece = np.minimum((recent.end_ns - begin_ns) * _NUM_PIECES // span_ns, _NUM_PIECES - 1)
    spark = [
        usual_length_ns(rows_of(recent, piece == number)) if (piece == number).any() else None
        for number in range(_NUM_PIECES)
    ]
    median, p90, p99 = (int(value) for value in np.percentile(single, (50, 90, 99)))
    return StepTimes(rank, len(single), span_ns, median, p90, p99, tuple(spark))
