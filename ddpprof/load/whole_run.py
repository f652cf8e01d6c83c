"""Loads a summary of the whole training from the pulses that its ranks left and the records of its launcher.

They are read again for each report and never cached, because they change while the job trains.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path

from ddpprof.errors import DdpprofError
from ddpprof.files import Location
from ddpprof.files.small import read_small
from ddpprof.load.rank import RankFiles
from ddpprof.model.pulse import Pulse
from ddpprof.model.pulse_layout import NotAPulseError, decode
from ddpprof.model.whole_run import RankWholeRun, WholeRun
from ddpprof.monitor.pulse_files import MOST_COMPARED, read_pulse, read_slowdowns, read_verdict
from ddpprof.monitor.slowdowns import slowdowns_of_run
from ddpprof.monitor.whole_run import whole_run, whole_run_of_rank
from ddpprof.rundir import captures_in, pulse_file, pulses_in


def load_whole_run(
    files: Sequence[RankFiles], left_out: Container[int] = ()
) -> tuple[WholeRun | None, tuple[str, ...]]:
    """Return the whole training (``None`` if no rank left a pulse), and why pulses cannot be read.

    Only the lowest rank has its course over time, because DDP keeps the ranks in step. Slow-downs are those that the
    launcher found while the job ran or, without them, those in the pulses. `left_out`: ranks not to read.
    """
    folders = list(dict.fromkeys(one.directory for one in files if one.directory is not None))
    there = {folder: frozenset(pulses_in(folder)) for folder in folders}
    if not any(there.values()):
        return None, ()
    noted = next((found for folder in folders if (found := read_slowdowns(folder)) is not None), None)
    ranks: list[RankWholeRun] = []
    compared: dict[int, Pulse] = {}
    missing = []
    for one in files:
        if one.directory is None or one.rank is None or one.rank in left_out or one.rank not in there[one.directory]:
            continue
        try:
            pulse = _read(one.directory, one.rank)
            ranks.append(whole_run_of_rank(one.rank, pulse, with_course=all(rank.whole is None for rank in ranks)))
        except DdpprofError as error:
            missing.append(f"rank {one.rank}: {error}")
        except NotAPulseError as error:
            missing.append(f"rank {one.rank}: {pulse_file(one.rank)} cannot be read: {error}.")
        except OSError as error:
            missing.append(f"rank {one.rank}: {pulse_file(one.rank)} cannot be read: {error.strerror}.")
        else:
            if noted is None and len(compared) < MOST_COMPARED:
                compared[one.rank] = pulse
    if not ranks:
        return None, tuple(missing)
    slowdowns = slowdowns_of_run(compared) if noted is None else noted
    hangs = (read_verdict(folder) for folder in folders if isinstance(folder, Path))
    hang = next((verdict for verdict in hangs if verdict is not None), None)
    captures = sorted({number for folder in folders for number in captures_in(folder)})
    return whole_run(ranks, slowdowns, hang, tuple(captures)), tuple(missing)


def _read(directory: Location, rank: int) -> Pulse:
    if isinstance(directory, Path):
        return read_pulse(directory, rank)
    return decode(read_small(directory / pulse_file(rank)))
