"""Threads and cores of a host, over all of its ranks."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tables import record

from ddpprof.model import Record
from ddpprof.topics.host_threads import HostCores, cores_of_hosts


def rank(number: int, host: str = "a", **facts: Any) -> Record:
    return replace(record(number), host=host, **{"num_cores": 4, "num_threads": 4, "core_list": "0,1,2,3", **facts})


@pytest.mark.parametrize(
    ("records", "num_threads", "num_cores", "fit", "too_many"),
    [
        pytest.param([rank(0), rank(1)], 8, 4, 2, True, id="each-with-all-cores"),
        pytest.param([rank(0, num_threads=2), rank(1, num_threads=2)], 4, 4, 2, False, id="cores-divided"),
        pytest.param([rank(0), rank(1, core_list="4,5,6,7")], 8, 8, 4, False, id="pinned-to-cores-of-its-own"),
        pytest.param([rank(0), rank(1, core_list="3,4,5,6")], 8, 7, 3, False, id="pinned-to-overlapping-cores"),
        pytest.param([rank(0, core_list="0,1,2"), rank(1)], 8, 4, 2, True, id="all-cores-of-one-are-the-others"),
        pytest.param([rank(n, num_threads=3) for n in range(2)], 6, 4, 2, True, id="half-as-many-again"),
        pytest.param([rank(0, num_threads=3), rank(1, num_threads=2)], 5, 4, 2, False, id="one-more"),
        pytest.param([rank(n, num_threads=2, num_cores=2, core_list="0,1") for n in (0, 1)], 4, 2, 1, True, id="twice"),
        pytest.param([rank(0, cpu_quota=1.5), rank(1, cpu_quota=1.5)], 8, 1.5, 1, True, id="quota"),
        pytest.param([rank(n, num_threads=1) for n in range(8)], 8, 4, 1, False, id="cannot-be-fewer-threads"),
        pytest.param([rank(0, core_list=None), rank(1, core_list=None)], 8, 4, 2, True, id="of-an-older-record"),
        pytest.param([rank(0)], 4, 4, 4, False, id="one-rank"),
    ],
)
def test_threads_and_cores(records: list[Record], num_threads: int, num_cores: float, fit: int, too_many: bool) -> None:
    (host,) = cores_of_hosts(records)
    assert host == HostCores("a", len(records), num_threads, num_cores)
    assert (host.threads_that_fit, host.is_overcommitted) == (fit, too_many)


def test_each_host_by_itself() -> None:
    hosts = cores_of_hosts([rank(0), rank(1, "b"), rank(2, "b"), rank(3, "c", num_cores=None, core_list=None)])
    assert [(one.host, one.num_ranks, one.is_overcommitted) for one in hosts] == [("a", 1, False), ("b", 2, True)]
