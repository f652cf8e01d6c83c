"""What the recorder writes is what `Record` holds."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs, to_builtins
from tables import record

from ddpprof.load.record import BadRecordError, load_losses, load_record
from ddpprof.model import (
    BackwardPass,
    BucketTimes,
    DataParallelModule,
    DdpModule,
    DeviceMemory,
    Forward,
    Loader,
    Memory,
    Parameter,
    RecordedStep,
    RpcCall,
    StepMode,
)
from ddpprof.record.step_notes import LossNotes
from ddpprof.rundir import FORMAT, facts_file, write_json

MODULE = {
    "name": "Net", "settings": {"bucket_cap_mb": 25.0}, "comm_hook": None, "parameters": [["w", 400], ["b", 40]],
    "buckets": [[1, 0]], "num_buffers": 2, "buffer_bytes": 16, "num_batch_norms": 1, "unused": ["b"],
    "graph_is_static": True,
}  # fmt: skip
LOADER = {
    "sampler": "DistributedSampler", "dataset_size": 100, "batch_size": None, "num_workers": 2, "num_iterations": 3,
    "epochs_set": [0, 1], "shuffles": True, "num_training_steps": 9,
}  # fmt: skip
FACTS: dict[str, Any] = {
    "format": 1, "run_id": "a", "rank": 1, "world_size": 2, "local_rank": None, "host": "node", "pid": 7,
    "device": "cuda", "backend": "nccl", "torch": "2.13.0", "modules": [MODULE], "loaders": [LOADER],
    "checkpoints": ["/x.pt"],    "profiler_pause_ns": 5, "ended": "finished", "of_a_later_version": 1,
}  # fmt: skip
STEP: dict[str, Any] = {
    "start_ns": 10, "end_ns": 90, "number": 4, "mode": "profiled", "data_ns": 3,
    "forwards": [[0, 11, 12, 30, 31, 1, 0, True]], "optimizers": [[70, 80]],
    "passes": [[0, 30, [50, None], [[0, 51, None]]]], "torch_stats": {"0": {"forward_compute_time": 18}},
}  # fmt: skip
SHORT = {"start_ns": 90, "end_ns": 95, "number": 5, "mode": "off"}


def write(directory: Path, *, facts: Any = FACTS, lines: str | None = None) -> None:
    (directory / "rank-1.facts.json").write_text(json.dumps(facts))
    if lines is not None:
        (directory / "rank-1.steps.jsonl").write_text(lines)


def test_facts_are_typed(tmp_path: Path) -> None:
    write(tmp_path)
    record = load_record(tmp_path, 1)
    assert record is not None
    assert (record.rank, record.world_size, record.local_rank, record.host, record.pid) == (1, 2, None, "node", 7)
    assert (record.device, record.backend, record.torch) == ("cuda", "nccl", "2.13.0")
    assert (record.checkpoints, record.profiler_pause_ns, record.ended) == (("/x.pt",), 5, "finished")
    assert record.modules == (
        DdpModule(
            "Net", {"bucket_cap_mb": 25.0}, None, (Parameter("w", 400), Parameter("b", 40)), ((1, 0),), 2, 16, 1,
            None, ("b",), True,
        ),
    )  # fmt: skip
    assert record.loaders == (Loader("DistributedSampler", 100, None, 2, 3, (0, 1), True),)
    assert record.steps == ()


def test_dataparallel_modules_are_typed(tmp_path: Path) -> None:
    module = {"name": "Net", "device_ids": [0, 1], "num_parameters": 2, "parameter_bytes": 440}
    write(tmp_path, facts={**FACTS, "modules": [], "data_parallel": [module]})
    record = load_record(tmp_path, 1)
    assert record is not None
    assert record.data_parallel == (DataParallelModule("Net", (0, 1), 2, 440),)


def test_memory_is_typed(tmp_path: Path) -> None:
    device = [0, 1, 2, 3, False, "gpu-a", 4]
    sample = {"rss": 7, "peak_rss": None, "devices": [[1, 10, 20, 30]]}
    lines = json.dumps({**STEP, "memory": sample}) + "\n" + json.dumps(SHORT) + "\n"
    write(tmp_path, facts={**FACTS, "devices": [device]}, lines=lines)
    record = load_record(tmp_path, 1)
    assert record is not None
    assert record.devices == (DeviceMemory(0, 1, 2, 3, False, "gpu-a", 4),)
    assert [step.memory for step in record.steps] == [Memory(7, None, (DeviceMemory(1, 10, 20, 30),)), None]


def test_rpcs_are_typed(tmp_path: Path) -> None:
    calls = [["ps", "lookup", "sync", 11, 19, 8, 64], ["ps", "push", "async", 12, None, 0, None]]
    write(tmp_path, lines=json.dumps({**STEP, "rpc": calls, "rpc_left_out": 3}) + "\n")
    record = load_record(tmp_path, 1)
    assert record is not None
    (step,) = record.steps
    assert step.rpc == (
        RpcCall("ps", "lookup", "sync", 11, 19, 8, 64),
        RpcCall("ps", "push", "async", 12, None, 0, None),
    )
    assert step.rpc_left_out == 3


def test_steps_are_typed(tmp_path: Path) -> None:
    write(tmp_path, lines="".join(json.dumps(step) + "\n" for step in (STEP, SHORT)))
    record = load_record(tmp_path, 1)
    assert record is not None
    assert record.steps == (
        RecordedStep(
            number=4,
            mode=StepMode.PROFILED,
            start_ns=10,
            end_ns=90,
            data_ns=3,
            forwards=(Forward(0, 11, 12, 30, 31, 1, 0, True),),
            optimizers=((70, 80),),
            passes=(BackwardPass(0, 30, (50, None), (BucketTimes(0, 51, None),)),),
            torch_stats={0: {"forward_compute_time": 18}},
        ),
        RecordedStep(number=5, mode=StepMode.OFF, start_ns=90, end_ns=95),
    )


@pytest.mark.parametrize("torn", range(1, len(json.dumps(STEP)), 7))
def test_a_last_line_that_was_cut_by_a_kill_is_dropped(tmp_path: Path, torn: int) -> None:
    write(tmp_path, lines=json.dumps(SHORT) + "\n" + json.dumps(STEP)[:torn])
    record = load_record(tmp_path, 1)
    assert record is not None
    assert [step.number for step in record.steps] == [5]


def test_a_last_line_that_lacks_only_its_end_is_kept(tmp_path: Path) -> None:
    write(tmp_path, lines=json.dumps(STEP))
    record = load_record(tmp_path, 1)
    assert record is not None
    assert [step.number for step in record.steps] == [4]


def test_a_broken_line_among_whole_ones_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, lines=json.dumps(SHORT) + "\n" + json.dumps(STEP)[:20] + "\n" + json.dumps(SHORT) + "\n")
    with pytest.raises(BadRecordError, match=r"rank-1\.steps\.jsonl line 2 cannot be read") as raised:
        load_record(tmp_path, 1)
    assert raised.value.record is not None, "the facts, and the steps before that line"
    assert len(raised.value.record.steps) == 1


def test_a_file_of_steps_that_cannot_be_read_is_named_and_leaves_the_facts(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "rank-1.steps.jsonl").mkdir()
    with pytest.raises(
        BadRecordError, match=r"^rank-1\.steps\.jsonl cannot be read: it is not a regular file"
    ) as raised:
        load_record(tmp_path, 1)
    assert raised.value.record is not None
    assert raised.value.record.host == "node"


def test_no_facts_no_record(tmp_path: Path) -> None:
    assert load_record(tmp_path, 1) is None


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        pytest.param({**FACTS, "format": 2}, "has format 2", id="newer"),
        pytest.param({**FACTS, "host": None}, "Expected `str`", id="wrong-type"),
        pytest.param({"format": 1}, "missing required field", id="incomplete"),
        pytest.param([], "Expected `object`", id="a-list"),
    ],
)
def test_unreadable_facts_are_an_error(tmp_path: Path, facts: Any, message: str) -> None:
    write(tmp_path, facts=facts)
    with pytest.raises(BadRecordError, match=message):
        load_record(tmp_path, 1)


@pytest.mark.parametrize("bucket", [[], [1, 2], [-1]], ids=["empty", "beyond-the-parameters", "before-the-parameters"])
def test_buckets_without_their_parameters_are_refused(tmp_path: Path, bucket: list[int]) -> None:
    write(tmp_path, facts={**FACTS, "modules": [{**MODULE, "buckets": [[0], bucket]}]})
    with pytest.raises(BadRecordError, match=r"rank-1\.facts\.json cannot be read: a bucket of Net contains no known"):
        load_record(tmp_path, 1)


@pytest.mark.parametrize("number", [1 << 63, -(1 << 64), 10**40])
def test_times_that_no_column_holds_are_refused(tmp_path: Path, number: int) -> None:
    write(tmp_path, lines=json.dumps({**STEP, "optimizers": [[70, number]]}) + "\n")
    with pytest.raises(BadRecordError, match="line 1 cannot be read"):
        load_record(tmp_path, 1)


def test_settings_that_no_summary_holds_are_refused(tmp_path: Path) -> None:
    write(tmp_path, facts={**FACTS, "modules": [{**MODULE, "settings": {"bucket_cap_mb": 10**40}}]})
    with pytest.raises(BadRecordError, match=r"rank-1\.facts\.json cannot be read"):
        load_record(tmp_path, 1)


def test_where_a_signal_ended_a_rank(tmp_path: Path) -> None:
    facts = {"format": FORMAT, **structs.asdict(record(0, ended=None))}
    write_json(tmp_path / facts_file(0), to_builtins(facts))
    stack = '  File "/v/site-packages/torch/distributed/c.py", line 3 in barrier\n  File "/me/a.py", line 8 in f\n'
    (tmp_path / "rank-0.crash.txt").write_text(f"Thread 0x1 (most recent call first):\n{stack}")
    read = load_record(tmp_path, 0)
    assert read is not None
    assert (read.ended_place, read.ended_in) == ("/me/a.py:8 in f", "barrier")


def test_scalars_are_kept_and_read_back(tmp_path: Path) -> None:
    notes = LossNotes()
    loss = torch.tensor(0.1)
    notes.backward_begins(loss)
    loss.add_(1)
    notes.backward_begins([torch.zeros(3), torch.tensor([float("nan")]), torch.tensor(3)])
    notes.step_ends(1)
    notes.step_ends(1)
    (tmp_path / "rank-2.losses.json").write_text(json.dumps(notes.values()))
    losses = load_losses(tmp_path, 2)
    assert losses is not None
    (first, broken), nothing = losses
    assert (first, isnan(broken), nothing) == (torch.tensor(0.1).item(), True, ())


@pytest.mark.parametrize("text", [None, "", "[[0.5]]", '[["x"]]', '[["0x1p99999"]]', "{}"])
def test_without_losses_there_are_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "rank-0.losses.json").write_text(text)
    assert load_losses(tmp_path, 0) is None
