"""The pulses that ranks of a recorded run left: how their whole training went.

They are read anew for each report and never cached, since they change while the job trains.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import suppress
from pathlib import Path

from ddpprof.errors import DdpprofError
from ddpprof.files import Location
from ddpprof.files.small import read_small
from ddpprof.load.rank import RankFiles
from ddpprof.model.hang import Verdict
from ddpprof.model.pulse import Pulse
from ddpprof.model.pulse_layout import NotAPulseError, decode
from ddpprof.model.slowdown import Slowdowns
from ddpprof.model.whole_run import RankWholeRun
from ddpprof.monitor.hang_file import read_verdict
from ddpprof.monitor.past_slowdowns import slowdowns_of_run
from ddpprof.monitor.pulse_files import MOST_COMPARED, read_pulse
from ddpprof.monitor.slowdown_file import read_slowdowns
from ddpprof.monitor.whole_run import whole_run
from ddpprof.rundir import captures_in, pulse_file, pulses_in


def load_pulses(
    files: Sequence[RankFiles], left_out: Container[int] = ()
) -> tuple[tuple[RankWholeRun, ...], tuple[str, ...]]:
    """Return the whole training of each rank that left a pulse, and why others cannot be read.

    Only the lowest rank has its course over time: DDP keeps the ranks in step. `left_out`: ranks not to read.
    """
    there = {folder: frozenset(pulses_in(folder)) for folder in {one.directory for one in files} if folder is not None}
    found: list[RankWholeRun] = []
    missing = []
    for one in files:
        if one.directory is None or one.rank is None or one.rank in left_out or one.rank not in there[one.directory]:
            continue
        try:
            pulse = _read(one.directory, one.rank)
            found.append(whole_run(one.rank, pulse, with_course=all(rank.whole is None for rank in found)))
        except DdpprofError as error:
            missing.append(f"rank {one.rank}: {error}")
        except NotAPulseError as error:
            missing.append(f"rank {one.rank}: {pulse_file(one.rank)} cannot be read: {error}.")
        except OSError as error:
            missing.append(f"rank {one.rank}: {pulse_file(one.rank)} cannot be read: {error.strerror}.")
    return tuple(found), tuple(missing)


def load_captures(files: Sequence[RankFiles]) -> tuple[int, ...]:
    """Return the numbers of the captures that were made while the run was recorded, in order."""
    folders = {one.directory for one in files if one.directory is not None}
    return tuple(sorted({number for folder in folders for number in captures_in(folder)}))


def load_slowdowns(files: Sequence[RankFiles], left_out: Container[int] = ()) -> Slowdowns:
    """Return the slow-downs of a run: those that its launcher found while it ran, or else by the pulses."""
    folders = list(dict.fromkeys(one.directory for one in files if one.directory is not None))
    noted = [found for folder in folders if (found := read_slowdowns(folder)) is not None]
    if noted:
        return noted[0]
    pulses: dict[int, Pulse] = {}
    for one in files:
        if one.directory is None or one.rank is None or one.rank in left_out or len(pulses) == MOST_COMPARED:
            continue
        with suppress(DdpprofError, NotAPulseError, OSError):  # `load_pulses` says so
            pulses[one.rank] = _read(one.directory, one.rank)
    return slowdowns_of_run(pulses)


def load_hang(files: Sequence[RankFiles]) -> Verdict | None:
    """Return the last verdict on a hang of the job, if any."""
    folders = dict.fromkeys(one.directory for one in files if isinstance(one.directory, Path))
    return next((found for folder in folders if (found := read_verdict(folder)) is not None), None)


def _read(directory: Location, rank: int) -> Pulse:
    if isinstance(directory, Path):
        return read_pulse(directory, rank)
    return decode(read_small(directory / pulse_file(rank)))
