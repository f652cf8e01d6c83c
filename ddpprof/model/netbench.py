"""A network as measured by `ddpprof netbench`, and the fields of the JSON file that it writes.

    format           of the file; this is 1
    ddpprof, torch   versions
    created_unix_s   time of the measurement, since 1970
    collective       "all_reduce", "all_gather", "reduce_scatter" or "broadcast"
    dtype            "float32"
    backend, device  of the process group and of the tensors: "gloo" and "cpu", "nccl" and "cuda"
    world_size       number of ranks
    hosts            host of each rank
    sizes            one entry per message size, ascending, each with
                         num_bytes     as counted by nccl-tests: the larger of a rank's input and output
                         longest_ns    per iteration, on the slowest rank, from a barrier to its end
                         shortest_ns   per iteration, on the fastest rank, with less of the barrier's own skew
                         cpu_ns        per rank, median CPU time of all its threads for one iteration
    concurrent       for some of the sizes, two collectives at once, alternating with one alone:
                         num_bytes     of each
                         both_ns       per iteration, on the slowest rank, until both are done
                         alone_ns      the same for one, measured right after
                         cpu_ns        per rank, median CPU time for both
    beside           all-reduces on CPU, for sizes of buckets, while every rank computes:
                         num_bytes
                         taken_ns      per round, computing time that a collective costs the rank that loses most
                         lasted_ns     per round, how long each took, in sequence, with several in flight
    left_out         sizes, in bytes, that were requested but not measured, because a smaller one took too long

Times are nanoseconds. Bandwidths follow from them: `ddpprof.topics.collectives.table`.
"""

from __future__ import annotations

from dataclasses import dataclass

NETBENCH_FORMAT = 1


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """Times of one message size."""

    num_bytes: int
    longest_ns: tuple[int, ...]
    shortest_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConcurrentTimes:
    """Times of two concurrent collectives of one size."""

    num_bytes: int
    both_ns: tuple[int, ...]
    alone_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BesideTimes:
    """Times of collectives of one size during a computation."""

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
