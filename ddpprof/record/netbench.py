"""Measure how long collectives take between the ranks of this job, and how much they slow down computation.

All ranks call `measure`. For each size, up to three warm-up iterations run. Then, as many iterations as fit into the
time limit run, each after a barrier. All ranks derive this number from the same data. Measuring stops after the first
size at which one iteration exceeds the limit. Measurements of two concurrent collectives alternate with measurements of
a single collective, so that a temporary slowdown of the machine affects both. `ddpprof.model.json_files` describes the
fields of the result.

On an accelerator, several iterations follow one barrier, and the device measures their time, because launching a short
collective and waiting for it on the host takes longer than the collective itself.

On CPU, collectives compete with computation for cores. To measure this, every rank multiplies matrices, first without
collectives, and then with a few collectives always in flight.

    taken  = (time with collectives - matrix products in that time × time of one product alone) / number of collectives
    lasted = time with collectives / number of collectives
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ddpprof.errors import CannotRecord
from ddpprof.model import backends
from ddpprof.model.json_files import NETBENCH_FORMAT, BesideTimes, CollectiveTimes, ConcurrentTimes, NetBench
from ddpprof.record.launch import STORE_VARIABLE
from ddpprof.record.link_facts import link_facts
from ddpprof.version import __version__

_ROUNDS = 5
_UNDER_WAY = 4
"""number of collectives that are started before the first is awaited; as in a backward pass, it is larger than the
number that a backend runs at the same time
"""
_FEWEST_BESIDE, _MOST_BESIDE = 2, 64
"""smallest and largest number of collectives that run during the computation in one round"""
_LEAST_NS = 100_000_000
"""shortest duration in ns of the computation that runs without collectives in a round"""
_ROWS, _WIDTH = 128, 512
"""size of the multiplied matrices; one product takes a few milliseconds on one core"""

Start = Callable[[], Any]
"""function that starts a collective and returns its work handle"""


def measure_beside(
    start: Start, alone_ns: float, may_take_ns: float, from_all: Callable[[Any], list[Any]]
) -> tuple[list[int], list[int]]:
    """Return, for each round, the computation time lost per collective and the collective's duration, both in ns.

    Each value is the maximum over all ranks. `start`: function that starts a collective, which takes `alone_ns` without
    computation. `may_take_ns`: time limit. `from_all`: function that gathers a value from each rank, in rank order.
    """
    number = int(min(max(may_take_ns / _ROUNDS / alone_ns, _FEWEST_BESIDE), _MOST_BESIDE))
    rounds = [from_all(_round(start, number, from_all)) for _ in range(_ROUNDS)]
    taken = [max(0, *(taken for taken, _ in ranks)) for ranks in rounds]
    return taken, [max(lasted for _, lasted in ranks) for ranks in rounds]


def _round(start: Start, number: int, from_all: Callable[[Any], list[Any]]) -> tuple[int, int]:
    """Return the computation time that this rank lost per collective, and the collective's duration, both in ns."""
    rows, matrix = torch.randn(_ROWS, _WIDTH), torch.randn(_WIDTH, _WIDTH)
    from_all(None)
    begin_ns, products = time.perf_counter_ns(), 0
    while (passed_ns := time.perf_counter_ns() - begin_ns) < _LEAST_NS:
        torch.mm(rows, matrix)
        products += 1
    product_ns = passed_ns / products
    from_all(None)
    begin_ns, products, left = time.perf_counter_ns(), 0, number
    works: list[Any] = []
    while left or works:
        works = _under_way(works)
        while left and len(works) < _UNDER_WAY:
            works.append(start())
            left -= 1
        torch.mm(rows, matrix)
        products += 1
    passed_ns = time.perf_counter_ns() - begin_ns
    return round((passed_ns - products * product_ns) / number), passed_ns // number


def _under_way(works: Sequence[Any]) -> list[Any]:
    """Return the work handles that have not finished. Raises the error of a handle that has failed."""
    for work in works:
        if work.is_completed():
            work.wait()
    return [work for work in works if not work.is_completed()]


_WARM_UPS = 3
_FEWEST, _MOST = 3, 200
_EVERY = 4
"""one in this many sizes is also measured with two concurrent collectives, starting with the largest size"""
_BESIDE = 1 << 18, 1 << 26
"""smallest and largest size in bytes that are also measured during computation; buckets typically have such sizes"""
_PATIENCE = timedelta(minutes=5)
_ELEMENT_BYTES = 4

_PARTS = 10
"""number of parts into which the iterations for a size are divided; after each part, the ranks agree whether there is
time for more
"""

_IN_A_ROW_NS, _MOST_IN_A_ROW = 2_000_000, 20
"""on an accelerator, iterations are timed in groups: maximum duration of a group in ns, and maximum number of
iterations in it
"""


class _Time(NamedTuple):
    """Times of one iteration on one rank."""

    wall_ns: int
    cpu_ns: int


_Ranks = tuple[_Time, ...]
"""times of one iteration on each rank"""


