"""What does a running job do? An overview of its ranks, from their pulses.

DDP keeps ranks in step, so the steps of the lowest rank stand for those of the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ddpprof import own_files, rundir
from ddpprof.errors import DdpprofError, NotARun
from ddpprof.model.pulse import Pulse, PulseSummaries
from ddpprof.model.tables import rows_of
from ddpprof.monitor.history import history, usual_length_ns
from ddpprof.monitor.pulse_files import PulseHead, read_head, read_pulse
from ddpprof.monitor.rank_now import RankNow, rank_now
from ddpprof.monitor.waiting import waiting_lines

WINDOW_NS = 300 * 10**9
"""the last minutes, which percentiles and the sparkline are about"""
_RATE_NS = 60 * 10**9
_STEPS_OF_A_RANK = 50
_NUM_PIECES = 60


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Steps of the last minutes. DDP keeps the ranks in step, so those of one rank stand for all."""

    rank: int
    num_steps: int
    span_ns: int
    """from the first of these steps to now, or to the end of the training"""
    median_ns: int
    p90_ns: int
    p99_ns: int
    spark_ns: tuple[int | None, ...]
    """median length in equal pieces of the last minutes, oldest first; ``None`` where no step ended"""


@dataclass(frozen=True, slots=True)
class Overview:
    """A job at this moment."""

    run: str
    world_size: int
    num_steps: int
    """number of steps that the rank furthest ahead has finished"""
    steps_per_s: float | None
    running_ns: int
    times: StepTimes | None
    ranks: tuple[RankNow, ...]
    waiting: tuple[str, ...]
    """who waits for whom, in sentences"""
    missing: tuple[str, ...] = ()
    """pulses that cannot be read, and why"""

    @property
    def is_over(self) -> bool:
        return all(one.standing.is_over for one in self.ranks)


def is_starting(path: Path) -> bool:
    return not rundir.is_run(path) and not rundir.repeated_runs_in(path) and own_files.is_reserved(path)


def refuse_starting(path: Path) -> None:
    """Raise `DdpprofError` if a job was just started into `path`, and none of its ranks trains yet."""
    if is_starting(path):
        raise DdpprofError(f"{STARTING.format(path)} Try again in some seconds.")


STARTING = "the job that records into {} is starting: none of its ranks trains yet."
"""said of a folder in which there will be a run"""


def find_pulses(path: Path) -> Path:
    """Return the folder with the pulses of a run: that of its last attempt.

    Raises `NotARun`, and `DdpprofError` if no rank has a pulse.
    """
    refuse_starting(path)
    if path.is_file():
        raise NotARun(f"{path} is a file. Give the --out of ddpprof watch or trace.")
    if not path.is_dir():
        raise NotARun(f"{path} does not exist. Record a run with: ddpprof trace --out {path} train.py")
    if runs := rundir.repeated_runs_in(path):
        path = Path(str(runs[max(runs)]))
    folders = [path, *(Path(str(folder)) for folder in rundir.attempts_in(path).values())]
    with_pulses = [folder for folder in folders if rundir.pulses_in(folder)]
    if not with_pulses and not rundir.is_run(path):
        raise NotARun(f"{path} is not a run: it has no run.json. Give the --out of ddpprof watch or trace.")
    if not with_pulses:
        raise DdpprofError(
            f"{path} has no pulse. Ranks begin theirs after the skipped steps, so try again while the job trains; "
            f"else see: ddpprof report {path}"
        )
    return with_pulses[-1]


def look_at(directory: Path, now_ns: int) -> Overview:
    """Return what the ranks with a pulse in this folder do. Raises `DdpprofError` if no pulse can be read."""
    heads, missing = {}, []
    for rank in rundir.pulses_in(directory):
        try:
            heads[rank] = read_head(directory, rank, _STEPS_OF_A_RANK)
        except DdpprofError as error:
            missing.append(str(error))
        except OSError as error:
            missing.append(f"rank {rank}'s pulse cannot be read: {error.strerror}.")
    if not heads:
        why = missing[0] if missing else "its pulses are gone."
        raise DdpprofError(f"{directory}: {why} See what there is with: ddpprof report {directory}")
    return overview_of(directory.resolve().name, heads, _pulse(directory, min(heads)), now_ns, tuple(missing))


def _pulse(directory: Path, rank: int) -> Pulse | None:
    try:
        return read_pulse(directory, rank)
    except (DdpprofError, OSError):  # it has just been replaced
        return None


def overview_of(
    run: str, heads: dict[int, PulseHead], pulse: Pulse | None, now_ns: int, missing: tuple[str, ...]
) -> Overview:
    """Return the overview of these ranks. `pulse`: that of the lowest, for the last minutes."""
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
    """Return steps per second over the last minute, which falls while the job stands."""
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
    """Return the steps of the last minutes; percentiles are of those that are still known one by one."""
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
