"""Read the files written by ddpprof: the record of one rank, the attempts of a job, and files of `ddpprof netbench`.

If torchrun restarted a job, the report shows one attempt, and the run contains the records of all attempts.

`ddpprof trace --nccl-log` also makes NCCL write one log per process (``NCCL_DEBUG=INFO``), which shows the transports
and algorithms that it chose. The format differs between NCCL versions; unknown lines are skipped.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import filterfalse
from typing import Any

import msgspec

from ddpprof.errors import BadTrace, RemoteError, refuse_newer
from ddpprof.files import Location, read_small
from ddpprof.model import Attempt, DdpModule, ProcessExit, Record, RecordedStep
from ddpprof.model.json_files import NETBENCH_FORMAT, NetBench, RunFile
from ddpprof.model.links import NcclChoices
from ddpprof.model.overdue import collective_of, place_of_user, stack_of_crash
from ddpprof.rundir import (
    EXITS_FILE,
    FORMAT,
    LAST_STEP,
    RUN_FILE,
    attempt_of,
    crash_file,
    facts_file,
    last_step_file,
    losses_file,
    nccl_log_file,
    ranks_in,
    read_json,
    steps_file,
)

_MOST_STEPS_BYTES = 4 * 10**9
"""maximum size in bytes of the file with a rank's steps; 1 million steps take 2 GB"""
_BAD_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Format(msgspec.Struct):
    format: int


_decode_format = msgspec.json.Decoder(_Format).decode
_decode_record = msgspec.json.Decoder(Record).decode
_decode_step = msgspec.json.Decoder(RecordedStep).decode


class BadRecordError(Exception):
    """A file written by the recorder cannot be read. The message names the file and the reason."""

    record: Record | None = None
    """the part of the record that could be read before the error"""


def load_record(directory: Location, rank: int) -> Record | None:
    """Return the record of one rank, or ``None`` if the rank wrote none. Raises `BadRecordError`."""
    path = directory / facts_file(rank)
    try:
        facts = read_small(path)
        if (number := _decode_format(facts).format) > FORMAT:
            raise BadRecordError(
                f"{path.name} has format {number}, but this version of ddpprof reads formats up to {FORMAT}"
            )
        record = _decode_record(facts)
        if (module := next(filterfalse(_has_sound_buckets, record.modules), None)) is not None:
            raise BadRecordError(f"{path.name} cannot be read: a bucket of {module.name} contains no known parameter")
        msgspec.msgpack.encode(record)  # raises OverflowError for integers too large for a summary
        if record.ended is None:
            num_steps, ended_ns = _load_last_step(directory / last_step_file(rank))
            where = _load_crash(directory / crash_file(rank))
            record = msgspec.structs.replace(record, num_steps=num_steps, last_step_unix_ns=ended_ns, **where)
        steps, problem = _load_steps(directory / steps_file(rank))
        record = msgspec.structs.replace(record, rank=rank, steps=steps)
        if problem is None:
            return record
    except FileNotFoundError:
        return None
    except (*_BAD_JSON, OverflowError) as error:
        raise BadRecordError(f"{path.name} cannot be read: {error}") from error
    except OSError as error:
        raise BadRecordError(f"{path.name} cannot be read: {error.strerror}") from error
    bad_steps = BadRecordError(problem)
    bad_steps.record = record
    raise bad_steps


def _has_sound_buckets(module: DdpModule) -> bool:
    parameters = range(len(module.parameters))
    return all(bucket and all(index in parameters for index in bucket) for bucket in module.buckets)


def _load_crash(path: Location) -> dict[str, str | bool | None]:
    """Return where a signal such as SIGABRT ended the rank, as fields of `Record`; empty if no signal ended it."""
    try:
        text = read_small(path).decode("utf-8", "replace")
    except OSError:
        return {}
    stack = stack_of_crash(text)
    place = place_of_user(stack)
    if place is None:
        return {}
    by_library = "Fatal Python error: Aborted" in text and "Current thread" not in text
    return {"ended_place": str(place), "ended_in": collective_of(stack), "was_aborted_by_library": by_library}


def _load_last_step(path: Location) -> tuple[int | None, int | None]:
    """Return the number of finished steps and the end of the last step (Unix time, ns), or ``None`` for both."""
    try:
        content = read_small(path)
    except OSError:
        return None, None
    if len(content) != struct.calcsize(LAST_STEP):
        return None, None
    num_steps, ended_ns = struct.unpack(LAST_STEP, content)
    return (num_steps, ended_ns) if 0 < num_steps < 1 << 62 and 0 < ended_ns < 1 << 62 else (None, None)