@dataclass(frozen=True, slots=True)
class Plan:
    collective: str
    sizes_bytes: Sequence[int]
    backend: str | None
    """backend to use; ``None`` for the default of the device"""
    seconds: float
    """time limit for each size, in seconds"""
    link_bits_per_s: int | None = None
    """link speed, as given by the user"""


def measure(plan: Plan) -> NetBench | None:
    """Run all measurements. Return the results on rank 0, and ``None`` on other ranks. Raises `CannotRecord`."""
    device, backend = _device_and_backend(plan.backend)
    with _process_group(backend, device):
        bench = _Bench(plan, device)
        sizes = list(bench.sizes())
        measured = [one.num_bytes for one in sizes]
        concurrent = [bench.concurrent(size) for size in sorted(measured[::-_EVERY])]
        beside = list(bench.beside(sizes))
        hosts, links = _from_all(socket.gethostname()), _from_all(link_facts(backend))
        if dist.get_rank() != 0:
            return None
    return NetBench(
        format=NETBENCH_FORMAT,
        ddpprof=__version__,
        torch=torch.__version__,
        created_unix_s=time.time(),
        collective=plan.collective,
        dtype="float32",
        backend=backend,
        device=device.type,
        world_size=len(hosts),
        hosts=tuple(hosts),
        sizes=tuple(sizes),
        concurrent=tuple(concurrent),
        left_out=tuple(bench.sizes_bytes[len(sizes) :]),
        beside=tuple(beside),
        links=tuple(links),
        link_bits_per_s=plan.link_bits_per_s,
    )


def _device_and_backend(asked: str | None) -> tuple[torch.device, str]:
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    backend = asked or (dist.get_default_backend_for_device(device) if device is not None else "gloo")
    if not dist.is_available() or not dist.is_backend_available(backend):
        known = [name for name in backends.KNOWN if dist.is_backend_available(name)]
        raise CannotRecord(f"this torch build has no backend {backend}. Available backends: {', '.join(known)}.")
    if device is None or backends.backend_of(backend).takes_cpu_tensors:
        return torch.device("cpu"), backend
    device = torch.device(device.type, _place(os.environ).local_rank % torch.accelerator.device_count())
    torch.accelerator.set_device_index(device.index)
    return device, backend


class _LaunchedRank(NamedTuple):
    rank: int
    world_size: int
    local_rank: int


def _place(environment: Mapping[str, str]) -> _LaunchedRank:
    """Return this process's rank as set by torchrun, MPI or Slurm. Raises `CannotRecord`."""
    launchers = (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    )
    for rank, size, local in launchers:
        if rank in environment and size in environment:
            return _LaunchedRank(int(environment[rank]), int(environment[size]), int(environment.get(local, "0")))
    raise CannotRecord("the launcher does not set RANK and WORLD_SIZE. Set both variables on every rank.")


@contextmanager
def _process_group(backend: str, device: torch.device) -> Iterator[None]:
    rank, world_size, _ = _place(os.environ)
    store = os.environ.get(STORE_VARIABLE)
    if store is None and not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise CannotRecord(
            "MASTER_ADDR and MASTER_PORT are not set. Set them to the first rank's host and a free port there."
        )
    if world_size < 2:
        raise CannotRecord("there is only one rank, so there is no communication to measure. Start at least two ranks.")
    try:
        dist.init_process_group(
            backend,
            init_method="env://" if store is None else f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=_PATIENCE,
            device_id=None if device.type == "cpu" else device,
        )
        yield
        dist.destroy_process_group()
    except (RuntimeError, ValueError) as error:
        raise CannotRecord(f"rank {rank} of {world_size}, {backend}: {_in_one_line(error)}") from error


def _in_one_line(error: Exception) -> str:
    """Return the error in one line. If NCCL reports that ranks share a GPU, this is the line that says so."""
    refused = backends.refusal_of_shared_gpu(str(error))
    if refused is not None:
        return (
            f"two ranks use the same GPU, which NCCL does not support ({refused}): start at most one rank per GPU on "
            "each host, or use --backend gloo"
        )
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _from_all(mine: Any) -> list[Any]:
    """Return the value of each rank, in rank order."""
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    return everyones


def _cpu_ns(iterations: Sequence[_Ranks]) -> tuple[int, ...]:
    """Return the median CPU time of an iteration on each rank, in ns."""
    return tuple(round(median(times.cpu_ns for times in rank)) for rank in zip(*iterations, strict=True))


