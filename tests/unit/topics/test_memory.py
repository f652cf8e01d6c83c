"""Memory per rank and device, from records made by hand."""

from typing import Any

import pytest
from tables import record, recorded

from ddpprof.model import DeviceMemory, Memory, RecordedStep
from ddpprof.topics.memory import (
    DeviceUse,
    Holder,
    RankMemory,
    devices_of_job,
    measure_memory,
    processes_of_job,
)


def step(number: int, rss: int, peak: int, mode: str = "light", allocated: int | None = None) -> RecordedStep:
    devices = () if allocated is None else (DeviceMemory(1, allocated, 2 * allocated, 3 * allocated),)
    return recorded(number, mode=mode, memory=Memory(rss, peak, devices))


def test_steady_is_the_median_and_the_peak_the_last() -> None:
    steps = [step(3, 10, 10), step(5, 70, 70), step(7, 20, 75)]
    assert measure_memory(record(1, [], steps)) == RankMemory(1, "node", 20, 75)


def test_the_profilers_own_memory_does_not_count_where_there_are_light_steps() -> None:
    profiled = step(9, 900, 900, "profiled")
    assert measure_memory(record(0, [], [step(3, 10, 11), profiled])) == RankMemory(0, "node", 10, 11)
    assert measure_memory(record(0, [], [profiled])) == RankMemory(0, "node", 900, 900)


def test_devices_with_what_only_the_last_record_says() -> None:
    own = DeviceMemory(1, 999, 999, 999, True, "gpu-b", 80)
    stranger = DeviceMemory(0, 0, 5, 8, False, "gpu-a", 80)
    measured = measure_memory(
        record(1, [], [step(3, 1, 1, allocated=4), step(5, 1, 1, allocated=6)], devices=(stranger, own))
    )
    assert measured is not None
    assert measured.devices == (
        DeviceUse(0, False, None, 5, 8, 80, "gpu-a"),
        DeviceUse(1, True, 5, 12, 18, 80, "gpu-b"),
    )


def test_devices_without_a_last_record_are_its_own() -> None:
    measured = measure_memory(record(1, [], [step(3, 1, 1, allocated=4)]))
    assert measured is not None
    assert measured.devices == (DeviceUse(1, True, 4, 8, 12, None),)


def test_records_of_earlier_versions_have_nothing_of_it() -> None:
    assert measure_memory(record(0, [], [recorded(3)])) is None
    assert measure_memory(record(1, [], [step(3, 1, 2)])) == RankMemory(1, "node", 1, 2)


def rank(number: int, *devices: DeviceUse, **changes: Any) -> RankMemory:
    given = {"host": "node", "steady_rss_bytes": None, "peak_rss_bytes": None, **changes}
    return RankMemory(rank=number, devices=devices, **given)


def use(index: int, reserved: int, uuid: str | None = None, is_own: bool = True) -> DeviceUse:
    return DeviceUse(index, is_own, reserved, reserved, reserved, None, uuid)


@pytest.mark.parametrize(
    ("ranks", "devices"),
    [
        pytest.param(
            [rank(0, use(0, 5)), rank(1, use(0, 2), use(1, 5))],
            [Holder("node", 0, (0, 1), 7), Holder("node", 1, (1,), 5)],
            id="one-process-on-two-devices",
        ),
        pytest.param(
            [rank(0, use(0, 5, "a")), rank(1, use(0, 6, "b"))],
            [Holder("node", 0, (0,), 5), Holder("node", 0, (1,), 6)],
            id="each-sees-only-its-own",
        ),
        pytest.param(
            [rank(0, use(0, 5), host="a"), rank(1, use(0, 6), host="b")],
            [Holder("a", 0, (0,), 5), Holder("b", 0, (1,), 6)],
            id="two-hosts",
        ),
        pytest.param(
            [rank(0, use(0, 0, is_own=False), use(1, 5)), rank(1, use(1, 1, is_own=False), use(2, 5))],
            [Holder("node", 1, (0, 1), 6), Holder("node", 2, (1,), 5)],
            id="not-where-nobody-trains",
        ),
    ],
)
def test_each_device_of_the_job_counts_once(ranks: list[RankMemory], devices: list[Holder]) -> None:
    assert devices_of_job(ranks) == tuple(devices)


def test_processes_whose_memory_is_known() -> None:
    assert processes_of_job([rank(0, steady_rss_bytes=7), rank(1)]) == (Holder("node", None, (0,), 7),)