def _load_steps(path: Location) -> tuple[tuple[RecordedStep, ...], str | None]:
    """Return the steps up to the first line that cannot be read, and the error message for that line, if any.

    An incomplete last line is not an error, because the process may have been killed while writing it.
    """
    try:
        lines = read_small(path, _MOST_STEPS_BYTES).split(b"\n")
    except FileNotFoundError:
        return (), None
    except OSError as error:
        return (), f"{path.name} cannot be read: {error.strerror}"
    torn = lines.pop()
    steps = []
    for number, line in enumerate(lines, start=1):
        try:
            steps.append(_decode_step(line))
        except _BAD_JSON as error:
            return tuple(steps), f"{path.name} line {number} cannot be read: {error}"
    if torn:
        with suppress(*_BAD_JSON):
            steps.append(_decode_step(torn))
    return tuple(steps), None


Losses = tuple[tuple[float, ...], ...]
"""losses of each step, from the first step on: the values of the scalars on which ``backward()`` was called"""


def load_losses(directory: Location, rank: int) -> Losses | None:
    """Load one rank's losses, or return ``None`` if there is no readable file."""
    try:
        steps = msgspec.json.decode(read_small(directory / losses_file(rank)), type=list[list[str]])
        return tuple(tuple(map(float.fromhex, step)) for step in steps)
    except (OSError, ValueError, OverflowError, RecursionError):  # msgspec's errors are ValueErrors
        return None


def shown_attempt(attempts: Mapping[int, Location]) -> int:
    """Return the number of the last attempt with recorded steps or, if there is none, the last attempt with files."""
    with_steps = [number for number, path in attempts.items() if _has_steps(path)]
    with_ranks = [number for number, path in attempts.items() if ranks_in(path)]
    return max(with_steps or with_ranks, default=0)


def load_attempts(attempts: Mapping[int, Location], shown: int) -> tuple[tuple[Attempt, ...], tuple[str, ...]]:
    """Load all attempts without their traces. Also return messages about records that cannot be read."""
    loaded, missing = [], []
    for number, path in attempts.items():
        records = []
        for rank in ranks_in(path):
            try:
                record = load_record(path, rank)
            except BadRecordError as error:
                if number != shown:  # otherwise, loading the run reports it
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
    """Return the process exits of a job. All attempts share one file, in the job's directory.

    Lines that cannot be read are skipped.
    """
    if attempt_of(directory.name):
        directory = directory.parent
    found: list[ProcessExit] = []
    with suppress(OSError):
        for line in read_small(directory / EXITS_FILE).splitlines():
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                found.append(_decode(line))
    return tuple(found)


_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
_MOST = 1 << 62
_AGAIN = "Measure again with: ddpprof netbench --nproc-per-node 2 -o FILE.json"


def load_netbench(path: Location) -> NetBench:
    """Load a file written by `ddpprof netbench`. Raises `BadTrace`."""
    try:
        return parse_netbench(read_small(path), str(path))
    except OSError as error:
        raise BadTrace(f"{path} cannot be read: {error.strerror}.") from error


def parse_netbench(text: bytes, name: str) -> NetBench:
    """Parse a file written by `ddpprof netbench`. `name` identifies it in error messages. Raises `BadTrace`."""
    try:
        found = msgspec.json.decode(text, type=dict[str, Any]).get("format")
        refuse_newer(name, found, NETBENCH_FORMAT, BadTrace)
        bench = msgspec.json.decode(text, type=NetBench)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadTrace(f"{name} was not written by ddpprof netbench ({error}). {_AGAIN}") from error
    wrong = _what_is_wrong(bench)
    if wrong is not None:
        raise BadTrace(f"{name} was not written by ddpprof netbench ({wrong}). {_AGAIN}")
    return bench


def _what_is_wrong(bench: NetBench) -> str | None:
    if bench.collective not in _COLLECTIVES:
        return f"its collective is {bench.collective[:40]!r}"
    if bench.world_size < 2 or len(bench.hosts) != bench.world_size:
        return f"its world size is {bench.world_size}, and its number of host names is {len(bench.hosts)}"
    if not bench.sizes:
        return "no size was measured"
    for tables_of in (bench.sizes, bench.concurrent, bench.beside):
        numbers = [one.num_bytes for one in tables_of]
        if numbers != sorted(set(numbers)) or not _are_within(numbers, least=1):
            return "its sizes are not in ascending order"
    tables = [(one.num_bytes, one.longest_ns, one.shortest_ns, one.cpu_ns) for one in bench.sizes]
    tables += [(one.num_bytes, one.both_ns, one.alone_ns, one.cpu_ns) for one in bench.concurrent]
    for one in bench.beside:
        if not one.taken_ns or len(one.taken_ns) != len(one.lasted_ns):
            return f"the times for {one.num_bytes} bytes lack rounds"
        if not (_are_within(one.taken_ns, least=0) and _are_within(one.lasted_ns, least=1)):
            return f"a time for {one.num_bytes} bytes is invalid"
    for num_bytes, times_ns, others_ns, cpu_ns in tables:
        if not times_ns or len(others_ns) != len(times_ns) or len(cpu_ns) != bench.world_size:
            return f"the times for {num_bytes} bytes lack iterations or ranks"
        if not (_are_within([*times_ns, *others_ns], least=1) and _are_within(cpu_ns, least=0)):
            return f"a time for {num_bytes} bytes is invalid"
    return None


