"""torch.profiler's schedule leaves one file for each cycle: together they are one rank's trace."""

import json
from pathlib import Path
from typing import Any

import pytest

from ddpprof.load.run import load_run
from ddpprof.model import Mark, Trace
from ddpprof.topics.steps.breakdown import split_step

EPOCH = 1_700_000_000_000_000_000


def cycle(first_step: int, start_us: int, epoch_ns: int | None = EPOCH, rank: int | None = 0, step: str = "s") -> str:
    """Two steps of 100 µs: a forward kernel of 20 µs in each, an all-reduce of 10 µs after it."""
    events: list[dict[str, Any]] = []

    def add(category: str, name: str, start: int, length: int, tid: int = 1, **args: Any) -> None:
        times = {"ts": start_us + start, "dur": length}
        events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, **times, "args": args})

    for index in range(2):
        at = index * 100
        if step:
            add("user_annotation", f"ProfilerStep#{first_step + index}", at, 100)
        add("user_annotation", "DistributedDataParallel.forward", at + 5, 30)
        add("cuda_runtime", "cudaLaunchKernel", at + 10, 1, correlation=at + 1)
        add("cuda_runtime", "cudaLaunchKernel", at + 12, 1, correlation=at + 2)
        add("kernel", f"gemm_{first_step}", at + 20, 20, stream=7, correlation=at + 1, grid=[1, 1, 1], block=[2, 1, 1])
        group = {"Process Group Name": str(first_step), "Group size": 1, "Collective name": "allreduce"}
        add("kernel", "ncclDevKernel_Generic", at + 40, 10, stream=20, correlation=at + 2, **group)
    keys: dict[str, Any] = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 1}}
    if epoch_ns is not None:
        keys["baseTimeNanoseconds"] = epoch_ns
    return json.dumps({**keys, "traceEvents": events})


def load(directory: Path, **files: str) -> tuple[list[Trace], tuple[str, ...]]:
    for name, text in files.items():
        (directory / f"{name}.json").write_text(text)
    run = load_run(directory)
    return [rank.trace for rank in run.ranks if rank.trace], run.missing


def test_cycles_are_one_trace_in_the_order_of_time(tmp_path: Path) -> None:
    (trace,), missing = load(tmp_path, b=cycle(2, 1000), a=cycle(12, 5000))
    assert missing == ()
    assert [(step.number, step.cycle, step.start_ns) for step in trace.steps] == [
        (2, 0, 1_000_000), (3, 0, 1_100_000), (12, 1, 5_000_000), (13, 1, 5_100_000),
    ]  # fmt: skip
    assert trace.compute.start_ns.tolist() == [1_020_000, 1_120_000, 5_020_000, 5_120_000]
    assert trace.compute.step.tolist() == trace.collectives.step.tolist() == [0, 1, 2, 3]
    assert [trace.kernels[index].name for index in trace.compute.kernel] == ["gemm_2", "gemm_2", "gemm_12", "gemm_12"]
    assert [trace.names[index] for index in trace.compute.name] == ["gemm_2", "gemm_2", "gemm_12", "gemm_12"]
    assert [trace.groups[index].name for index in trace.collectives.group] == ["2", "2", "12", "12"]
    forwards = trace.host_spans.mark == Mark.FORWARD
    assert trace.host_spans.step[forwards].tolist() == [0, 1, 2, 3]


def test_each_file_has_its_own_zero(tmp_path: Path) -> None:
    (trace,), _ = load(tmp_path, a=cycle(2, 1000), b=cycle(12, 10, epoch_ns=EPOCH + 3_000_000))
    assert trace.epoch_ns == EPOCH
    assert trace.compute.start_ns.tolist() == [1_020_000, 1_120_000, 3_030_000, 3_130_000]
    assert trace.compute.launched_ns.tolist() == [1_010_000, 1_110_000, 3_020_000, 3_120_000]


def test_the_time_between_cycles_belongs_to_no_step(tmp_path: Path) -> None:
    (trace,), _ = load(tmp_path, a=cycle(2, 1000), b=cycle(12, 5000))
    parts = [split_step(trace, index) for index in range(4)]
    assert [part.breakdown.step_ns for part in parts if part] == [100_000, 30_000, 100_000, 30_000]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        pytest.param(cycle(3, 5000), "also has step 3", id="step-repeated"),
        pytest.param(cycle(12, 1050), "overlaps with it in time", id="overlap"),
    ],
)
def test_another_run_of_the_rank_is_left_out_and_named(tmp_path: Path, second: str, why: str) -> None:
    (trace,), missing = load(tmp_path, a=cycle(2, 1000), b=second)
    assert [step.number for step in trace.steps] == [2, 3]
    assert missing == (f"left out: b.json is from rank 0, like a.json, and {why}",)


def test_cycles_of_another_process_are_left_out(tmp_path: Path) -> None:
    for pid, first_step, start in ((7, 2, 1000), (7, 12, 5000), (9, 22, 9000)):
        (tmp_path / f"host_{pid}.17000000000{start}.pt.trace.json").write_text(cycle(first_step, start))
    run = load_run(tmp_path)
    assert run.ranks[0].trace is not None
    assert [step.number for step in run.ranks[0].trace.steps] == [2, 3, 12, 13]
    (line,) = run.missing
    assert line.startswith("left out: host_9.")
    assert line.endswith("is from another process")


def test_without_a_rank_the_files_of_one_process_are_one_rank(tmp_path: Path) -> None:
    for pid, first_step, start in ((7, 2, 1000), (7, 12, 5000), (9, 2, 1000)):
        (tmp_path / f"host_{pid}.17000000000{start}.pt.trace.json").write_text(cycle(first_step, start, rank=None))
    run = load_run(tmp_path)
    assert [[step.number for step in rank.trace.steps] for rank in run.ranks if rank.trace] == [[2, 3, 12, 13], [2, 3]]
    assert [line.rpartition(": ")[2] for line in run.missing] == ["rank 0 is assumed", "rank 1 is assumed"]


def test_steps_that_are_only_counted_count_on(tmp_path: Path) -> None:
    (trace,), missing = load(tmp_path, a=cycle(2, 1000, step=""), b=cycle(12, 5000, step=""))
    assert [step.number for step in trace.steps] == [0, 1, 2, 3]
    assert missing == ()
