"""The attempts of a job whose ranks torchrun restarted: which one a report shows, and the records of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from ddpprof.errors import RemoteError
from ddpprof.files import Location
from ddpprof.files.small import read_small
from ddpprof.load.record import BadRecordError, load_record
from ddpprof.model import Attempt, ProcessExit
from ddpprof.model.run_file import RunFile
from ddpprof.rundir import EXITS_FILE, FORMAT, RUN_FILE, attempt_of, ranks_in, read_json, steps_file


def shown_attempt(attempts: Mapping[int, Location]) -> int:
    """Return the last attempt that recorded steps or, without one, the last in which a rank left a file."""
    with_steps = [number for number, path in attempts.items() if _has_steps(path)]
    with_ranks = [number for number, path in attempts.items() if ranks_in(path)]
    return max(with_steps or with_ranks, default=0)


def load_attempts(attempts: Mapping[int, Location], shown: int) -> tuple[tuple[Attempt, ...], tuple[str, ...]]:
    """Load all attempts without their traces. Also return messages about what cannot be read."""
    loaded, missing = [], []
    for number, path in attempts.items():
        records = []
        for rank in ranks_in(path):
            try:
                record = load_record(path, rank)
            except BadRecordError as error:
                if number != shown:  # otherwise the message comes with the rest of the run
                    missing.append(f"attempt {number}, rank {rank}: {error}")
                continue
            if record is not None:
                records.append(record)
        about = _about(path)
        loaded.append(
            Attempt(
                number=number,
                restarts=about.elastic.restarts if about.elastic is not None else None,
                created_unix_s=about.created_unix_s,
                world_size=about.world_size,
                records=tuple(records),
                is_shown=number == shown,
            )
        )
    return tuple(loaded), tuple(missing)


def _has_steps(path: Location) -> bool:
    return any(_holds_anything(path / steps_file(rank)) for rank in ranks_in(path))


def _holds_anything(path: Location) -> bool:
    if not path.is_file():
        return False
    try:
        return path.stat().st_size > 0
    except RemoteError:  # a web server need not report a file's size
        with suppress(OSError), path.open("rb") as file:
            return bool(file.read(1))
        return False


def _about(path: Location) -> RunFile:
    return read_json(path / RUN_FILE, RunFile) or RunFile(format=FORMAT, run_id="")


_decode = msgspec.json.Decoder(ProcessExit).decode


def load_exits(directory: Location) -> tuple[ProcessExit, ...]:
    """Return the process exits from every line that can be read.

    All attempts share one file, in the job's directory.
    """
    if attempt_of(directory.name):
        directory = directory.parent
    found: list[ProcessExit] = []
    with suppress(OSError):
        for line in read_small(directory / EXITS_FILE).splitlines():
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                found.append(_decode(line))
    return tuple(found)
