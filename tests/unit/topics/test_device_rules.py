"""Rules about the device."""

from dataclasses import replace
from typing import Any

import pytest
from observations import MS, observed, slowdown
from tables import record

from ddpprof.model import HostRead, OptimizerFacts
from ddpprof.report.topics import find_all
from ddpprof.topics.devices import DeviceLoad
from ddpprof.topics.idle import RankAllocations, device_allocations
from ddpprof.topics.process_settings import HostCores
from ddpprof.topics.replicas import Drift, TrainedApart


@pytest.mark.parametrize(
    ("lost_ns", "share", "backend", "advice"),
    [
        pytest.param(2 * MS, 0.5, "nccl", "NCCL_MAX_CTAS=8", id="nccl"),
        pytest.param(2 * MS, 0.5, None, "Reduce the device resources", id="other"),
        pytest.param(2 * MS, 0.1, "nccl", None, id="hardly-known"),
        pytest.param(MS // 2, 0.5, "nccl", None, id="small"),
        pytest.param(-2 * MS, 0.5, "nccl", None, id="faster"),
        pytest.param(None, None, "nccl", None, id="unknown"),
    ],
)
def test_overlap_slowdown(lost_ns: int | None, share: float | None, backend: str | None, advice: str | None) -> None:
    o = observed(slowdown=slowdown(lost_ns, 1.25, share), backend=backend)
    assert [(f.rule, f.gain_ns) for f in find_all(o)] == ([("overlap-slowdown", lost_ns)] if advice else [])
    assert all(advice in f.advice and "1.25 ×" in f.title for f in find_all(o) if advice)


@pytest.mark.parametrize(
    ("num_threads", "cores_per_rank", "is_said"),
    [
        pytest.param(4, 4.0, True, id="a-thread-on-every-core"),
        pytest.param(4, 2.0, True, id="more-threads-than-cores"),
        pytest.param(3, 4.0, False, id="a-core-is-left"),
        pytest.param(1, 1.0, False, id="cannot-be-fewer"),
        pytest.param(None, None, False, id="not-recorded"),
    ],
)
def test_fewer_threads_are_advised_only_where_they_take_every_core(
    num_threads: int | None, cores_per_rank: float | None, is_said: bool
) -> None:
    o = observed(slowdown=slowdown(2 * MS, 1.25, 0.5), backend="gloo")
    (finding,) = find_all(replace(o, num_threads=num_threads, cores_per_rank=cores_per_rank))
    assert ("OMP_NUM_THREADS" in finding.advice) is is_said


def test_threads_that_wait_for_cores_come_before_all_gains() -> None:
    hosts = (HostCores("a", 2, 4, 4.0), HostCores("b", 4, 32, 8.0))
    first, second = find_all(observed(hosts=hosts, device="cpu", data_ns=50 * MS, queued_threads=1.26))
    assert (first.rule, second.rule, first.gain_ns) == ("threads-exceed-cores", "idle-for-data", None)
    assert first.title == "32 threads share 8 cores, so threads may wait for a free core"
    assert first.evidence == (
        "on host b, this job has 8 cores, and its 4 ranks compute with 8 threads each; on average, 1.3 of a rank's "
        "threads were runnable but not running"
    )
    assert first.advice.startswith("Set OMP_NUM_THREADS=2 (the number of cores divided by the number of ranks) in")
    assert "change the call to torch.set_num_threads(2)." in first.advice
    assert find_all(observed(hosts=hosts, device="cuda")) == ()


@pytest.mark.parametrize("queued_threads", [None, 0.2])
def test_threads_that_were_not_seen_to_wait_come_after_gains(queued_threads: float | None) -> None:
    hosts = (HostCores("a", 2, 8, 4.0),)
    gain, last = find_all(observed(hosts=hosts, device="cpu", data_ns=50 * MS, queued_threads=queued_threads))
    assert (gain.rule, last.rule, last.gain_ns) == ("idle-for-data", "threads-exceed-cores", None)
    assert last.evidence == "on host a, this job has 4 cores, and its 2 ranks compute with 4 threads each"


def test_ranks_that_are_bound_to_one_core() -> None:
    hosts = (HostCores("a", 2, 2, 1.0, machine_cores=8),)
    first, second = find_all(observed(hosts=hosts, device="cpu", data_ns=50 * MS))
    assert (first.rule, second.rule) == ("ranks-share-cores", "idle-for-data")
    assert first.title == "2 ranks share 1 core, although the host has more"
    assert first.evidence.endswith("restricts this job to 1 core of 8")


@pytest.mark.parametrize(
    "host",
    [
        pytest.param(HostCores("a", 4, 4, 2.0, machine_cores=2), id="the-host-has-no-more"),
        pytest.param(HostCores("a", 2, 2, 2.0, machine_cores=8), id="each-has-its-own"),
        pytest.param(HostCores("a", 4, 4, 2.0), id="not-recorded"),
    ],
)
def test_ranks_that_have_what_there_is(host: HostCores) -> None:
    assert find_all(observed(hosts=(host,), device="cpu")) == ()


def test_cores_that_no_thread_of_the_ranks_uses() -> None:
    hosts = (HostCores("a", 1, 1, 64.0), HostCores("b", 1, 1, 32.0, threads_per_core=2))
    gain, last = find_all(observed(hosts=hosts, device="cpu", data_ns=50 * MS))
    assert (gain.rule, last.rule, last.gain_ns) == ("idle-for-data", "cores-without-threads", None)
    assert last.title == "Each rank computes with 1 thread, although it could use 16 physical cores"
    assert last.evidence.startswith("on host b, this job may use 32 cores for 1 rank; for several ranks, torchrun sets")
    assert last.change is not None
    assert last.change.values == {"OMP_NUM_THREADS": "16"}


@pytest.mark.parametrize(
    ("hosts", "given"),
    [
        pytest.param((HostCores("a", 2, 4, 7.0),), {}, id="not-twice-as-many-for-each"),
        pytest.param((HostCores("a", 2, 8, 16.0, threads_per_core=2),), {}, id="a-thread-for-each-physical-core"),
        pytest.param((HostCores("a", 2, 2, 8.0),), {"device": "cuda"}, id="trains-on-gpus"),
        pytest.param((HostCores("a", 1, 1, 8.0),), {}, id="other-ranks-of-the-host-are-unknown"),
        pytest.param((HostCores("a", 1, 1, 8.0), HostCores("b", 1, 1, 1.0)), {}, id="another-host-has-none-to-spare"),
        pytest.param((HostCores("a", 2, 2, 8.0),), {"queued_threads": 0.6}, id="other-programs-use-them"),
        pytest.param((HostCores("a", 2, 2, 8.0),), {"exposed_ns": 50 * MS}, id="communication-takes-half-of-the-step"),
    ],
)
def test_cores_that_more_threads_would_not_use(hosts: tuple[HostCores, ...], given: dict[str, Any]) -> None:
    found = find_all(observed(**{"hosts": hosts, "device": "cpu", **given}))
    assert "cores-without-threads" not in [one.rule for one in found]


def test_a_broken_training_comes_before_threads_that_wait() -> None:
    apart = TrainedApart("Head", ("weight",), True, Drift(0, (0, 1), 13, 0.5, False, 0))
    hosts = (HostCores("a", 2, 8, 4.0),)
    found = find_all(observed(hosts=hosts, device="cpu", queued_threads=2.0, trained_apart=(apart,), group_size=2))
    assert [one.rule for one in found] == ["unaveraged-parameters", "threads-exceed-cores"]


@pytest.mark.parametrize(("control", "fires"), [(None, True), (1.0, True), (1.2, True), (1.25, False), (0.7, False)])
def test_no_slowdown_is_claimed_that_the_machine_may_have_made(control: float | None, fires: bool) -> None:
    o = observed(slowdown=slowdown(2 * MS, 1.25, 0.5, control=control))
    assert bool(find_all(o)) is fires


@pytest.mark.parametrize(
    ("backend", "control", "is_noise"),
    [
        pytest.param("gloo", None, True, id="other-work-on-the-cores"),
        pytest.param("gloo", 1.0, False, id="baseline-steps-tell"),
        pytest.param("nccl", None, False, id="a-device-of-its-own"),
    ],
)
def test_a_slowdown_on_shared_cores_may_be_other_work(backend: str, control: float | None, is_noise: bool) -> None:
    (finding,) = find_all(observed(slowdown=slowdown(4 * MS, 1.25, 0.5, control=control), backend=backend))
    assert finding.is_noise is is_noise
    assert ("use --baseline-steps to find out" in finding.evidence) is is_noise


@pytest.mark.parametrize(("ns", "fires"), [(5 * MS, True), (5 * MS - 1, False), (0, False), (None, False)])
def test_launch_bound(ns: int | None, fires: bool) -> None:
    assert [(f.rule, f.gain_ns) for f in find_all(observed(launch_bound_ns=ns))] == (
        [("launch-bound", ns)] if fires else []
    )


@pytest.mark.parametrize(
    ("profiler_ns", "gain_ns", "evidence"),
    [
        pytest.param(None, 30 * MS, "Profiling slows the host: the idle time is shorter without", id="unknown"),
        pytest.param(20 * MS, 10 * MS, "the gain does not include the 20.0 ms by which the profiler", id="a-part"),
        pytest.param(27 * MS, None, "", id="nearly-all"),
        pytest.param(40 * MS, None, "", id="the-host-runs-ahead-without-it"),
    ],
)
def test_what_the_profiler_delays_is_no_gain(profiler_ns: int | None, gain_ns: int | None, evidence: str) -> None:
    found = find_all(observed(launch_bound_ns=30 * MS, profiler_ns=profiler_ns, step_ns=100 * MS))
    assert [one.gain_ns for one in found] == ([] if gain_ns is None else [gain_ns])
    assert all(evidence in one.evidence and one.numbers["launch_bound_ns"] == 30 * MS for one in found)


READS = (
    HostRead("item()", "/home/u/train.py:12 in step", 15 * 4, 80 * MS, 4),
    HostRead("bool()", "/home/u/train.py:30 in clip", 1 * 4, 2 * MS, 4),
)


@pytest.mark.parametrize(
    ("read_ns", "reads", "title", "evidence"),
    [
        pytest.param(
            3 * MS, READS, "the script reads its results 16 times per step",
            "the accelerator is idle for 3.00 ms per step after these reads; train.py:12 in step calls item() 15 times "
            "per step; train.py:30 in clip calls bool() once per step", id="lines-known",
        ),
        pytest.param(
            3 * MS,
            (),
            "the script reads its results",
            "the accelerator is idle for 3.00 ms per step after these reads",
            id="a-trace",
        ),
        pytest.param(MS - 1, READS, None, "", id="less-than-1-percent"),
        pytest.param(None, READS, None, "", id="on-cpu"),
    ],
)  # fmt: skip
def test_host_reads(read_ns: int | None, reads: tuple[HostRead, ...], title: str | None, evidence: str) -> None:
    """The step takes 100 ms."""
    found = find_all(
        observed(launch_bound_ns=0, host_read_ns=read_ns, step_ns=100 * MS, records={0: record(host_reads=reads)})
    )
    assert [(one.rule, one.gain_ns) for one in found] == ([("host-reads", read_ns)] if title else [])
    assert all(one.title.endswith(str(title)) and one.evidence == evidence for one in found)


def test_reads_of_a_scaler_depend_on_the_optimizer() -> None:
    of_scaler = HostRead("item()", "/home/u/train.py:40 in step", 4, 2 * MS, 4, "amp/grad_scaler.py")
    records = {0: record(host_reads=(of_scaler,))}
    (found,) = find_all(observed(launch_bound_ns=0, host_read_ns=3 * MS, step_ns=100 * MS, records=records))
    assert found.evidence.endswith("train.py:40 in step calls item() once per step, through torch/amp/grad_scaler.py")
    assert found.advice.startswith("GradScaler.step() reads whether gradients overflowed, unless")


CLEANS_UP = HostRead("torch.cuda.empty_cache()", "/a/train.py:40 in train", 5, 9 * MS, 5)


def test_lines_that_empty_the_cache_are_no_reads() -> None:
    records = {0: record(host_reads=(CLEANS_UP, *READS))}
    (found,) = find_all(observed(launch_bound_ns=0, host_read_ns=3 * MS, step_ns=100 * MS, records=records))
    assert "empty_cache" not in found.title + found.evidence


@pytest.mark.parametrize(
    ("reads", "title", "advice"),
    [
        pytest.param(
            (*READS, CLEANS_UP),
            ", because train.py:40 in train calls torch.cuda.empty_cache()",
            "Remove",
            id="line-known",
        ),
        pytest.param(READS, " and frees memory on it", "Remove torch.cuda.empty_cache() if", id="memory-is-full"),
    ],
)
def test_device_allocations(reads: tuple[HostRead, ...], title: str, advice: str) -> None:
    ranks = [RankAllocations(0, 5, 4, 9 * MS), RankAllocations(1, 5, 3, 2 * MS)]
    view = observed(step_ns=100 * MS, records={0: record(host_reads=reads)})
    (found,) = device_allocations(ranks, view)
    assert found.title.endswith(title)
    assert found.advice.startswith(advice)
    assert (found.gain_ns, found.evidence[:8]) == (2 * MS, "3 calls ")
    assert not list(device_allocations([RankAllocations(0, 5, 4, MS - 1)], view)), "less than 1 %"
    assert not list(device_allocations([RankAllocations(0, 5, 0, 9 * MS)], view)), "in few steps"


@pytest.mark.parametrize(
    ("facts", "device", "optimizer_ms", "fires"),
    [
        pytest.param(OptimizerFacts("AdamW", 8, could_be_fused=True), "cuda", 3, True, id="could-be-fused"),
        pytest.param(OptimizerFacts("AdamW", 8, is_fused=True, could_be_fused=True), "cuda", 3, False, id="is-fused"),
        pytest.param(OptimizerFacts("Rprop", 8), "cuda", 3, False, id="cannot-be"),
        pytest.param(OptimizerFacts("AdamW", 8, could_be_fused=True), "cpu", 3, False, id="little-on-cpu"),
        pytest.param(OptimizerFacts("AdamW", 8, could_be_fused=True), "cpu", 5, True, id="much-on-cpu"),
        pytest.param(OptimizerFacts("SGD", 0, could_be_fused=True), "cpu", 5, False, id="plain-sgd-on-cpu"),
        pytest.param(OptimizerFacts("Lamb", 8, num_groups=24, num_parameters=24), "cpu", 5, True, id="small-groups"),
        pytest.param(OptimizerFacts("Lamb", 8, num_groups=24, num_parameters=96), "cpu", 5, False, id="large-groups"),
        pytest.param(OptimizerFacts("AdamW", 8, could_be_fused=True), "cuda", 0.9, False, id="hardly-any-time"),
    ],
)
def test_optimizer_not_fused(facts: OptimizerFacts, device: str, optimizer_ms: float, fires: bool) -> None:
    """The step takes 100 ms."""
    found = find_all(
        observed(
            launch_bound_ns=None if device == "cpu" else 0,
            optimizer_ns=round(optimizer_ms * MS),
            step_ns=100 * MS,
            device=device,
            records={0: record(optimizers=(facts,))},
        )
    )
    assert [(one.rule, one.gain_ns) for one in found] == (
        [("optimizer-not-fused", round(optimizer_ms * MS))] if fires else []
    )
    assert all("AdamW(…, fused=True)" in one.advice for one in found if facts.could_be_fused)
    assert all("24 groups for 24 parameters" in one.title for one in found if facts.num_groups)


def loads(*compute_ns: int) -> tuple[DeviceLoad, ...]:
    return tuple(DeviceLoad(device, ns, 0, 0, ns) for device, ns in enumerate(compute_ns))


@pytest.mark.parametrize(
    ("compute", "gain_ns"),
    [
        pytest.param((50 * MS, 30 * MS), 10 * MS, id="a-tenth-of-the-step"),
        pytest.param((50 * MS, 30 * MS + 2), None, id="less"),
        pytest.param((50 * MS,), None, id="one-device"),
        pytest.param((), None, id="not-measured"),
    ],
)
def test_device_imbalance(compute: tuple[int, ...], gain_ns: int | None) -> None:
    findings = find_all(observed(device_loads=loads(*compute)))
    assert [(f.rule, f.gain_ns) for f in findings] == ([("device-imbalance", gain_ns)] if gain_ns else [])
    assert all("from device 0 to device 1" in f.advice for f in findings)


def test_a_step_that_ends_before_it_begins_has_no_imbalance() -> None:
    assert find_all(observed(step_ns=-1)) == ()


@pytest.mark.parametrize(("has_cuda", "is_of_cuda"), [(True, True), (False, False)])
def test_advice_on_launches_fits_the_device(has_cuda: bool, is_of_cuda: bool) -> None:
    (finding,) = find_all(observed(launch_bound_ns=20 * MS, has_cuda=has_cuda))
    assert ("CUDA graphs" in finding.advice) is ("fused=True" in finding.advice) is is_of_cuda
    assert "a larger batch" in finding.advice
