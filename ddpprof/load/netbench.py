"""Loading of the file that `ddpprof netbench` writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ddpprof.errors import BadTrace, refuse_newer
from ddpprof.files import Location
from ddpprof.files.small import read_small
from ddpprof.model.netbench import NETBENCH_FORMAT, NetBench

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
_MOST = 1 << 62
_AGAIN = "Measure again with: ddpprof netbench --nproc-per-node 2 -o FILE.json"


def load_netbench(path: Location) -> NetBench:
    """Load a file of `ddpprof netbench`. Raises `BadTrace`."""
    try:
        return parse_netbench(read_small(path), str(path))
    except OSError as error:
        raise BadTrace(f"{path} cannot be read: {error.strerror}.") from error


def parse_netbench(text: bytes, name: str) -> NetBench:
    """Parse the text of such a file. `name` identifies the file in errors. Raises `BadTrace`."""
    try:
        found = msgspec.json.decode(text, type=dict[str, Any]).get("format")
        refuse_newer(name, found, NETBENCH_FORMAT, BadTrace)
        bench = msgspec.json.decode(text, type=NetBench)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadTrace(f"{name} is not a file that ddpprof netbench writes ({error}). {_AGAIN}") from error
    wrong = _what_is_wrong(bench)
    if wrong is not None:
        raise BadTrace(f"{name} is not a file that ddpprof netbench writes ({wrong}). {_AGAIN}")
    return bench


def _what_is_wrong(bench: NetBench) -> str | None:
    if bench.collective not in _COLLECTIVES:
        return f"its collective is {bench.collective[:40]!r}"
    if bench.world_size < 2 or len(bench.hosts) != bench.world_size:
        return f"it has {bench.world_size} ranks on {len(bench.hosts)} hosts"
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
            return f"{one.num_bytes} bytes: rounds are missing"
        if not (_are_within(one.taken_ns, least=0) and _are_within(one.lasted_ns, least=1)):
            return f"{one.num_bytes} bytes: an invalid time"
    for num_bytes, times_ns, others_ns, cpu_ns in tables:
        if not times_ns or len(others_ns) != len(times_ns) or len(cpu_ns) != bench.world_size:
            return f"{num_bytes} bytes: iterations or ranks are missing"
        if not (_are_within([*times_ns, *others_ns], least=1) and _are_within(cpu_ns, least=0)):
            return f"{num_bytes} bytes: an invalid time"
    return None


def _are_within(values: Sequence[int], least: int) -> bool:
    return all(least <= value <= _MOST for value in values)
