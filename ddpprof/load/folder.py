"""Traces from the user's own profiler, under any name: the rank of each, and which ones belong together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from ddpprof.errors import BadTrace
from ddpprof.files import Location, spelled
from ddpprof.load.kineto.read import Header, read_header
from ddpprof.load.limits import DEFAULT_LIMITS, Limits
from ddpprof.load.other_files import why_alone
from ddpprof.words import listed

_RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,7})", re.IGNORECASE)
_NUMBER_IN_NAME = re.compile(r"_(\d{1,7})\.")
_WORKER_IN_NAME = re.compile(r"(.+)\.\d{10,}\.pt\.trace\.json(?:\.gz|\.zst)?")
"""file names of ``torch.profiler.tensorboard_trace_handler``: worker, time"""


_MOST_NAMED = 4
_READERS = 8
"""number of threads, because files may be remote; an ssh server refuses some of more than ten simultaneous connections
"""


@dataclass(frozen=True, slots=True)
class FoundTraces:
    """Trace files by rank, in order of their names, and messages about what was left out or assumed."""

    ranks: dict[int, tuple[Location, ...]]
    missing: tuple[str, ...]


def find_traces(paths: Sequence[Location], limits: Limits = DEFAULT_LIMITS) -> FoundTraces:
    """Find out which of the files are traces, and of which ranks. Reads little more than the beginning of each file."""
    paths = sorted(paths, key=spelled)
    with ThreadPoolExecutor(_READERS) as readers:
        stated = dict(zip(paths, readers.map(partial(_stated, limits=limits), paths), strict=True))
    missing = [skipped(path, error) for path, error in stated.items() if isinstance(error, BadTrace)]
    headers, left_out = _of_one_job({path: one for path, one in stated.items() if isinstance(one, Header)})
    missing += left_out
    ranks: dict[int, list[Location]] = {}
    nameless = []
    for path, header in headers.items():
        rank = header.rank if header.rank is not None else rank_of_name(path.name, len(paths))
        if rank is None:
            nameless.append(path)
        else:
            ranks.setdefault(rank, []).append(path)
    for of_one in _by_worker(nameless):
        rank = next(number for number in range(len(paths)) if number not in ranks)
        ranks[rank] = of_one
        missing.append(assumed_rank(of_one[0].name, rank))
    return FoundTraces({rank: tuple(ranks[rank]) for rank in sorted(ranks)}, tuple(missing))


def _stated(path: Location, limits: Limits) -> Header | BadTrace:
    """Return the file's header, or the error that says why the file is not a trace."""
    try:
        header = read_header(path, limits)
        alone = why_alone(path) if header.rank is None else None
        return header if alone is None else BadTrace(alone)
    except BadTrace as error:
        return error


def _of_one_job(headers: Mapping[Location, Header]) -> tuple[dict[Location, Header], list[str]]:
    """Return the files of the world size with the most ranks, if world sizes differ, and messages about the others."""
    sizes = {header.world_size for header in headers.values()} - {None}
    if len(sizes) < 2:
        return dict(headers), []
    present = {size: {one.rank for one in headers.values() if one.world_size == size} for size in sizes}
    chosen = max(sizes, key=lambda size: (len(present[size]), -(size or 0)))
    left_out = []
    for size in sorted(sizes - {chosen}, key=lambda size: size or 0):
        names = [path.name for path, header in headers.items() if header.world_size == size]
        left_out.append(
            f"left out: {listed(names, _MOST_NAMED)}: from a job of {size} rank{'s' if size != 1 else ''}, "
            f"but the other traces are from a job of {chosen}"
        )
    return {path: header for path, header in headers.items() if header.world_size in (chosen, None)}, left_out


def skipped(path: Location, error: BadTrace) -> str:
    return f"skipped: {why_alone(path) or error}"


def rank_of_name(name: str, num_files: int) -> int | None:
    """Return the rank in a file's name. A number without the word "rank" must be small, because others are PIDs."""
    if match := _RANK_IN_NAME.search(name):
        return int(match.group(1))
    numbers = [int(number) for number in _NUMBER_IN_NAME.findall(name)]
    return numbers[-1] if numbers and numbers[-1] < num_files else None


def assumed_rank(name: str, rank: int) -> str:
    return f"the file name {name} does not contain a rank: rank {rank} is assumed"


def _by_worker(paths: Sequence[Location]) -> list[list[Location]]:
    """Group files without a rank: all files of one process belong to one rank."""
    groups: dict[str, list[Location]] = {}
    for path in paths:
        groups.setdefault(worker_of(path.name) or path.name, []).append(path)
    return list(groups.values())


def worker_of(name: str) -> str | None:
    """Return the process that wrote the file, if its name says so.

    A rank's name does not count: other files may share it.
    """
    match = _WORKER_IN_NAME.fullmatch(name)
    return match.group(1) if match else None
