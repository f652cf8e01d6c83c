"""Check the settings of the ranks' processes: cores, compute threads, and debugging settings.

Each rank may compute with as many threads as the host has cores, but all ranks of the host share these cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddpprof.engine.finding import Change, ChangeKind, Finding, environment_change, only_known
from ddpprof.engine.topic import Topic, View
from ddpprof.layout import count
from ddpprof.model import Record
from ddpprof.model.whole_run import RankWholeRun

_MANY_QUEUED = 0.5
"""measured times count as distorted if at least this many threads of a rank wait for a core on average"""
_USUAL_THREADS = 2
"""number of hardware threads per physical core that is assumed if it was not recorded"""
_MANY_MORE = 1.5
"""a host has too many threads if it has at least this many per core; with fewer, some of them are probably idle"""


@dataclass(frozen=True, slots=True)
class HostCores:
    host: str
    num_ranks: int
    num_threads: int
    """number of CPU threads that PyTorch uses in all ranks of the host together"""
    num_cores: float
    """number of cores on which the host's ranks may run, according to their affinity and control group"""
    machine_cores: int | None = None
    """number of cores that the host has; ``None`` if not recorded"""
    threads_per_core: int = 1
    """number of hardware threads of a physical core, each of which is counted as a core"""

    @property
    def cores_per_rank(self) -> float:
        return self.num_cores / self.num_ranks

    @property
    def threads_that_fit(self) -> int:
        """Number of cores per rank, rounded down; at least 1."""
        return max(1, int(self.cores_per_rank))

    @property
    def is_overcommitted(self) -> bool:
        """Whether there are many more threads than cores, and some rank has more than one thread."""
        return self.num_threads >= _MANY_MORE * self.num_cores and self.num_threads > self.num_ranks

    @property
    def physical_cores_per_rank(self) -> int:
        return max(1, int(self.cores_per_rank / self.threads_per_core))

    @property
    def has_spare_cores(self) -> bool:
        """Whether every rank could compute on at least twice as many physical cores as it does."""
        return self.physical_cores_per_rank >= 2 * self.num_threads / self.num_ranks


def cores_of_hosts(records: Sequence[Record]) -> tuple[HostCores, ...]:
    """Return the hosts with a known number of cores. `records` need not include all ranks of a host."""
    by_host: dict[str, list[Record]] = {}
    for record in records:
        by_host.setdefault(record.host, []).append(record)
    hosts = []
    for host, ranks in by_host.items():
        num_cores = _num_cores(ranks)
        if num_cores:
            num_threads = sum(one.num_threads or 1 for one in ranks)
            per_core = ranks[0].threads_per_core or _USUAL_THREADS
            hosts.append(HostCores(host, len(ranks), num_threads, num_cores, ranks[0].machine_cores, per_core))
    return tuple(hosts)


def _num_cores(ranks: Sequence[Record]) -> float | None:
    """Return how many cores the ranks of one host may use together.

    If every rank has a CPU quota, the ranks are assumed to share one quota.
    """
    cores = {core for one in ranks for core in (one.core_list or "").split(",") if core}
    number = float(len(cores)) or max((one.num_cores for one in ranks if one.num_cores), default=None)
    quotas = [one.cpu_quota for one in ranks if one.cpu_quota is not None]
    return number if number is None or len(quotas) < len(ranks) else min(number, *quotas)


@dataclass(frozen=True, slots=True)
class HostThreads:
    """Threads of the ranks, and the cores that they may use."""

    hosts: tuple[HostCores, ...] = ()
    """hosts for which the number of cores is known"""
    queued_threads: float | None = None
    """number of threads of a rank that are runnable but not running, averaged over the ranks and the whole run"""

    @property
    def wait(self) -> bool:
        """Whether threads often waited for a free core, which distorts all times."""
        return (self.queued_threads or 0) >= _MANY_QUEUED


def host_threads(records: Sequence[Record], watched: Sequence[RankWholeRun]) -> HostThreads:
    return HostThreads(cores_of_hosts(records), _queued_threads(watched))


def _queued_threads(ranks: Sequence[RankWholeRun]) -> float | None:
    shares = [one.queued_ns / one.sampled_ns for one in ranks if one.queued_ns is not None and one.sampled_ns > 0]
    return sum(shares) / len(shares) if shares else None


def threads_exceed_cores(threads: HostThreads, view: View) -> Iterator[Finding]:
    """Report a host on which the ranks compute with many more threads than there are cores."""
    crowded = [one for one in threads.hosts if one.is_overcommitted]
    if view.device != "cpu" or not crowded:
        return
    host = max(crowded, key=lambda one: one.num_threads / one.num_cores)
    fit = host.threads_that_fit
    queued = f"; on average, {threads.queued_threads or 0:.1f} of a rank's threads were runnable but not running"
    yield Finding(
        "threads-exceed-cores",
        f"{host.num_threads} threads share {_cores(host.num_cores)}, so threads may wait for a free core",
        f"on host {host.host}, this job has {_cores(host.num_cores)}, and its {host.num_ranks} ranks compute with "
        f"{host.num_threads / host.num_ranks:.3g} threads each{queued if threads.wait else ''}",
        f"Set OMP_NUM_THREADS={fit} (the number of cores divided by the number of ranks) in the environment of every "
        f"rank. If the script calls torch.set_num_threads, which overrides the variable, change the call to "
        f"torch.set_num_threads({fit}). torchrun sets OMP_NUM_THREADS=1 by default; other launchers do not.",
        None,
        comes_first=threads.wait,
        subject={"host": host.host},
        change=_threads_change(fit),
        numbers=only_known(num_threads=host.num_threads, num_cores=host.num_cores, num_ranks=host.num_ranks),
    )


