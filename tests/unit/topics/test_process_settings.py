"""Threads and cores of a host, over all of its ranks."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tables import record

from ddpprof.engine.topic import View
from ddpprof.model import Record
from ddpprof.topics.process_settings import DEBUGGING, HostCores, cores_of_hosts, debugging_settings

OF_HOST: dict[str, Any] = {"num_cores": 4, "num_threads": 4, "core_list": "0,1,2,3", "threads_per_core": 1}


def rank(number: int, host: str = "a", **facts: Any) -> Record:
    return replace(record(number), host=host, **{**OF_HOST, **facts})


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


@pytest.mark.parametrize(
    ("threads_per_core", "physical"), [(1, 4), (2, 2), (None, 2)], ids=["one", "two", "not-recorded"]
)
def test_hardware_threads_share_a_physical_core(threads_per_core: int | None, physical: int) -> None:
    (host,) = cores_of_hosts([rank(0, num_threads=2, threads_per_core=threads_per_core)])
    assert (host.physical_cores_per_rank, host.has_spare_cores) == (physical, physical == 4)


@pytest.mark.parametrize(
    ("debugging", "titles", "values"),
    [
        pytest.param((), [], [], id="none"),
        pytest.param(
            ("detect_anomaly",), ["Autograd's anomaly detection is on, which slows down every step"],
            [{"detect_anomaly": False}], id="anomaly",
        ),
        pytest.param(
            ("TORCH_DISTRIBUTED_DEBUG=DETAIL", "CUDA_LAUNCH_BLOCKING=1"),
            [
                "TORCH_DISTRIBUTED_DEBUG=DETAIL is set, which slows down every collective",
                "CUDA_LAUNCH_BLOCKING=1 is set, so the host waits for each kernel",
            ],
            [{"TORCH_DISTRIBUTED_DEBUG": "OFF"}, {"CUDA_LAUNCH_BLOCKING": "0"}], id="variables",
        ),
        pytest.param(("of a later version",), [], [], id="unknown"),
    ],
)  # fmt: skip
def test_settings_for_debugging(debugging: tuple[str, ...], titles: list[str], values: list[dict[str, object]]) -> None:
    view = View(2, 10**8, records={0: record(), 1: record(1, debugging=debugging)})
    assert DEBUGGING.of_run is not None
    names = DEBUGGING.of_run(view)
    assert names is not None
    found = list(debugging_settings(names, view))
    assert [one.title for one in found] == titles
    assert [one.change.values for one in found if one.change is not None] == values
    assert all(one.comes_first for one in found)


def test_each_host_by_itself() -> None:
    hosts = cores_of_hosts([rank(0), rank(1, "b"), rank(2, "b"), rank(3, "c", num_cores=None, core_list=None)])
    assert [(one.host, one.num_ranks, one.is_overcommitted) for one in hosts] == [("a", 1, False), ("b", 2, True)]
