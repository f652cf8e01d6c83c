"""How many threads compute on each host, over all of its ranks, and how many cores may they use?

One rank only sees its own threads: with as many threads as cores, each rank is well by itself, but not beside others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpprof.model import Record

_MANY_MORE = 1.5
"""number of threads per core; with a few more threads than cores, some are likely idle"""


@dataclass(frozen=True, slots=True)
class HostCores:
    host: str
    num_ranks: int
    num_threads: int
    """number of torch's threads of all ranks of the host together"""
    num_cores: float
    """number of cores that its ranks may use together, by their affinity and their control group"""

    @property
    def cores_per_rank(self) -> float:
        return self.num_cores / self.num_ranks

    @property
    def threads_that_fit(self) -> int:
        """Number of threads per rank for which there are cores, but at least one."""
        return max(1, int(self.cores_per_rank))

    @property
    def is_overcommitted(self) -> bool:
        """Whether there are many more threads than cores, and ranks with fewer threads are possible."""
        return self.num_threads >= _MANY_MORE * self.num_cores and self.num_threads > self.num_ranks


def cores_of_hosts(records: Sequence[Record]) -> tuple[HostCores, ...]:
    """Return the hosts whose cores are known. A host has at least the ranks that are given."""
    by_host: dict[str, list[Record]] = {}
    for record in records:
        by_host.setdefault(record.host, []).append(record)
    hosts = []
    for host, ranks in by_host.items():
        num_cores = _num_cores(ranks)
        if num_cores:
            hosts.append(HostCores(host, len(ranks), sum(one.num_threads or 1 for one in ranks), num_cores))
    return tuple(hosts)


def _num_cores(ranks: Sequence[Record]) -> float | None:
    """Return how many cores the ranks of one host may use together. They share a control group if it has a quota."""
    cores = {core for one in ranks for core in (one.core_list or "").split(",") if core}
    number = float(len(cores)) or max((one.num_cores for one in ranks if one.num_cores), default=None)
    quotas = [one.cpu_quota for one in ranks if one.cpu_quota is not None]
    return number if number is None or len(quotas) < len(ranks) else min(number, *quotas)
