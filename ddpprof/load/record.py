"""What the recorder wrote for one rank: ``rank-N.facts.json`` and ``rank-N.steps.jsonl``."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from ddpprof.events import (
    BackwardPass,
    BucketTimes,
    DataParallelModule,
    DdpModule,
    DeviceMemory,
    Forward,
    Loader,
    Memory,
    Parameter,
    Record,
    RecordedStep,
    Replica,
    RpcCall,
)
from ddpprof.location import Location
from ddpprof.location.small import read_small
from ddpprof.rundir import FORMAT, LAST_STEP, facts_file, last_step_file, steps_file

_MOST_STEPS_BYTES = 4 * 10**9
"""of a rank's steps: of a million they are 2 GB"""

_Int = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
"""What columns of int64 can hold, also a sum of two."""


class _Parameter(msgspec.Struct, array_like=True):
    name: str
    num_bytes: _Int
    dtype: str | None = None
    shape: tuple[_Int, ...] = ()
    is_sparse: bool = False


class _Module(msgspec.Struct):
    name: str
    settings: dict[str, Any]
    comm_hook: str | None
    parameters: list[_Parameter]
    buckets: list[list[_Int]]
    num_buffers: _Int
    buffer_bytes: _Int
    num_batch_norms: _Int
    unused: list[str] | None = None
    graph_is_static: bool | None = None
    num_searched_passes: _Int = 0
    num_lacking_passes: _Int | None = None


class _FactsOfMemory(msgspec.Struct, frozen=True):
    devices: tuple[DeviceMemory, ...] = ()


class _Facts(msgspec.Struct):
    format: _Int
    rank: _Int
    world_size: _Int
    host: str
    pid: _Int
    device: str
    backend: str
    torch: str
    local_rank: _Int | None = None
    modules: list[_Module] = []
    loaders: tuple[Loader, ...] = ()
    replicas: tuple[Replica, ...] = ()
    checkpoints: list[str] = []
    profiler_pause_ns: _Int | None = None
    ended: str | None = None
    data_parallel: tuple[DataParallelModule, ...] = ()
    memory: _FactsOfMemory = _FactsOfMemory()
    run_id: str | None = None
    ended_unix_ns: _Int | None = None
    num_steps: _Int | None = None
    group_size: _Int | None = None
    framework: str | None = None
    num_cores: _Int | None = None
    num_threads: _Int | None = None
    profiles: bool = True
    no_trace: str | None = None


class _Forward(msgspec.Struct, array_like=True):
    module: _Int
    start_ns: _Int
    inner_start_ns: _Int
    inner_end_ns: _Int
    end_ns: _Int
    buffer_sync_ns: _Int
    rebuild_ns: _Int
    synchronises: bool
    has_gradients: bool = True


class _Bucket(msgspec.Struct, array_like=True):
    index: _Int
    launched_ns: _Int | None
    finished_ns: _Int | None


class _Pass(msgspec.Struct, array_like=True):
    module: _Int
    origin_ns: _Int
    ready_ns: list[_Int | None]
    buckets: list[_Bucket]
    adds_up: bool = False


class _Memory(msgspec.Struct):
    rss: _Int | None = None
    peak_rss: _Int | None = None
    devices: list[tuple[_Int, _Int, _Int, _Int]] = []


class _RpcCall(msgspec.Struct, array_like=True):
    callee: str
    function: str
    kind: str
    start_ns: _Int
    end_ns: _Int | None
    request_bytes: _Int
    reply_bytes: _Int | None


class _Step(msgspec.Struct):
    number: _Int
    mode: str
    start_ns: _Int
    end_ns: _Int
    data_ns: _Int | None = None
    forwards: list[_Forward] = []
    optimizers: list[tuple[_Int, _Int]] = []
    passes: list[_Pass] = []
    torch_stats: dict[_Int, dict[str, _Int]] = {}
    memory: _Memory | None = None
    rpc: list[_RpcCall] = []
    rpc_left_out: _Int = 0


_decode_facts = msgspec.json.Decoder(_Facts).decode
_decode_step = msgspec.json.Decoder(_Step).decode


class BadRecordError(Exception):
    """A file of the recorder cannot be read. Says which and why."""