def _are_within(values: Sequence[int], least: int) -> bool:
    return all(least <= value <= _MOST for value in values)


_MOST_BYTES = 64 << 20
_MOST_LINES = 200_000
_MOST_PAIRS = 64

_VERSION = re.compile(r"NCCL version (\S+)")
_NETWORK = re.compile(r"NCCL INFO Using network (.+)")
_USING = re.compile(r"NCCL INFO NET/(\w+) : Using (.+)")
_NAMED = re.compile(r"\[\d+\]([\w.-]+(?::\d+(?=/))?)")
"""pattern for a network device in a list, such as ``[0]eth0:10.0.0.1<0>`` or ``[0]mlx5_0:1/IB``"""
_CHANNEL = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? : \S+ -> \S+ (\[receive\] )?(?:\[send\] )?via (\S+)")
_CHANNELS = re.compile(r"NCCL INFO (\d+) coll channels")
_TUNED = re.compile(r"NCCL INFO (?:AllReduce: )?(\d+) Bytes -> Algo (\w+) proto (\w+)")
_SET = re.compile(r"NCCL INFO (NCCL_\w+) set by environment to (.+)")
_NO_INFINIBAND = "NET/IB : No device found"
_WITHOUT_P2P = re.compile(r"P2P is disabled between (?:NVLINK )?connected GPUs (\d+) and (\d+)")

_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
"""names of algorithms and of protocols by index; NCCL before 2.24 logs the index instead of the name"""


def load_nccl_log(directory: Location, record: Record) -> NcclChoices | None:
    """Return the choices that NCCL logged in the rank's process, or ``None`` if there is no readable log."""
    is_attempt = attempt_of(directory.name) is not None
    run = directory.parent if is_attempt else directory
    with suppress(OSError):
        content = read_small(run / nccl_log_file(record.host, record.pid), _MOST_BYTES)
        return read_choices(content.decode("utf-8", "replace").splitlines()[:_MOST_LINES])
    return None


def read_choices(lines: Iterable[str]) -> NcclChoices:
    """Parse the lines of one process's log."""
    lines = list(lines)
    using = [(match[1], _NAMED.findall(match[2])) for match in _matches(_USING, lines)]
    tuned = max(_matches(_TUNED, lines), key=lambda match: int(match[1]), default=None)
    channels = [int(match[1]) for match in _matches(_CHANNELS, lines)]
    return NcclChoices(
        version=_first(_VERSION, lines),
        network=_first(_NETWORK, lines),
        interfaces=_devices(using, "Socket"),
        infiniband=_devices(using, "IB"),
        transports=_transports(lines),
        num_channels=max(channels, default=None),
        algorithm=None if tuned is None else _name_of(tuned[2], _ALGORITHMS),
        protocol=None if tuned is None else _name_of(tuned[3], _PROTOCOLS),
        found_no_infiniband=any(_NO_INFINIBAND in line for line in lines),
        without_p2p=_pairs_without_p2p(lines),
        settings={match[1]: match[2].strip().rstrip(".") for match in _matches(_SET, lines)},
    )


def _matches(pattern: re.Pattern[str], lines: Iterable[str]) -> Iterator[re.Match[str]]:
    return (match for line in lines if (match := pattern.search(line)) is not None)


def _first(pattern: re.Pattern[str], lines: Iterable[str]) -> str | None:
    match = next(_matches(pattern, lines), None)
    return None if match is None else match[1].strip()


def _devices(using: Iterable[tuple[str, list[str]]], kind: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for network, names in using for name in names if network == kind))


def _transports(lines: Iterable[str]) -> Mapping[str, int]:
    """Return the number of channels per transport.

    Only sending ends are counted, because other ranks log the receiving ends.
    """
    sends = (match[2] for match in _matches(_CHANNEL, lines) if match[1] is None)
    return dict(Counter(map(_transport, sends)).most_common())


def _transport(written: str) -> str:
    """Return the transport without its device number: ``NET/IB/0/GDRDMA`` becomes ``NET/IB/GDRDMA``."""
    parts = [part for part in re.sub(r"\([^)]*\)", "", written).split("/") if not part.isdecimal()]
    return parts[0] if parts[0] == "SHM" else "/".join(parts)


def _name_of(written: str, names: tuple[str, ...]) -> str:
    """Return the name of an algorithm or protocol. Older versions of NCCL log its index."""
    if not written.isdecimal():
        return written.upper()
    return names[int(written)] if int(written) < len(names) else written


def _pairs_without_p2p(lines: Iterable[str]) -> tuple[tuple[int, int], ...]:
    found = (sorted((int(match[1]), int(match[2]))) for match in _matches(_WITHOUT_P2P, lines))
    return tuple(sorted({(low, high) for low, high in found}))[:_MOST_PAIRS]