def _threads_change(number: int) -> Change:
    return Change(
        ChangeKind.ENVIRONMENT,
        {"OMP_NUM_THREADS": str(number)},
        f"OMP_NUM_THREADS={number}, and torch.set_num_threads({number}) where the script calls it",
    )


def cores_without_threads(threads: HostThreads, view: View) -> Iterator[Finding]:
    """Report hosts on which the ranks compute on at most half of their physical cores."""
    has_all = bool(threads.hosts) and sum(one.num_ranks for one in threads.hosts) == view.world_size
    if view.device != "cpu" or not has_all or not all(one.has_spare_cores for one in threads.hosts) or threads.wait:
        return
    if 2 * (view.exposed_ns or 0) >= (view.step_ns or 0):
        return
    host = min(threads.hosts, key=lambda one: one.cores_per_rank)
    fit, threads_per_rank = host.physical_cores_per_rank, host.num_threads / host.num_ranks
    yield Finding(
        "cores-without-threads",
        f"Each rank computes with {threads_per_rank:.3g} thread{'' if threads_per_rank == 1 else 's'}, although it "
        f"could use {fit} physical cores",
        f"on host {host.host}, this job may use {_cores(host.num_cores)} for {count(host.num_ranks, 'rank')}; for "
        "several ranks, torchrun sets OMP_NUM_THREADS=1 unless the variable is set",
        f"If no other program needs these cores, set OMP_NUM_THREADS in the environment of every rank to {fit} "
        "minus the number of the rank's DataLoader workers. If the script calls torch.set_num_threads, which overrides "
        "the variable, change this call. Results may change slightly, because sums are then computed in a different "
        "order.",
        None,
        subject={"host": host.host},
        change=_threads_change(fit),
        numbers=only_known(num_threads=host.num_threads, num_cores=host.num_cores, num_ranks=host.num_ranks),
    )


def ranks_share_cores(threads: HostThreads, view: View) -> Iterator[Finding]:
    """Report a host on which an affinity mask or a CPU limit leaves fewer cores than there are ranks."""
    limited = [one for one in threads.hosts if one.num_cores < min(one.num_ranks, one.machine_cores or 0)]
    if view.device != "cpu" or not limited:
        return
    host = max(limited, key=lambda one: one.num_ranks / one.num_cores)
    yield Finding(
        "ranks-share-cores",
        f"{host.num_ranks} ranks share {_cores(host.num_cores)}, although the host has more",
        f"on host {host.host}, the CPU affinity or the CPU limit of the control group restricts this job to "
        f"{_cores(host.num_cores)} of {host.machine_cores}",
        "Give each rank at least one core of its own: check calls to os.sched_setaffinity in the script, the "
        "launcher's options for binding (taskset, numactl, --cpu-bind), the number of CPUs that the job requests from "
        "the scheduler (--cpus-per-task), and the CPU limit of the container.",
        None,
        comes_first=True,
        subject={"host": host.host},
        numbers=only_known(num_ranks=host.num_ranks, num_cores=host.num_cores, num_cores_of_machine=host.machine_cores),
    )


def _cores(number: float) -> str:
    return f"{number:.3g} core{'' if number == 1 else 's'}"


def debugging_settings(num_ranks: Mapping[str, int], _view: View) -> Iterator[Finding]:
    """Report debugging settings that distort the measured times. `num_ranks`: number of ranks by setting."""
    for name, (title, evidence, advice, change) in _OF_DEBUGGING.items():
        if num_ranks.get(name):
            numbers = only_known(num_ranks=num_ranks[name])
            yield Finding(
                "debugging-setting", title, evidence, advice, None, comes_first=True, change=change, numbers=numbers
            )


_OF_DEBUGGING = {
    "detect_anomaly": (
        "Autograd's anomaly detection is on, which slows down every step",
        "it stores a stack trace for each operation of the forward pass, and checks each gradient for NaN",
        "Remove torch.autograd.set_detect_anomaly(True), and use it only to find the operation that produces a NaN.",
        Change(
            ChangeKind.SWITCH, {"detect_anomaly": False}, "without torch.autograd.set_detect_anomaly(True)",
        ),
    ),
    "TORCH_DISTRIBUTED_DEBUG=DETAIL": (
        "TORCH_DISTRIBUTED_DEBUG=DETAIL is set, which slows down every collective",
        "before each collective, the ranks compare its kind and sizes over an additional process group",
        "Unset the variable once the bug that you were looking for is fixed.",
        environment_change(TORCH_DISTRIBUTED_DEBUG="OFF"),
    ),
    "CUDA_LAUNCH_BLOCKING=1": (
        "CUDA_LAUNCH_BLOCKING=1 is set, so the host waits for each kernel",
        "computation cannot overlap with communication or with the launch of further kernels",
        "Unset the variable once the bug that you were looking for is fixed.",
        environment_change(CUDA_LAUNCH_BLOCKING="0"),
    ),
}  # fmt: skip

DEBUGGING: Topic[None, Mapping[str, int]] = Topic(
    "debugging",
    rules=(debugging_settings,),
    of_run=lambda view: Counter(name for one in view.records.values() for name in one.debugging),
)
HOST_THREADS: Topic[None, HostThreads] = Topic(
    "host_threads", rules=(ranks_share_cores, threads_exceed_cores, cores_without_threads)
)
