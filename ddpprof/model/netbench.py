"""What `ddpprof netbench` measured of a network, and the fields of the JSON file that it writes.

    format           of the file; this is 1
    ddpprof, torch   versions
    created_unix_s   when it was measured, since 1970
    collective       "all_reduce", "all_gather", "reduce_scatter" or "broadcast"
    dtype            "float32"
    backend, device  of the process group, and of the tensors: "gloo" and "cpu", "nccl" and "cuda"
    world_size       number of ranks
    hosts            of each rank
    sizes            one entry per message size, ascending, each with
                         num_bytes     as nccl-tests counts them: of the larger one of a rank's input and output
                         longest_ns    per iteration, on the rank that took longest from a barrier to its end
                         shortest_ns   per iteration, on the rank that took shortest: less of the barrier's own skew
                         cpu_ns        per rank, processor time of all its threads for one iteration, the median
    concurrent       for some of the sizes, two collectives at once, in turns with one alone:
                         num_bytes     of each
                         both_ns       per iteration, until both are done, on the rank that took longest
                         alone_ns      likewise for one, measured right after
                         cpu_ns        per rank, processor time for both, the median
    beside           of all-reduces on CPU, for sizes that buckets have, while every rank computes beside them:
                         num_bytes
                         taken_ns      per round, what a collective takes of that, on the rank that loses most
                         lasted_ns     per round, how long each took, one after the other, several under way
    left_out         sizes, in bytes, that were asked for and not measured, because a smaller one took too long

Times are nanoseconds. Bandwidths follow from them: `ddpprof.measures.collectives.link_speed`.
"""

from __future__ import annotations

from dataclasses import dataclass

NETBENCH_FORMAT = 1


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """Of one message size."""

    num_bytes: int
    longest_ns: tuple[int, ...]
    shortest_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConcurrentTimes:
    """Of two collectives of one size."""

    num_bytes: int
    both_ns: tuple[int, ...]
    alone_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BesideTimes:
    """Of collectives of one size beside a computation."""

    num_bytes: int
    taken_ns: tuple[int, ...]
    lasted_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NetBench:
    format: int
    ddpprof: str
    torch: str
    created_unix_s: float
    collective: str
    dtype: str
    backend: str
    device: str
    world_size: int
    hosts: tuple[str, ...]
    sizes: tuple[CollectiveTimes, ...]
    concurrent: tuple[ConcurrentTimes, ...]
    left_out: tuple[int, ...]
    beside: tuple[BesideTimes, ...] = ()