class _Bench:
    def __init__(self, plan: Plan, device: torch.device) -> None:
        self._collective = plan.collective
        self._device = device
        self._may_take_ns = round(plan.seconds * 1e9)
        whole = _ELEMENT_BYTES * (dist.get_world_size() if plan.collective in _SHARED_OUT else 1)
        self.sizes_bytes = sorted({max(1, size // whole) * whole for size in plan.sizes_bytes})

    def sizes(self) -> Iterator[CollectiveTimes]:
        """Yield the times of each size, in ascending order, until one iteration exceeds the time limit."""
        for size in self.sizes_bytes:
            (one,) = self._in_turns([[self._start(size)]])
            yield CollectiveTimes(
                num_bytes=size,
                longest_ns=tuple(longest.wall_ns for longest in map(max, one)),
                shortest_ns=tuple(shortest.wall_ns for shortest in map(min, one)),
                cpu_ns=_cpu_ns(one),
            )
            if min(map(max, one)).wall_ns > self._may_take_ns:
                return

    def concurrent(self, num_bytes: int) -> ConcurrentTimes:
        starts = [self._start(num_bytes), self._start(num_bytes)]
        both, alone = self._in_turns([starts, starts[:1]])
        return ConcurrentTimes(
            num_bytes=num_bytes,
            both_ns=tuple(longest.wall_ns for longest in map(max, both)),
            alone_ns=tuple(longest.wall_ns for longest in map(max, alone)),
            cpu_ns=_cpu_ns(both),
        )

    def _start(self, num_bytes: int) -> Start:
        return _COLLECTIVES[self._collective](num_bytes, self._device)

    def beside(self, sizes: Sequence[CollectiveTimes]) -> Iterator[BesideTimes]:
        """Yield the times of all-reduces of typical bucket sizes that overlap computation, as in DDP."""
        if self._device.type != "cpu" or self._collective != "all_reduce":
            return
        for one in sizes:
            size = one.num_bytes
            if _BESIDE[0] <= size <= _BESIDE[1]:
                taken, lasted = measure_beside(self._start(size), median(one.longest_ns), self._may_take_ns, _from_all)
                yield BesideTimes(size, tuple(taken), tuple(lasted))

    def _in_turns(self, variants: Sequence[Sequence[Start]]) -> list[list[_Ranks]]:
        """Time the variants alternately. Return the times of all ranks, by variant and iteration.

        All collectives of a variant start together.
        """
        warm_ns: list[int] = []
        while len(warm_ns) < _WARM_UPS and sum(warm_ns) <= self._may_take_ns:
            warm_ns.append(max(_from_all(sum(self._time(starts).wall_ns for starts in variants))))
        in_a_row = 1
        if self._device.type != "cpu":
            in_a_row = max(1, min(_MOST_IN_A_ROW, _IN_A_ROW_NS // max(1, warm_ns[-1])))
        fit = self._may_take_ns // max(1, warm_ns[-1] * in_a_row)
        fewest = _FEWEST if fit else 1
        at_a_time = max(1, min(_MOST, fit) // _PARTS)
        done: list[list[_Ranks]] = [[] for _ in variants]
        begin_ns = time.perf_counter_ns()
        while len(done[0]) < _MOST:
            number = min(at_a_time, _MOST - len(done[0]))
            mine = [[self._time(starts, in_a_row) for starts in variants] for _ in range(number)]
            everyones = _from_all((time.perf_counter_ns() - begin_ns, mine))
            for iteration in zip(*(theirs for _, theirs in everyones), strict=True):
                for ranks, times in zip(done, zip(*iteration, strict=True), strict=True):
                    ranks.append(times)
            if max(elapsed_ns for elapsed_ns, _ in everyones) > self._may_take_ns and len(done[0]) >= fewest:
                break
        return done

    def _time(self, starts: Sequence[Start], in_a_row: int = 1) -> _Time:
        """Return the mean time of `in_a_row` consecutive iterations."""
        dist.barrier()
        self._synchronize()
        marks: list[Any] = []
        if self._device.type != "cpu":  # events on the current stream, which waits for the collectives
            marks = [torch.Event(device=self._device, enable_timing=True) for _ in range(2)]
        cpu_ns = time.process_time_ns()
        began_ns = marks[0].record() if marks else time.perf_counter_ns()
        for _ in range(in_a_row):
            for work in [start() for start in starts]:
                work.wait()
        ended_ns = marks[1].record() if marks else time.perf_counter_ns()
        self._synchronize()
        passed_ns = round(marks[0].elapsed_time(marks[1]) * 1e6) if marks else ended_ns - began_ns
        return _Time(passed_ns // in_a_row, (time.process_time_ns() - cpu_ns) // in_a_row)

    def _synchronize(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.synchronize()


def _all_reduce(num_bytes: int, device: torch.device) -> Start:
    tensor = _tensor(num_bytes, device)
    return lambda: dist.all_reduce(tensor, async_op=True)


def _broadcast(num_bytes: int, device: torch.device) -> Start:
    tensor = _tensor(num_bytes, device)
    return lambda: dist.broadcast(tensor, 0, async_op=True)


def _all_gather(num_bytes: int, device: torch.device) -> Start:
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
    whole, share = _tensor(num_bytes, device), _tensor(num_bytes // dist.get_world_size(), device)
    return lambda: gather(whole, share, async_op=True)


def _reduce_scatter(num_bytes: int, device: torch.device) -> Start:
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    whole, share = _tensor(num_bytes, device), _tensor(num_bytes // dist.get_world_size(), device)
    return lambda: scatter(share, whole, async_op=True)


def _tensor(num_bytes: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(num_bytes // _ELEMENT_BYTES, dtype=torch.float32, device=device)


_COLLECTIVES: Mapping[str, Callable[[int, torch.device], Start]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
}
_SHARED_OUT = ("all_gather", "reduce_scatter")
"""collectives in which each rank holds an equal share of the bytes"""