def load_record(directory: Location, rank: int) -> Record | None:
    """The record of one rank, or ``None`` where it left no facts. Raises `BadRecordError`."""
    path = directory / facts_file(rank)
    try:
        facts = _decode_facts(read_small(path))
        if facts.format > FORMAT:
            raise BadRecordError(f"{path.name} has format {facts.format}, and this ddpprof reads up to {FORMAT}")
        msgspec.msgpack.encode(facts)  # which no integer outlives that a summary could not hold
        if facts.ended is not None:
            return _record(facts, rank, _load_steps(directory / steps_file(rank)))
        num_steps, ended_ns = _load_last_step(directory / last_step_file(rank))
        record = _record(facts, rank, _load_steps(directory / steps_file(rank)))
        return replace(record, num_steps=num_steps, last_step_unix_ns=ended_ns)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise BadRecordError(f"{path.name} cannot be read: {error}") from error
    except OSError as error:
        raise BadRecordError(f"{path.name} cannot be read: {error.strerror}") from error


def _load_last_step(path: Location) -> tuple[int | None, int | None]:
    """Return how many steps the rank had finished, and when the last one ended; ``None`` where it did not note that."""
    try:
        content = read_small(path)
    except FileNotFoundError:
        return None, None
    if len(content) != struct.calcsize(LAST_STEP):
        return None, None
    num_steps, ended_ns = struct.unpack(LAST_STEP, content)
    return (num_steps, ended_ns) if 0 < num_steps < 1 << 62 and 0 < ended_ns < 1 << 62 else (None, None)


def _load_steps(path: Location) -> tuple[RecordedStep, ...]:
    """Every whole line. A process that is killed while it writes leaves half of the last one."""
    try:
        lines = read_small(path, _MOST_STEPS_BYTES).split(b"\n")
    except FileNotFoundError:
        return ()
    torn = lines.pop()
    steps = []
    for number, line in enumerate(lines, start=1):
        try:
            steps.append(_step(_decode_step(line)))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadRecordError(f"{path.name} line {number} cannot be read: {error}") from error
    if torn:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            steps.append(_step(_decode_step(torn)))
    return tuple(steps)


def _record(facts: _Facts, rank: int, steps: tuple[RecordedStep, ...]) -> Record:
    return Record(
        rank=rank,
        world_size=facts.world_size,
        local_rank=facts.local_rank,
        host=facts.host,
        pid=facts.pid,
        device=facts.device,
        backend=facts.backend,
        torch=facts.torch,
        modules=tuple(_module(module) for module in facts.modules),
        loaders=facts.loaders,
        replicas=facts.replicas,
        checkpoints=tuple(facts.checkpoints),
        steps=steps,
        profiler_pause_ns=facts.profiler_pause_ns,
        ended=facts.ended,
        data_parallel=facts.data_parallel,
        devices=facts.memory.devices,
        run_id=facts.run_id,
        ended_unix_ns=facts.ended_unix_ns,
        num_steps=facts.num_steps,
        group_size=facts.group_size,
        framework=facts.framework,
        num_cores=facts.num_cores,
        num_threads=facts.num_threads,
        profiles=facts.profiles,
        no_trace=facts.no_trace,
    )


def _module(module: _Module) -> DdpModule:
    return DdpModule(
        name=module.name,
        settings=module.settings,
        comm_hook=module.comm_hook,
        parameters=tuple(Parameter(*msgspec.structs.astuple(parameter)) for parameter in module.parameters),
        buckets=tuple(tuple(bucket) for bucket in module.buckets),
        num_buffers=module.num_buffers,
        buffer_bytes=module.buffer_bytes,
        num_batch_norms=module.num_batch_norms,
        unused=None if module.unused is None else tuple(module.unused),
        graph_is_static=module.graph_is_static,
        num_searched_passes=module.num_searched_passes,
        num_lacking_passes=module.num_lacking_passes,
    )


def _step(step: _Step) -> RecordedStep:
    return RecordedStep(
        number=step.number,
        mode=step.mode,
        start_ns=step.start_ns,
        end_ns=step.end_ns,
        data_ns=step.data_ns,
        forwards=tuple(Forward(*msgspec.structs.astuple(forward)) for forward in step.forwards),
        optimizers=tuple(step.optimizers),
        passes=tuple(map(_pass, step.passes)),
        torch_stats=step.torch_stats,
        memory=None if step.memory is None else _memory(step.memory),
        rpc=tuple(RpcCall(*msgspec.structs.astuple(call)) for call in step.rpc),
        rpc_left_out=step.rpc_left_out,
    )


def _pass(one: _Pass) -> BackwardPass:
    return BackwardPass(
        module=one.module,
        origin_ns=one.origin_ns,
        ready_ns=tuple(one.ready_ns),
        buckets=tuple(BucketTimes(*msgspec.structs.astuple(bucket)) for bucket in one.buckets),
        adds_up=one.adds_up,
    )


def _memory(memory: _Memory) -> Memory:
    return Memory(memory.rss, memory.peak_rss, tuple(DeviceMemory(*device) for device in memory.devices))
