"""Memory per rank and device, from records made by hand."""

from typing import Any

import pytest
from tables import record, recorded

from ddpprof.engine.topic import View
from ddpprof.model import DdpModule, DeviceMemory, Memory, MemoryPeak, OptimizerFacts, Parameter, RecordedStep
from ddpprof.topics.memory import (
    DeviceUse,
    Holder,
    ModelMemory,
    RankMemory,
    device_memory_full,
    devices_of_job,
    measure_memory,
    measure_model_memory,
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


def test_the_part_with_the_peak_is_known_unless_a_later_step_needs_more() -> None:
    peaks = (MemoryPeak(None, "forward", 990), MemoryPeak(1, "optimizer", 8))
    for peak, part in ((1000, "forward"), (1200, None)):
        measured = measure_memory(record(1, [], [step(3, 1, peak, allocated=4)], peaks=peaks))
        assert measured is not None
        assert (measured.peak_in, measured.devices[0].peak_in) == (part, "optimizer")


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


def module(*parameters: Parameter, **settings: object) -> DdpModule:
    return DdpModule("Net", settings, None, parameters, (tuple(range(len(parameters))),), 0, 0, 0)


def test_memory_of_the_model_from_its_parameters_and_optimizers() -> None:
    """Two modules: 100 bytes as copies, of them 40 sparse, and 60 bytes as views; Adam's state, on four ranks."""
    copied = module(Parameter("a", 60), Parameter("b", 40, is_sparse=True))
    views = module(Parameter("c", 60), gradient_as_bucket_view=True)
    adam = OptimizerFacts("Adam", 320)
    made = measure_model_memory(record(0, [copied, views], optimizers=(adam,), world_size=4), ())
    assert made == ModelMemory(
        parameter_bytes=160,
        gradient_bytes=60,
        bucket_bytes=120,
        optimizer_bytes=320,
        zero_saves_bytes=240,
        zero_receives_bytes=120,
    )


@pytest.mark.parametrize(
    ("optimizers", "world_size"),
    [
        pytest.param(None, 4, id="unknown"),
        pytest.param((OptimizerFacts("SGD", 0),), 4, id="no-state"),
        pytest.param((OptimizerFacts("ZeroRedundancyOptimizer", 0, True), OptimizerFacts("Adam", 80)), 4, id="sharded"),
        pytest.param((OptimizerFacts("Adam", 320),), 1, id="one-rank"),
    ],
)
def test_nothing_is_promised_of_sharding_that_cannot_save(
    optimizers: tuple[OptimizerFacts, ...] | None, world_size: int
) -> None:
    facts = record(0, [], optimizers=optimizers, world_size=world_size)
    made = measure_model_memory(facts, (module(Parameter("a", 60)),))
    assert made is not None
    assert (made.zero_saves_bytes, made.zero_receives_bytes) == (None, None)


def test_without_ddp_there_is_no_memory_of_ddp() -> None:
    assert measure_model_memory(record(0, []), ()) is None


GB = 10**9


@pytest.mark.parametrize(
    ("peak", "model", "advice"),
    [
        pytest.param(
            75, ModelMemory(2 * GB, 2 * GB, 2 * GB, 4 * GB, 3 * GB, GB),
            "DistributedDataParallel(model, gradient_as_bucket_view=True) saves 2.00 GB; "
            "torch.distributed.optim.ZeroRedundancyOptimizer saves 3.00 GB, and sends 1.00 GB to each rank", id="both",
        ),
        pytest.param(
            75, ModelMemory(2 * GB, 0, 2 * GB, 4 * GB, 3 * GB, GB), "model: torch.distributed.optim", id="are-views"
        ),
        pytest.param(75, ModelMemory(GB // 2, GB // 2, GB // 2, 0), None, id="hardly-anything"),
        pytest.param(71, ModelMemory(2 * GB, 2 * GB, 2 * GB, 4 * GB, 3 * GB, GB), None, id="not-full"),
        pytest.param(75, None, None, id="unknown"),
    ],
)  # fmt: skip
def test_a_full_device_and_what_would_free_memory(peak: int, model: ModelMemory | None, advice: str | None) -> None:
    device = DeviceUse(0, True, 40 * GB, peak * GB, 76 * GB, 80 * GB)
    found = list(device_memory_full([rank(0, device, model=model), rank(1)], View(2, None)))
    assert len(found) == (advice is not None)
    for finding in found:
        assert str(advice) in finding.advice
        assert finding.title == "Rank 0 uses 94% of its GPU's memory"
        assert (finding.change is not None) == (model is not None and model.gradient_bytes > 0)


@pytest.mark.parametrize(
    ("part", "reached", "advice"),
    [
        ("optimizer", ", reached in the optimizer's step;", "foreach=False"),
        ("backward", ", reached in the backward pass;", "torch.utils.checkpoint"),
        (None, " in tensors;", None),
    ],
)
def test_a_full_device_whose_peak_has_a_known_part(part: str | None, reached: str, advice: str | None) -> None:
    device = DeviceUse(0, True, 50 * GB, 75 * GB, 78 * GB, 80 * GB, peak_in=part)
    found = list(device_memory_full([rank(0, device, model=ModelMemory(GB, 0, GB))], View(2, None)))
    assert len(found) == (advice is not None)
    for finding in found:
        assert reached in finding.evidence
        assert str(advice) in finding.advice
